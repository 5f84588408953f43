// SPDX-License-Identifier: GPL-2.0-only
/*
 * A card is polled while packets come and for a while after: no interrupt, no system call. Its
 * driver's own poll function is called, as the kernel does for sockets that poll: a context of NAPI
 * that is marked as being polled is not completed by the driver, so that the interrupts stay off
 * with which that was scheduled. To sleep, it is completed.
 */
#include <net/gro.h>

#include "dde.h"
#include "dde_options.h"
#include "dde_top.h"

#define BUDGET 64
/* Polls without a packet after which the clock is read. */
#define LOOK 8

/* How long is polled in vain, which is less if that has not paid. */
static u64 window;
/* When something came last; 0 while interrupts are waited for. */
static u64 since;
static unsigned int empty;
static bool paid;

void dde_poll_begin(struct net_device *device)
{
	struct napi_struct *napi;

	window = dde_options.poll_ns;
	list_for_each_entry(napi, &device->napi_list, dev_list)
		if (window)
			set_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
}

/*
 * Has its driver complete it: interrupts are on again, and one comes for what has come meanwhile.
 */
static void finish(struct napi_struct *napi)
{
	local_bh_disable();
	clear_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
	__napi_schedule(napi);
	local_bh_enable();
	set_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
}

/* It was scheduled by an interrupt and not completed, and no softirq will call it. */
static bool is_ours(struct napi_struct *napi)
{
	return test_bit(NAPI_STATE_SCHED, &napi->state) &&
	       test_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state) && list_empty(&napi->poll_list) &&
	       !test_bit(NAPI_STATE_NPSVC, &napi->state);
}

static bool has_window_ended(int work)
{
	u64 now;

	if (work) {
		/* Found by polling, and not by the interrupt before. */
		paid |= since != 0;
		since = since ? since : ddekit_now();
		empty = 0;
		return false;
	}
	if (++empty % LOOK)
		return false;
	now = ddekit_now();
	if (empty == LOOK)
		since = now;
	return now - since > window;
}

bool dde_poll_once(struct net_device *device)
{
	struct napi_struct *napi;
	bool polled = false;
	int work = 0;

	if (!dde_options.poll_ns)
		return false;
	list_for_each_entry(napi, &device->napi_list, dev_list) {
		if (!is_ours(napi))
			continue;
		/* Who wants it disabled waits until nobody has it. */
		if (napi_disable_pending(napi)) {
			clear_bit(NAPI_STATE_SCHED, &napi->state);
			continue;
		}
		polled = true;
		local_bh_disable();
		work += napi->poll(napi, BUDGET);
#if DDE_LINUX_7
		gro_normal_list(&napi->gro);
#else
		gro_normal_list(napi);
#endif
		local_bh_enable();
	}
	if (polled && !work)
		cpu_relax();
	if (!polled || !has_window_ended(work))
		return polled;
	window = paid ? min(window * 2,
			    dde_options.poll_ns) : max(window / 2, dde_options.poll_ns / 64);
	since = 0;
	empty = 0;
	paid = false;
	list_for_each_entry(napi, &device->napi_list, dev_list)
		if (is_ours(napi))
			finish(napi);
	return false;
}
