// SPDX-License-Identifier: Apache-2.0 OR MIT
// A user half that knows types, and lies: it makes, sets and frees objects and says what it gets, a
// line for each finding.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "tables.h"
#include "objects.h"

static int device;
static char messages[2][SPLIT_MESSAGE_MAX] __attribute__((aligned(8)));
static struct split_next frames[2] = {
	{ .size = SPLIT_MESSAGE_MAX, .wait_ms = 20000 },
	{ .size = SPLIT_MESSAGE_MAX, .wait_ms = 20000 },
};

// The next upcall, with the answer to the one before.
static int next(int which)
{
	frames[which].buffer = (__u64)messages[which];
	if (ioctl(device, SPLIT_IOC_NEXT, &frames[which]) == 0)
		return 1;
	frames[which].frame = 0;
	return 0;
}

static __u64 argument(int which) { return ((struct split_message *)messages[which])->arguments[0]; }

static long call_of(int which, unsigned int function, __u64 first, __u64 second)
{
	struct split_call call = { .frame = frames[which].frame, .function = function,
				   .size = SPLIT_MESSAGE_MAX, .arguments = { first, second } };

	call.buffer = (__u64)messages[which];
	return ioctl(device, SPLIT_IOC_CALL, &call) < 0 ? -errno : call.result;
}

static long call(unsigned int function, __u64 first) { return call_of(0, function, first, 0); }

// The members of the object of a handle, in the message.
static __u64 *members(int which, __u64 handle)
{
	const struct split_message *head = (const struct split_message *)messages[which];
	unsigned int at = sizeof(*head);

	for (unsigned int i = 0; i < head->parts; i++) {
		const struct split_part *part = (const struct split_part *)(messages[which] + at);

		at += sizeof(*part);
		if (part->handle == handle)
			return (__u64 *)(messages[which] + at);
		at = (at + part->length + 7) & ~7U;
	}
	printf("no object %llx\n", handle);
	exit(1);
}

static const char *said(long result) { return result < 0 ? strerror((int)-result) : "done"; }

static void a_thing_that_is_freed(void)
{
	__u64 thing = (__u64)call(MAKE, 0);

	members(0, argument(0))[0] = thing;
	printf("a thing is held: %s\n", said(call(HOLD, thing)));
	printf("a thing ends: %s\n", said(call(END, thing)));
	printf("what led to it: %llx, %llx\n", members(0, argument(0))[0],
	       members(0, argument(0))[1]);
	printf("it ends again: %s\n", said(call(END, thing)));
	printf("it is held again: %s\n", said(call(HOLD, thing)));
	members(0, argument(0))[0] = thing;
	// Where it lay lies something else.
	for (int i = 0; i < 20; i++)
		call(SPLIT_CALL_ALLOCATE, sizeof(struct thing));
	printf("it is used as it was: %s\n", said(call(HOLD, thing)));
	thing = (__u64)call(MAKE, 0);
	printf("another thing is held: %s\n", said(call(HOLD, thing)));
	printf("and ends: %s\n", said(call(END, thing)));
}

static void memory_that_the_kernel_half_goes_by(void)
{
	__u64 part = (__u64)call(SPLIT_CALL_ALLOCATE, sizeof(struct part));

	members(0, argument(0))[2] = part;
	call(SPLIT_CALL_STEP, 0);
	members(0, part)[0] = 42;
	printf("its memory is freed: %s\n", said(call(SPLIT_CALL_FREE, part)));
	printf("and again: %s\n", said(call(SPLIT_CALL_FREE, part)));
	// Where it lay would lie zeroes.
	for (int i = 0; i < 20; i++)
		call(SPLIT_CALL_ALLOCATE, sizeof(struct part));
}

// It answers with an error, or with none, and has not given back what it took.
static void a_thing_that_stays_held(long answer)
{
	__u64 thing = (__u64)call(MAKE, 0);

	members(0, argument(0))[0] = thing;
	call(SPLIT_CALL_STEP, 0);
	printf("a thing is kept: %s\n", said(call(HOLD, thing)));
	frames[0].result = answer;
}

// 1 for a MiB that came and went.
static long memory_that_only_it_knows(void)
{
	long memory = call(SPLIT_CALL_ALLOCATE, SPLIT_MESSAGE_MAX);

	return memory > 0 && call(SPLIT_CALL_FREE, (__u64)memory) == 0;
}

// Two upcalls at once know a thing, and one of them has it end.
static void two_at_once(void)
{
	__u64 thing = (__u64)call(MAKE, 0), other;

	members(0, argument(0))[0] = thing;
	call(SPLIT_CALL_STEP, 0);
	if (!next(1))
		return;
	other = members(1, argument(1))[0];
	printf("the other one holds it: %s\n", said(call_of(1, HOLD, other, 0)));
	call_of(1, DROP, other, 0);
	printf("it ends in one: %s\n", said(call(END, thing)));
	printf("it is held in the other: %s\n", said(call_of(1, HOLD, other, 0)));
	printf("the other goes on: %s\n", said(call_of(1, SPLIT_CALL_STEP, 0, 0)));
	frames[1].wait_ms = 1;
	next(1);
}

// What waits for the work item that the upcall is of.
static void for_itself(void)
{
	printf("it waits for itself: %s\n", said(call(WAIT, 0)));
}

// Two processes answer an upcall each, and call what runs alone at once.
static void one_at_a_time(void)
{
	int child;

	if (!next(1))
		return;
	fflush(stdout);
	child = fork();
	printf("%s turn: %s\n", child ? "one's" : "the other's", said(call_of(!child, TURN, 0, 0)));
	if (!child)
		exit(0);
	waitpid(child, NULL, 0);
	frames[1].wait_ms = 1;
	next(1);
}

// The upcall is a part of what runs alone.
static void a_part_of_it(void)
{
	printf("a part's turn: %s\n", said(call(TURN, 0)));
}

static void rtnl(void)
{
	printf("rtnl is given back: %s\n", said(call(GIVE_RTNL, 0)));
	printf("rtnl is taken: %s\n", said(call(TAKE_RTNL, 0)));
	printf("rtnl is taken again: %s\n", said(call(TAKE_RTNL, 0)));
	printf("rtnl is given back then: %s\n", said(call(GIVE_RTNL, 0)));
	printf("rtnl is kept: %s\n", said(call(TAKE_RTNL, 0)));
	// Until the upcall has failed.
	sleep(3);
}

static void rtnl_of_who_waits(void) { printf("rtnl of who waits: %s\n", said(call(TAKE_RTNL, 0))); }

// A text without its zero, by a member and by a call.
static void texts(void)
{
	__u64 box = argument(0), text = box + 24;

	memset(&members(0, box)[3], 'm', 8);
	printf("a text is filled to its end: %s\n", said(call_of(0, FILL, text, 8)));
	printf("a part of a text is filled: %s\n", said(call_of(0, FILL, text, 2)));
}

// What nobody has initialised is taken, and initialised while it is held.
static void mutexes(void)
{
	__u64 bare = SPLIT_HANDLE(SPLIT_SYMBOLS, BARE, 0);

	printf("a bare mutex is taken: %s\n", said(call(SPLIT_CALL_LOCK, bare)));
	printf("it is initialised: %s\n", said(call(SPLIT_CALL_MUTEX_INIT, bare)));
	printf("it is taken then: %s\n", said(call(SPLIT_CALL_LOCK, bare)));
	printf("it is initialised when held: %s\n", said(call(SPLIT_CALL_MUTEX_INIT, bare)));
	printf("it is given back: %s\n", said(call(SPLIT_CALL_UNLOCK, bare)));
	printf("it is initialised again: %s\n", said(call(SPLIT_CALL_MUTEX_INIT, bare)));
}

// One upcall has a mutex of the driver's, and hears of no end while another one frees many things.
static void more_ends_than_are_remembered(void)
{
	__u64 lasting = SPLIT_HANDLE(SPLIT_SYMBOLS, LASTING, 0);

	printf("the lasting mutex is taken: %s\n", said(call(SPLIT_CALL_LOCK, lasting)));
	if (!next(1))
		return;
	for (int i = 0; i < 70; i++)
		call_of(1, END, (__u64)call_of(1, MAKE, 0, 0), 0);
	frames[1].wait_ms = 1;
	next(1);
}

int main(int argc, char **argv)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION, .layout = 1,
				       .driver = "split_objects" };
	long many = argc > 1 ? atol(argv[1]) : 0, nulls = 0, memory = 0;

	device = open("/dev/" SPLIT_DEVICE, O_RDWR);
	if (device < 0 || ioctl(device, SPLIT_IOC_ATTACH, &attach) < 0)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (next(0))
		a_thing_that_is_freed();
	if (next(0))
		memory_that_the_kernel_half_goes_by();
	if (next(0))
		two_at_once();
	if (next(0))
		for_itself();
	if (next(0))
		a_part_of_it();
	frames[1].wait_ms = 20000;
	if (next(0))
		one_at_a_time();
	frames[0].wait_ms = 20000;
	if (next(0))
		rtnl();
	if (next(0))
		rtnl_of_who_waits();
	if (next(0))
		texts();
	if (next(0))
		mutexes();
	frames[1].wait_ms = 20000;
	if (next(0))
		more_ends_than_are_remembered();
	if (next(0))
		a_thing_that_stays_held(-EIO);
	if (next(0))
		a_thing_that_stays_held(0);
	for (long i = 0; i < many && next(0); i++) {
		nulls += !argument(0);
		memory += memory_that_only_it_knows();
	}
	frames[0].wait_ms = 1;
	next(0);
	printf("%ld of %ld upcalls had no object\n", nulls, many);
	printf("%ld MiB came and went\n", memory);
	return 0;
}
