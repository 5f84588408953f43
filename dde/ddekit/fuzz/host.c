/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Time, timers and random numbers of a run that can be repeated. */
#include "ddekit/event.h"

#include <stdlib.h>
#include <string.h>

#include "ddekit/random.h"
#include "ddekit/time.h"
#include "../src/xorshift.h"
#include "fuzz.h"

#define SECOND 1000000000ull
/* What a look at the clock takes, so that who waits for it to move does not wait for ever. */
#define LOOK 20u
/* 2024-01-01. */
#define EPOCH (1704067200ull * SECOND)

static uint64_t now = SECOND;
static struct ddekit_timer *timers;
static uint64_t limit, ended_at;
static void (*at_limit)(void);

uint64_t ddekit_now(void)
{
	return now += LOOK;
}

uint64_t ddekit_now_coarse(void)
{
	return ddekit_now();
}

uint64_t ddekit_realtime(void)
{
	return EPOCH + ddekit_now();
}

void fuzz_pass(uint64_t until)
{
	if (until > now)
		now = until;
}

void ddekit_delay(uint64_t ns)
{
	fuzz_pass(now + ns);
}

void ddekit_random(void *bytes, size_t len)
{
	xorshift(bytes, len);
}

void fuzz_on_limit(uint64_t ns, void (*stop)(void))
{
	limit = ns;
	at_limit = stop;
}

void ddekit_ev_timer_cancel(struct ddekit_timer *timer)
{
	for (struct ddekit_timer **at = &timers; timer->set && *at; at = &(*at)->next)
		if (*at == timer) {
			*at = timer->next;
			timer->set = false;
			return;
		}
}

void ddekit_ev_timer_set(struct ddekit_timer *timer, uint64_t when)
{
	struct ddekit_timer **at = &timers;

	ddekit_ev_timer_cancel(timer);
	while (*at && (*at)->at <= when)
		at = &(*at)->next;
	timer->at = when;
	timer->set = true;
	timer->next = *at;
	*at = timer;
}

/* Nothing is ever readable: a watch is somebody who waits in vain. */
struct ddekit_watch *ddekit_ev_watch(int fd, void (*function)(void *arg), void *arg)
{
	static char watch;

	(void)fd, (void)function, (void)arg;
	return (struct ddekit_watch *)&watch;
}

void ddekit_ev_unwatch(struct ddekit_watch *watch)
{
	(void)watch;
}

static void look_at_limit(void)
{
	void (*stop)(void) = at_limit;

	if (!fuzz_ended() || !stop)
		return;
	if (!ended_at)
		ended_at = now;
	if (now - ended_at < limit)
		return;
	at_limit = NULL;
	stop();
}

int ddekit_ev_poll(uint64_t until)
{
	int called = 0;

	fuzz_event();
	if (timers && timers->at < until)
		until = timers->at;
	if (until != UINT64_MAX)
		fuzz_pass(until);
	while (timers && timers->at <= now) {
		struct ddekit_timer *timer = timers;

		timers = timer->next;
		timer->set = false;
		timer->function(timer->arg);
		called++;
	}
	look_at_limit();
	return called;
}
