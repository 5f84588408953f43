// SPDX-License-Identifier: GPL-2.0-only
/*
 * Time: the host's clocks. The kernel's timers run on jiffies, which are made to follow when
 * anybody looks.
 */
#include <linux/hrtimer.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/sched/clock.h>
#include <linux/timekeeping.h>
#include <linux/timer.h>
#include <linux/delay.h>

#include "dde.h"

#define TICK (NSEC_PER_SEC / HZ)

__cacheline_aligned_in_smp DEFINE_RAW_SPINLOCK(jiffies_lock);
__cacheline_aligned_in_smp seqcount_raw_spinlock_t jiffies_seq =
	SEQCNT_RAW_SPINLOCK_ZERO(jiffies_seq, &jiffies_lock);
unsigned long loops_per_jiffy = 1 << 20;
unsigned long preset_lpj;

static u64 ticked;
/* Jiffies were counted whose timers were not called yet. */
static bool due;

static u64 boot_offset(void)
{
	return ddekit_realtime() - ddekit_now();
}

static void count_jiffies(void)
{
	/*
	 * Whoever looks does so at each interrupt: ticks are longer than what this clock is behind.
	 */
	u64 now = ddekit_now_coarse(), passed;

	if (!ticked)
		ticked = now;
	passed = div_u64(now - ticked, TICK);
	if (!passed)
		return;
	ticked += passed * TICK;
	jiffies_64 += passed;
	due = true;
}

/* Counts the jiffies that have passed, and has expired timers called. */
void dde_tick(void)
{
	unsigned long flags;

	count_jiffies();
	if (!due)
		return;
	due = false;
	/*
	 * This architecture leaves interrupts off at the end of one
	 * (__ARCH_IRQ_EXIT_IRQS_DISABLED).
	 */
	local_irq_save(flags);
	irq_enter();
	hrtimer_run_queues();
	/* What update_process_times() does for the tick of a processor. */
	raise_softirq(TIMER_SOFTIRQ);
	irq_exit();
	local_irq_restore(flags);
}

ktime_t ktime_get(void)
{
	return ddekit_now();
}

ktime_t ktime_get_raw(void)
{
	return ddekit_now();
}

u64 notrace ktime_get_mono_fast_ns(void)
{
	return ddekit_now();
}

u64 notrace ktime_get_raw_fast_ns(void)
{
	return ddekit_now();
}

u32 ktime_get_resolution_ns(void)
{
	return 1;
}

ktime_t ktime_get_with_offset(enum tk_offsets offset)
{
	return offset == TK_OFFS_BOOT ? ddekit_now() : ddekit_realtime();
}

ktime_t ktime_get_coarse_with_offset(enum tk_offsets offset)
{
	return ktime_get_with_offset(offset);
}

ktime_t ktime_mono_to_any(ktime_t mono, enum tk_offsets offset)
{
	return offset == TK_OFFS_BOOT ? mono : mono + boot_offset();
}

void ktime_get_ts64(struct timespec64 *ts)
{
	*ts = ns_to_timespec64(ddekit_now());
}

void ktime_get_coarse_ts64(struct timespec64 *ts)
{
	ktime_get_ts64(ts);
}

void ktime_get_raw_ts64(struct timespec64 *ts)
{
	ktime_get_ts64(ts);
}

void ktime_get_real_ts64(struct timespec64 *ts)
{
	*ts = ns_to_timespec64(ddekit_realtime());
}

void ktime_get_coarse_real_ts64(struct timespec64 *ts)
{
	ktime_get_real_ts64(ts);
}

time64_t ktime_get_seconds(void)
{
	return div_u64(ddekit_now(), NSEC_PER_SEC);
}

time64_t ktime_get_real_seconds(void)
{
	return div_u64(ddekit_realtime(), NSEC_PER_SEC);
}

time64_t __ktime_get_real_seconds(void)
{
	return ktime_get_real_seconds();
}

ktime_t ktime_get_update_offsets_now(unsigned int *seq, ktime_t *real, ktime_t *boot, ktime_t *tai)
{
	*real = boot_offset();
	*boot = 0;
	*tai = *real;
	return ddekit_now();
}

unsigned long long notrace sched_clock(void)
{
	return ddekit_now();
}

/*
 * Whoever waits without sleeping still lets time pass, also where its timers cannot be called yet.
 */
static void delay(u64 ns)
{
	ddekit_delay(ns);
	if (irqs_disabled() || in_interrupt())
		count_jiffies();
	else
		dde_tick();
}

void __udelay(unsigned long us)
{
	delay((u64)us * NSEC_PER_USEC);
}

void __ndelay(unsigned long ns)
{
	delay(ns);
}

void __const_udelay(unsigned long xloops)
{
	/* Of 2^32 in a second, as the macros before it count. */
	delay((u64)xloops * NSEC_PER_SEC >> 32);
}

void __delay(unsigned long loops)
{
	delay(loops);
}

void calibrate_delay(void)
{
}
