/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "journal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddekit/context.h"
#include "ddekit/log.h"
#include "device.h"

#define SECOND 1000000000ull
/* What a look at the clock takes. */
#define LOOK 20u

int journal_state;
static struct ddekit_device *recorded;
static uint64_t now = SECOND;

void journal_begin(struct ddekit_device *device)
{
	journal_state = ring3_journal_begin(device->device);
	recorded = device;
	if (journal_is_on())
		ddekit_ctx_stand_still();
}

/*
 * What `result` is an error of ends the program: the device's own, that the driver has left its
 * recording, which is known then, or that this has nothing more.
 */
static void end(int result)
{
	const bool is_over = journal_is_replayed() && result == -ENODEV;
	const char *verdict = is_over ? ring3_journal_verdict() : ring3_error();

	fprintf(stderr, "%s: %s\n", ddekit_dev_name(recorded),
		verdict ? verdict : "the recording ends here: whoever made it was killed");
	exit(verdict ? 1 : 0);
}

void journal_refuse(const char *what)
{
	fprintf(stderr, "%s: the recording is none of this driver's: %s\n",
		ddekit_dev_name(recorded), what);
	exit(1);
}

uint64_t journal_now(void)
{
	return now += LOOK;
}

void journal_delay(uint64_t ns)
{
	const struct timespec span = { .tv_sec = (time_t)(ns / SECOND),
				       .tv_nsec = (long)(ns % SECOND) };

	now += ns;
	if (!journal_is_replayed())
		clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
}

int journal_wait(int fd, uint64_t until, struct ddekit_device **device, uint16_t *vector)
{
	const uint64_t left = until == UINT64_MAX ? UINT64_MAX : until > now ? until - now : 0;
	const int result = ring3_journal_wait(recorded->device, fd, left, vector);

	if (result < 0)
		end(result);
	if (result == RING3_ELAPSED)
		now += left;
	*device = recorded;
	return result;
}

int journal_answer(int result, void *out, size_t len)
{
	unsigned char answer[sizeof(result) + 512];
	unsigned char *all = sizeof(result) + len <= sizeof(answer) ? answer :
			     malloc(sizeof(result) + len);
	int failed = 0;

	if (!journal_is_on())
		return result;
	if (!all)
		ddekit_panic("no memory for a recording");
	if (journal_is_replayed()) {
		failed = ring3_journal_answer(recorded->device, all, sizeof(result) + len);
		if (failed < 0)
			end(failed);
		memcpy(&result, all, sizeof(result));
		if (len > 0)
			memcpy(out, all + sizeof(result), len);
	} else {
		memcpy(all, &result, sizeof(result));
		if (len > 0)
			memcpy(all + sizeof(result), out, len);
		ring3_journal_note(recorded->device, all, sizeof(result) + len);
	}
	if (all != answer)
		free(all);
	return result;
}

void ddekit_dma_share(const struct ddekit_device *device, const void *memory, size_t len)
{
	if (journal_is_on())
		ring3_journal_share(device->device, ddekit_dma_iova(&device->arena, memory), len);
}

void ddekit_dma_unshare(const struct ddekit_device *device, const void *memory)
{
	if (journal_is_on())
		ring3_journal_unshare(device->device, ddekit_dma_iova(&device->arena, memory));
}

void ddekit_dma_sync(const struct ddekit_device *device)
{
	const int result = journal_is_on() ? ring3_journal_sync(device->device) : 0;

	if (result < 0)
		end(result);
}

bool ddekit_dev_journaled(void)
{
	return journal_is_on();
}

const char *ddekit_dev_verdict(void)
{
	return ring3_journal_verdict();
}
