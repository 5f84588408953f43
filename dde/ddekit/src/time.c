/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/time.h"

#include <errno.h>
#include <time.h>

#include "journal.h"

/* Sleeping costs about as much. */
#define BUSY_NS 50000u
#define SECOND 1000000000u
/* Where a recording's time begins: 2024-01-01. */
#define EPOCH (1704067200ull * SECOND)

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

uint64_t ddekit_now(void)
{
	return journal_is_on() ? journal_now() : read_clock(CLOCK_MONOTONIC);
}

uint64_t ddekit_now_coarse(void)
{
	return journal_is_on() ? journal_now() : read_clock(CLOCK_MONOTONIC_COARSE);
}

uint64_t ddekit_realtime(void)
{
	return journal_is_on() ? EPOCH + journal_now() : read_clock(CLOCK_REALTIME);
}

void ddekit_delay(uint64_t ns)
{
	uint64_t end;
	struct timespec at;

	if (journal_is_on()) {
		journal_delay(ns);
		return;
	}
	end = ddekit_now() + ns;
	at = (struct timespec){ .tv_sec = (time_t)(end / SECOND), .tv_nsec = (long)(end % SECOND) };
	if (ns <= BUSY_NS) {
		while (ddekit_now() < end)
			;
		return;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}
