// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pieces of start_kernel() that this much of a kernel needs, in its order, and the idle loop.
 */
#include <linux/async.h>
#include <linux/init.h>
#include <linux/interrupt.h>
#include <linux/irq.h>
#include <linux/kthread.h>
#include <linux/maple_tree.h>
#include <linux/radix-tree.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/srcu.h>
#include <linux/timer.h>
#include <linux/wait_bit.h>
#include <linux/hrtimer.h>
#include <linux/workqueue.h>

#include "dde.h"
#include "dde_options.h"

/* The tick of the kernel's timers. */
#define TICK (NSEC_PER_SEC / HZ)

extern initcall_t dde_initcall_start[], dde_initcall_end[];
extern initcall_t dde_initcall_early_start[], dde_initcall_early_end[];
int __init devices_init(void);
int __init buses_init(void);
int __init classes_init(void);
int __init platform_bus_init(void);

const unsigned long dde_stack_size = THREAD_SIZE;

enum system_states system_state __read_mostly = SYSTEM_BOOTING;
bool static_key_initialized __read_mostly = true;
unsigned int reset_devices;
char *saved_command_line = "";
bool initcall_debug;
struct dde_options dde_options;

bool __weak dde_glue_busy(void)
{
	return false;
}

void dde_poll(u64 until)
{
	int result = ddekit_ev_poll(until);

	if (result < 0)
		ddekit_panic("dde: waiting for the host: errno %d", -result);
	dde_tick();
	dde_glue_idle();
}

static void call(initcall_t *from, initcall_t *to)
{
	for (; from < to; from++)
		(*from)();
}

/* What kernel_init() does: in a thread, because drivers sleep when they probe. */
static int initialise(void *unused)
{
	workqueue_init();
	call(dde_initcall_early_start, dde_initcall_early_end);
	workqueue_init_topology();
	async_init();
	devices_init();
	buses_init();
	classes_init();
	platform_bus_init();
	call(dde_initcall_start, dde_initcall_end);
	system_state = SYSTEM_RUNNING;
	dde_run();
	return 0;
}

static int start_kthreadd(void *unused)
{
	kthreadd_task = current;
	return kthreadd(NULL);
}

void dde_start_kernel(void)
{
	dde_mm_init();
	dde_sched_init();
	local_irq_disable();
	wait_bit_init();
	radix_tree_init();
	maple_tree_init();
	workqueue_init_early();
	rcu_init();
	early_irq_init();
	dde_irq_init();
#if DDE_LINUX_7
	timers_init();
#else
	init_timers();
#endif
	srcu_init();
	hrtimers_init();
	softirq_init();
	dde_tick();
	local_irq_enable();
	system_state = SYSTEM_SCHEDULING;
	/* kthreadd first: the other asks it for threads. */
	kernel_thread(start_kthreadd, NULL, "kthreadd", CLONE_FS | CLONE_FILES);
	kernel_thread(initialise, NULL, "init", CLONE_FS);
	for (;;) {
		schedule();
		if (dde_glue_busy())
			continue;
		/* Everybody sleeps, or has just let the others in. */
		dde_poll(ddekit_now_coarse() + TICK);
	}
}
