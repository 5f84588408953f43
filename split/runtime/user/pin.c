// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Pinned pages: a user half never waits for a disk, which may be the one that it drives
 * [Microdrivers, 3].
 */
#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "split.h"

/* All threads with their stacks and messages, the program, and copies of the kernel's objects. */
#define MOST (64UL << 20)

/* Pins all pages that there are and will be; or says why not, and what to do. */
void split_pin(void)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	/* The right to pin more than the limit goes when the process is confined. */
	setrlimit(RLIMIT_MEMLOCK, &limit);
	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur < MOST) {
		split_log("its memory is not pinned, and may have to wait for a disk: "
			  "RLIMIT_MEMLOCK is %lu KiB, and %lu are needed: start it as root, raise "
			  "the limit (ulimit -l, LimitMEMLOCK=), or start it with --unpinned",
			  (unsigned long)limit.rlim_cur >> 10, MOST >> 10);
		return;
	}
	/* A heap of its own for each thread would pin as much again. */
	mallopt(M_ARENA_MAX, 1);
	if (mlockall(MCL_CURRENT | MCL_FUTURE) < 0)
		split_log("its memory is not pinned, and may have to wait for a disk: %s; "
			  "--unpinned starts it without", strerror(errno));
}
