// SPDX-License-Identifier: Apache-2.0 OR MIT
/* The user half of the counter: it counts as slowly as it is told, and looks whether anybody counts meanwhile. */
#include <errno.h>

#include "split.h"

struct counter {
	unsigned int lock;
	int count;
};

void _raw_spin_lock(void *lock);
void _raw_spin_unlock(void *lock);
void msleep(unsigned int ms);
void count(void);

/* As `ring3 split build` makes them. */
const struct split_stub split_stubs[] = { { "count", SPLIT_STUB_CALL, -1, 0 } };
__asm__(".globl count\n"
	".type count, @function\n"
	"count:\n"
	"	mov $0, %eax\n"
	"	jmp split_thunk\n");

static long run_hold(const unsigned long *arguments)
{
	struct counter *counter = (struct counter *)arguments[0];
	int before;

	_raw_spin_lock(&counter->lock);
	before = counter->count;
	msleep((unsigned int)arguments[1]);
	if (counter->count != before)
		return -EBUSY;
	counter->count++;
	_raw_spin_unlock(&counter->lock);
	return 0;
}

/* No driver does this. */
static long run_deadlock(const unsigned long *arguments)
{
	_raw_spin_lock(&((struct counter *)arguments[0])->lock);
	count();
	return 0;
}

long (*const split_runners[])(const unsigned long *arguments) = { run_hold, run_deadlock };
