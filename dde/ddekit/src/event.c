/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/event.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "ddekit/time.h"

/* Descriptors that are served before timers are looked at again. */
#define BATCH 16
#define SECOND 1000000000u

struct ddekit_watch {
	int fd;
	/* Ended; its memory is taken back when nothing that epoll has said can name it. */
	bool dead;
	void (*function)(void *arg);
	void *arg;
	struct ddekit_watch *next;
};

static int epoll = -1;
/* By time, the soonest first. */
static struct ddekit_timer *timers;
static struct ddekit_watch *dead;

static struct ddekit_watch *watch_for(int fd, uint32_t events, void (*function)(void *arg), void *arg)
{
	struct ddekit_watch *watch;
	struct epoll_event event = { .events = events };

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	watch = epoll < 0 ? NULL : calloc(1, sizeof(*watch));
	if (!watch)
		return NULL;
	watch->fd = fd;
	watch->function = function;
	watch->arg = arg;
	event.data.ptr = watch;
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
		free(watch);
		return NULL;
	}
	return watch;
}

struct ddekit_watch *ddekit_ev_watch(int fd, void (*function)(void *arg), void *arg)
{
	return watch_for(fd, EPOLLIN, function, arg);
}

struct ddekit_watch *ddekit_ev_watch_edges(int fd, void (*function)(void *arg), void *arg)
{
	return watch_for(fd, EPOLLIN | EPOLLET, function, arg);
}

void ddekit_ev_unwatch(struct ddekit_watch *watch)
{
	if (!watch)
		return;
	epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	watch->dead = true;
	watch->next = dead;
	dead = watch;
}

static void bury(void)
{
	while (dead) {
		struct ddekit_watch *watch = dead;

		dead = watch->next;
		free(watch);
	}
}

void ddekit_ev_timer_cancel(struct ddekit_timer *timer)
{
	struct ddekit_timer **at = &timers;

	if (!timer->set)
		return;
	while (*at != timer)
		at = &(*at)->next;
	*at = timer->next;
	timer->set = false;
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

/* Calls the timers that are due now, and of those that they set no more than there were. */
static int expire(void)
{
	const uint64_t now = timers ? ddekit_now() : 0;
	int due = 0, called = 0;

	for (const struct ddekit_timer *timer = timers; timer && timer->at <= now; timer = timer->next)
		due++;
	while (called < due && timers && timers->at <= now) {
		struct ddekit_timer *timer = timers;

		timers = timer->next;
		timer->set = false;
		timer->function(timer->arg);
		called++;
	}
	return called;
}

static int wait_for(uint64_t until, struct epoll_event *events)
{
	/* Without timers nobody waits for a moment: a clock that is read without a system call on every host is good enough. */
	const uint64_t now = until == 0 ? 0 : timers ? ddekit_now() : ddekit_now_coarse();
	const uint64_t left = until > now ? until - now : 0;
	struct timespec timeout = { .tv_sec = (time_t)(left / SECOND), .tv_nsec = (long)(left % SECOND) };

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		return -errno;
	return epoll_pwait2(epoll, events, BATCH, until == UINT64_MAX ? NULL : &timeout, NULL);
}

int ddekit_ev_poll(uint64_t until)
{
	struct epoll_event events[BATCH];
	int called = expire();
	int count;

	if (called > 0)
		until = 0;
	else if (timers && timers->at < until)
		until = timers->at;
	count = wait_for(until, events);
	if (count < 0 && errno != EINTR)
		return -errno;
	for (int i = 0; i < count; i++) {
		struct ddekit_watch *watch = events[i].data.ptr;

		if (watch->dead)
			continue;
		watch->function(watch->arg);
		called++;
	}
	bury();
	return called + expire();
}
