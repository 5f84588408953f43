// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The user half of the empty driver: what it is asked for, so and so many times, and how long that
 * took.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "split.h"

enum { REPEAT_CALL, REPEAT_REGISTER, REPEAT_GETPPID };

unsigned int split_io_read(const volatile void *address, unsigned long size);
void nothing(void);

/* As `ring3 split build` makes them. */
const struct split_stub split_stubs[] = { { "nothing", SPLIT_STUB_CALL, -1, 0 } };
__asm__(".globl nothing\n"
	".type nothing, @function\n"
	"nothing:\n"
	"	mov $0, %eax\n"
	"	jmp split_thunk\n");

static long run_nothing(const unsigned long *arguments)
{
	(void)arguments;
	return 0;
}

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static long run_repeat(const unsigned long *arguments)
{
	long start = now();

	for (unsigned long i = 0; i < arguments[1]; i++) {
		switch (arguments[0]) {
		case REPEAT_CALL:
			nothing();
			break;
		case REPEAT_REGISTER:
			split_io_read((const volatile void *)arguments[2], 4);
			break;
		case REPEAT_GETPPID:
			syscall(SYS_getppid);
			break;
		default:
			return -EINVAL;
		}
	}
	return now() - start;
}

long (*const split_runners[])(const unsigned long *arguments) = { run_nothing, run_repeat };
