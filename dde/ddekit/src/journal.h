/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A device that is recorded or replayed. The driver's world is its own then: its clock moves when
 * it sleeps, its random numbers are always the same, and what comes from outside passes through the
 * recording, so that it does the same each time.
 */
#ifndef DDEKIT_SRC_JOURNAL_H
#define DDEKIT_SRC_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ring3.h>

struct ddekit_device;

/* 0, RING3_RECORDED or RING3_REPLAYED. */
extern int journal_state;

static inline bool journal_is_on(void)
{
	return journal_state != 0;
}

static inline bool journal_is_replayed(void)
{
	return journal_state == RING3_REPLAYED;
}

/* Begins, if the device is one of these. */
void journal_begin(struct ddekit_device *device);

/* Ends the program: what a recording says cannot be. It is a file, and need not be what it was. */
void journal_refuse(const char *what) __attribute__((noreturn));

/*
 * The clock, which a look moves a little, so that who waits for it to move does not wait for ever.
 */
uint64_t journal_now(void);
/* Time passes, of the host's, too, where there is a device. */
void journal_delay(uint64_t ns);

/*
 * Sleeps until an interrupt comes, `fd` is readable or it is `until`, to which the clock is put
 * then: RING3_INTERRUPT, of which `device` and `vector` tell, RING3_WOKEN or RING3_ELAPSED. Ends
 * the program where the recording ends, or was left.
 */
int journal_wait(int fd, uint64_t until, struct ddekit_device **device, uint16_t *vector);

/*
 * What the outside has answered: `result`, and what it has put into the `len` bytes at `out`. Of a
 * replayed device that is what it answered when this was recorded, and nobody has been asked.
 */
int journal_answer(int result, void *out, size_t len);

#endif
