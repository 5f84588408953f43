/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/event.h"

#include <unistd.h>

#include "ddekit/time.h"
#include "tests.h"

#define MS 1000000u

static int order[8], count;
static struct ddekit_timer timers[3];
static int pipes[2];
static struct ddekit_watch *watch;

static void note(void *arg)
{
	order[count++] = *(int *)arg;
}

static void timers_are_called_by_their_time_and_once(void)
{
	static int names[] = { 0, 1, 2 };
	const uint64_t now = ddekit_now();

	for (int i = 0; i < 3; i++)
		timers[i] = (struct ddekit_timer){ .function = note, .arg = &names[i] };
	ddekit_ev_timer_set(&timers[0], now + 3 * MS);
	ddekit_ev_timer_set(&timers[1], now + 1 * MS);
	ddekit_ev_timer_set(&timers[2], now + 2 * MS);
	while (count < 3)
		CHECK(ddekit_ev_poll(UINT64_MAX) >= 0);
	CHECK(order[0] == 1 && order[1] == 2 && order[2] == 0);
	CHECK(ddekit_now() >= now + 3 * MS);
	CHECK(ddekit_ev_poll(0) == 0);
}

static void cancel_other(void *arg)
{
	ddekit_ev_timer_cancel(arg);
	count++;
}

static void a_timer_that_is_cancelled_by_another_one_of_its_time_is_not_called(void)
{
	timers[0] = (struct ddekit_timer){ .function = cancel_other, .arg = &timers[1] };
	timers[1] = (struct ddekit_timer){ .function = cancel_other, .arg = &timers[0] };
	ddekit_ev_timer_set(&timers[0], 1);
	ddekit_ev_timer_set(&timers[1], 1);
	ddekit_ev_poll(0);
	ddekit_ev_poll(0);
	CHECK(count == 1);
}

static void again(void *arg)
{
	count++;
	ddekit_ev_timer_set(arg, 1);
}

static void a_timer_that_sets_itself_to_now_does_not_keep_the_loop(void)
{
	timers[0] = (struct ddekit_timer){ .function = again, .arg = &timers[0] };
	ddekit_ev_timer_set(&timers[0], 1);
	CHECK(ddekit_ev_poll(UINT64_MAX) > 0 && count > 0 && count < 4);
}

static void take(void *arg)
{
	char byte;

	CHECK(read(*(int *)arg, &byte, 1) == 1);
	count++;
}

static void a_descriptor_is_served_while_it_is_readable(void)
{
	CHECK(pipe(pipes) == 0);
	watch = ddekit_ev_watch(pipes[0], take, &pipes[0]);
	CHECK(watch && ddekit_ev_poll(0) == 0);
	CHECK(write(pipes[1], "ab", 2) == 2);
	CHECK(ddekit_ev_poll(UINT64_MAX) == 1 && ddekit_ev_poll(UINT64_MAX) == 1);
	CHECK(ddekit_ev_poll(0) == 0 && count == 2);
}

static struct ddekit_watch *twins[2];

static void end_both(void *arg)
{
	(void)arg;
	count++;
	ddekit_ev_unwatch(twins[0]);
	ddekit_ev_unwatch(twins[1]);
	twins[0] = twins[1] = NULL;
}

static void a_watch_that_another_one_has_ended_is_not_called(void)
{
	int other[2];

	CHECK(pipe(pipes) == 0 && pipe(other) == 0);
	twins[0] = ddekit_ev_watch(pipes[0], end_both, NULL);
	twins[1] = ddekit_ev_watch(other[0], end_both, NULL);
	CHECK(write(pipes[1], "a", 1) == 1 && write(other[1], "a", 1) == 1);
	CHECK(ddekit_ev_poll(UINT64_MAX) == 1 && count == 1);
	CHECK(ddekit_ev_poll(0) == 0);
}

static void polling_ends_at_its_time(void)
{
	const uint64_t until = ddekit_now() + 5 * MS;

	CHECK(ddekit_ev_poll(until) == 0 && ddekit_now() >= until);
}

static void who_polls_for_less_than_before_wakes_up_in_time(void)
{
	const uint64_t now = ddekit_now();

	CHECK(pipe(pipes) == 0);
	watch = ddekit_ev_watch(pipes[0], take, &pipes[0]);
	CHECK(write(pipes[1], "a", 1) == 1);
	/* The host was told of a time that nobody waits for any more. */
	CHECK(ddekit_ev_poll(now + 3600000ull * MS) == 1);
	CHECK(ddekit_ev_poll(now + 5 * MS) == 0 && ddekit_now() < now + 60000ull * MS);
}

static void who_polls_for_more_than_before_sleeps_on(void)
{
	const uint64_t now = ddekit_now();

	CHECK(pipe(pipes) == 0);
	watch = ddekit_ev_watch(pipes[0], take, &pipes[0]);
	CHECK(write(pipes[1], "a", 1) == 1);
	CHECK(ddekit_ev_poll(now + 5 * MS) == 1);
	CHECK(ddekit_ev_poll(now + 20 * MS) == 0 && ddekit_now() >= now + 20 * MS);
}

static const struct test tests[] = {
	TEST(timers_are_called_by_their_time_and_once),
	TEST(a_timer_that_is_cancelled_by_another_one_of_its_time_is_not_called),
	TEST(a_timer_that_sets_itself_to_now_does_not_keep_the_loop),
	TEST(a_descriptor_is_served_while_it_is_readable),
	TEST(a_watch_that_another_one_has_ended_is_not_called),
	TEST(polling_ends_at_its_time),
	TEST(who_polls_for_less_than_before_wakes_up_in_time),
	TEST(who_polls_for_more_than_before_sleeps_on),
};

MAIN(tests)
