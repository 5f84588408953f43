/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/context.h"

#include <fenv.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests.h"

#define STACK 16384

static struct ddekit_ctx *first, *second;
static int steps[8], count;

static void note(int step)
{
	steps[count++] = step;
}

static void ping(void *arg)
{
	note(*(int *)arg);
	ddekit_ctx_switch(second);
	note(3);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void pong(void *arg)
{
	note(*(int *)arg);
	ddekit_ctx_switch(first);
}

static void contexts_go_on_where_they_have_left(void)
{
	int one = 1, two = 2;

	first = ddekit_ctx_create(STACK, ping, &one);
	second = ddekit_ctx_create(STACK, pong, &two);
	CHECK(first && second);
	ddekit_ctx_switch(first);
	CHECK(count == 3 && steps[0] == 1 && steps[1] == 2 && steps[2] == 3);
	CHECK(ddekit_ctx_self() == ddekit_ctx_host());
	ddekit_ctx_destroy(first);
	ddekit_ctx_destroy(second);
}

static uintptr_t seen, frame;

static void look(void *arg)
{
	int here = 0;

	(void)arg;
	seen = (uintptr_t)&here;
	frame = (uintptr_t)__builtin_frame_address(0);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void a_stack_begins_at_a_multiple_of_its_size_and_is_what_runs(void)
{
	first = ddekit_ctx_create(STACK, look, NULL);
	ddekit_ctx_switch(first);
	CHECK((uintptr_t)ddekit_ctx_stack(first) % STACK == 0);
	CHECK((seen & ~(uintptr_t)(STACK - 1)) == (uintptr_t)ddekit_ctx_stack(first));
	/* Where the ABI has a frame: code of the host relies on it. */
	CHECK(frame % 16 == 0);
}

static void a_stack_that_is_none_is_refused(void)
{
	CHECK(!ddekit_ctx_create(4096, look, NULL));
	CHECK(!ddekit_ctx_create(3 * 8192, look, NULL));
}

static volatile unsigned char sink;

static unsigned int recurse(unsigned int depth)
{
	volatile unsigned char room[512];

	room[depth % sizeof(room)] = (unsigned char)depth;
	sink = room[0];
	return depth == 0 ? sink : recurse(depth - 1) + room[1];
}

static void overrun(void *arg)
{
	(void)arg;
	recurse(1000);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void who_overruns_his_stack_is_ended(void)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		ddekit_ctx_switch(ddekit_ctx_create(STACK, overrun, NULL));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGABRT));
}

static void deep(void *arg)
{
	int here = 0;

	(void)arg;
	seen = (uintptr_t)&here;
	recurse(1000);
}

static void call_deep(void *arg)
{
	(void)arg;
	ddekit_ctx_call_host(deep, NULL);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void the_hosts_stack_has_room_for_the_host(void)
{
	first = ddekit_ctx_create(STACK, call_deep, NULL);
	ddekit_ctx_switch(first);
	CHECK((seen & ~(uintptr_t)(STACK - 1)) != (uintptr_t)ddekit_ctx_stack(first));
}

static void overwrite(void *arg)
{
	volatile unsigned char room[256];

	(void)arg;
	for (size_t i = 0; i < sizeof(room); i++)
		room[i] = 0;
}

static void call_again(void *arg)
{
	volatile unsigned char room[256];

	for (size_t i = 0; i < sizeof(room); i++)
		room[i] = 7;
	ddekit_ctx_call_host(overwrite, NULL);
	*(int *)arg = 1;
	for (size_t i = 0; i < sizeof(room); i++)
		CHECK(room[i] == 7);
}

static void call_twice(void *arg)
{
	ddekit_ctx_call_host(call_again, arg);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void a_call_on_the_hosts_stack_may_make_another(void)
{
	int done = 0;

	first = ddekit_ctx_create(STACK, call_twice, &done);
	ddekit_ctx_switch(first);
	CHECK(done == 1);
}

static void round_up(void *arg)
{
	(void)arg;
	fesetround(FE_UPWARD);
	ddekit_ctx_switch(ddekit_ctx_host());
	CHECK(fegetround() == FE_UPWARD);
	ddekit_ctx_switch(ddekit_ctx_host());
}

static void each_context_rounds_as_it_likes(void)
{
	first = ddekit_ctx_create(STACK, round_up, NULL);
	ddekit_ctx_switch(first);
	CHECK(fegetround() == FE_TONEAREST);
	ddekit_ctx_switch(first);
	CHECK(fegetround() == FE_TONEAREST);
}

static const struct test tests[] = {
	TEST(contexts_go_on_where_they_have_left),
	TEST(a_stack_begins_at_a_multiple_of_its_size_and_is_what_runs),
	TEST(a_stack_that_is_none_is_refused),
	TEST(who_overruns_his_stack_is_ended),
	TEST(the_hosts_stack_has_room_for_the_host),
	TEST(a_call_on_the_hosts_stack_may_make_another),
	TEST(each_context_rounds_as_it_likes),
};

MAIN(tests)
