// SPDX-License-Identifier: GPL-2.0
/*
 * Crossings: upcalls and calls down, those of registers included. They are counted, and each can be
 * made to cost more.
 *
 * # Delay
 * `delay_us` stands for a slower change of protection domain, as in Figure 4 of [Microdrivers]. It
 * is spun, not slept: a change of domain keeps the processor busy, and a delay that sleeps would
 * leave it to the packets and cost them nothing. The processor changes hands between slices, as it
 * does between the instructions of a process. No lock of the run time is held, and who is killed
 * goes.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/sched/signal.h>

#include "runtime.h"

#define SLICE_US 100u

static unsigned int delay_us;
module_param(delay_us, uint, 0644);
MODULE_PARM_DESC(delay_us, "processor time that each crossing costs in addition, for measurements; "
		 "default 0");

static atomic_long_t upcalls, calls;

static int count(char *text, const struct kernel_param *parameter)
{
	return sysfs_emit(text, "%ld\n", atomic_long_read(parameter->arg));
}

static const struct kernel_param_ops counter = { .get = count };
module_param_cb(upcalls, &counter, &upcalls, 0444);
MODULE_PARM_DESC(upcalls, "upcalls since the module was loaded");
module_param_cb(calls, &counter, &calls, 0444);
MODULE_PARM_DESC(calls,
		 "calls of user halves since the module was loaded, those of registers included");

void split_cross(bool up)
{
	unsigned int slice, left = READ_ONCE(delay_us);

	atomic_long_inc(up ? &upcalls : &calls);
	for (; left && !fatal_signal_pending(current); left -= slice) {
		slice = min(left, SLICE_US);
		udelay(slice);
		cond_resched();
	}
}
