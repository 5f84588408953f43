/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/event.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ddekit/time.h"
#include "device.h"
#include "journal.h"

/* Descriptors that are served before timers are looked at again. */
#define BATCH 16
#define SECOND 1000000000u

struct ddekit_watch {
	int fd;
	/* By which a recording names it. */
	uint32_t number;
	/* Ended; its memory is taken back when nothing that epoll has said can name it. */
	bool dead;
	void (*function)(void *arg);
	void *arg;
	/* The next one that lives, or of the dead. */
	struct ddekit_watch *next;
};

static int epoll = -1;
/* By time, the soonest first. */
static struct ddekit_timer *timers;
static struct ddekit_watch *alive, *dead;
static uint32_t last_number;

static struct ddekit_watch *watch_for(int fd, uint32_t events, void (*function)(void *arg),
				      void *arg)
{
	struct ddekit_watch *watch;
	struct epoll_event event = { .events = events };

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	watch = epoll < 0 ? NULL : calloc(1, sizeof(*watch));
	if (!watch)
		return NULL;
	watch->fd = fd;
	watch->number = ++last_number;
	watch->function = function;
	watch->arg = arg;
	event.data.ptr = watch;
	/*
	 * Who is not there has nothing to say, but a number; and who is outside of a recording has
	 * nothing to say to it.
	 */
	if (!(journal_is_on() && (fd < 0 || journal_is_replayed())) &&
	    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
		free(watch);
		return NULL;
	}
	watch->next = alive;
	alive = watch;
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
	struct ddekit_watch **at = &alive;

	if (!watch)
		return;
	epoll_ctl(epoll, EPOLL_CTL_DEL, watch->fd, NULL);
	while (*at != watch)
		at = &(*at)->next;
	*at = watch->next;
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

	for (const struct ddekit_timer *timer = timers; timer && timer->at <= now;
	     timer = timer->next)
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

/*
 * The host's timer by which the loop wakes up: set for a time and left alone until that has come.
 * To give each wait its own end would have the host set and cancel a timer of its own with every
 * interrupt; so it wakes up in vain now and then instead. Its edges are watched: nobody reads it.
 */
static int alarm_fd = -1;
/* For when it is set and has not been heard; 0 if it is not. */
static uint64_t alarm_at;

static int open_alarm(void)
{
	/* Nobody else's watch: it has no function. */
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = NULL };

	alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (alarm_fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, alarm_fd, &event) != 0)
		return -errno;
	return 0;
}

/* Has the loop wake up at `when` or before. */
static int set_alarm(uint64_t when)
{
	const struct itimerspec at = {
		.it_value = { .tv_sec = (time_t)(when / SECOND), .tv_nsec = (long)(when % SECOND) },
	};
	int result = 0;

	if (alarm_at != 0 && alarm_at <= when)
		return 0;
	if (alarm_fd < 0)
		result = open_alarm();
	if (result == 0 && timerfd_settime(alarm_fd, TFD_TIMER_ABSTIME, &at, NULL) != 0)
		result = -errno;
	if (result == 0)
		alarm_at = when;
	return result;
}

/* What has come, after sleeping until `until` at most: perhaps for less. */
static int wait_for(uint64_t until, struct epoll_event *events)
{
	int result = 0;

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		return -errno;
	if (until != 0 && until != UINT64_MAX)
		result = set_alarm(until);
	if (result < 0)
		return result;
	/* The alarm has the time; and Debian 12's valgrind knows no epoll_pwait2. */
	result = epoll_pwait(epoll, events, BATCH, until == 0 ? 0 : -1, NULL);
	return result < 0 ? -errno : result;
}

/* Calls the functions of what has come. */
static int serve(const struct epoll_event *events, int count)
{
	int called = 0;

	for (int i = 0; i < count; i++) {
		struct ddekit_watch *watch = events[i].data.ptr;

		if (!watch)
			alarm_at = 0;
		else if (!watch->dead) {
			watch->function(watch->arg);
			called++;
		}
	}
	bury();
	return called;
}

static struct ddekit_watch *watch_of(uint32_t number)
{
	struct ddekit_watch *watch = alive;

	while (watch && watch->number != number)
		watch = watch->next;
	return watch;
}

/* The same of those of whom a recording says that they were there. */
static int serve_woken(void)
{
	struct epoll_event events[BATCH];
	uint32_t numbers[BATCH] = { 0 };
	int count = journal_is_replayed() ? 0 : epoll_pwait(epoll, events, BATCH, 0, NULL);
	int called = 0;

	for (int i = 0; i < count; i++)
		numbers[i] = ((const struct ddekit_watch *)events[i].data.ptr)->number;
	count = journal_answer(count, numbers, sizeof(numbers));
	if (count > BATCH)
		journal_refuse("more descriptors than are heard at once");
	for (int i = 0; i < count; i++) {
		struct ddekit_watch *watch = watch_of(numbers[i]);

		if (watch) {
			watch->function(watch->arg);
			called++;
		}
	}
	bury();
	return called;
}

/*
 * Where the device is recorded or replayed, interrupts, descriptors and the end of a sleep come in
 * the recording's order.
 */
static int poll_by_journal(uint64_t until)
{
	const int called = expire();
	const uint64_t wake = called > 0 ? 0 : timers && timers->at < until ? timers->at : until;
	struct ddekit_device *device;
	uint16_t vector;

	if (epoll < 0)
		epoll = epoll_create1(EPOLL_CLOEXEC);
	if (epoll < 0)
		return -errno;
	switch (journal_wait(epoll, wake, &device, &vector)) {
	case RING3_INTERRUPT:
		ddekit_irq_raise(device, vector);
		return called + 1;
	case RING3_WOKEN:
		return called + serve_woken();
	default:
		return called + expire();
	}
}

int ddekit_ev_poll(uint64_t until)
{
	struct epoll_event events[BATCH];

	if (journal_is_on())
		return poll_by_journal(until);
	for (;;) {
		int called = expire();
		const uint64_t wake = called > 0 ? 0 : timers && timers->at < until ? timers->at :
				      until;
		const int count = wait_for(wake, events);

		if (count < 0 && count != -EINTR)
			return count;
		called += serve(events, count) + expire();
		/* A signal ends it, too. */
		if (called > 0 || count < 0 || until == 0 ||
		    (until != UINT64_MAX && ddekit_now() >= until))
			return called;
	}
}
