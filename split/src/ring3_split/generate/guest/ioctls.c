// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Strangers at /dev/ring3-split, while an honest user half serves its driver: threads which open
// it, close what another one uses, and call what it has and has not, with arguments that are mostly
// wrong.
//
//     ioctls DRIVER LAYOUT SEED MESSAGES
//
// Now and then one attaches, when there is no other user half, answers a few upcalls with anything,
// and is gone. It ends after so many messages, and says how many of them the kernel took.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "random.h"

#define THREADS 6
#define FILES 8
#define WAIT_MS 30
#define PAGE 4096

static const char *driver;
static uint64_t layout, seed;
static atomic_long left, taken, attached;
static atomic_int files[FILES]; // 0: closed
static char *edge;		// the end of the last page that can be read
static char *fixed;		// can be read only

static void interrupted(int number) { (void)number; }

// An address as the kernel gets it: good, at an edge, read only, or none.
static void *anywhere(void *good)
{
	switch (any() % 12) {
	case 0:
		return NULL;
	case 1:
		return edge - any() % 96;
	case 2:
		return fixed + any() % PAGE;
	case 3:
		return (void *)(0xffff888000000000ULL + any() % (1ULL << 30));
	case 4:
		return (void *)any();
	default:
		return good;
	}
}

static void fill(void *to, size_t size)
{
	uint64_t *words = to;

	for (size_t i = 0; i < size / 8; i++)
		words[i] = any() % 3 ? any() % 65536 : any();
}

static int request(int file, unsigned long command, void *argument)
{
	int done = ioctl(file, command, argument);

	if (done >= 0)
		atomic_fetch_add(&taken, 1);
	return done;
}

// As a user half would; but without having attached, or with an answer that is none.
static void serve(int file)
{
	static __thread char message[1 << 17];
	struct split_next next = { .size = any() % 2 ? sizeof(message) : any() % 4096,
				   .wait_ms = any() % 64 ? 1 + any() % WAIT_MS : 0 };
	struct split_call call;

	next.buffer = (uint64_t)(uintptr_t)anywhere(message);
	if (any() % 4 == 0)
		next.frame = any();
	if (request(file, SPLIT_IOC_NEXT, anywhere(&next)) < 0)
		return;
	for (uint64_t n = any() % 16; n; n--) {
		fill(&call, sizeof(call));
		call.frame = next.frame;
		call.function = any() % 2 ? any() % 96 : (any() % 2 ? SPLIT_CALL_ALLOCATE :
							  SPLIT_CALL_PORT_READ) + any() % 8;
		call.buffer = (uint64_t)(uintptr_t)anywhere(message);
		call.size = any() % 4 ? sizeof(message) : any();
		for (int i = 0; i < 8; i++)
			if (any() % 2)
				call.arguments[i] = message[any() % 64 * 8] ?
						    ((uint64_t *)message)[any() % 512] : 0;
		atomic_fetch_sub(&left, 1);
		request(any() % 8 ? file : atomic_load(&files[any() % FILES]), SPLIT_IOC_CALL,
			anywhere(&call));
	}
	next.result = (int64_t)any() % 4096;
	next.failed = any() % 4 == 0;
	request(file, SPLIT_IOC_NEXT, &next);
}

static void attach(int file)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION, .layout = layout };

	snprintf(attach.driver, sizeof(attach.driver), "%s", driver);
	switch (any() % 6) {
	case 0:
		fill(&attach, sizeof(attach));
		break;
	case 1:
		attach.layout ^= 1ULL << any() % 64;
		break;
	case 2:
		memset(attach.driver, 'e', sizeof(attach.driver)); // no end
		break;
	}
	if (request(file, SPLIT_IOC_ATTACH, anywhere(&attach)) < 0)
		return;
	atomic_fetch_add(&attached, 1);
	for (uint64_t n = any() % 32; n; n--)
		serve(file);
}

static void other(int file)
{
	char bytes[256];
	struct iovec list[2] = { { anywhere(bytes), any() % 512 }, { anywhere(bytes), any() } };
	struct pollfd wait = { .fd = file, .events = (short)any() };
	void *mapped;
	pid_t child;

	switch (any() % 10) {
	case 0:
		mapped = mmap(NULL, PAGE, any() % 8, any() % 2 ? MAP_SHARED : MAP_PRIVATE, file,
			      (off_t)(any() % 4 * SPLIT_WINDOW_MAX + any() % 16 * PAGE));
		if (mapped != MAP_FAILED)
			munmap(mapped, PAGE);
		break;
	case 1:
		if (read(file, anywhere(bytes), any() % 512) >= 0)
			atomic_fetch_add(&taken, 1);
		break;
	case 2:
		if (writev(file, list, 2) >= 0)
			atomic_fetch_add(&taken, 1);
		break;
	case 3:
		lseek(file, (off_t)any(), any() % 5);
		break;
	case 4:
		poll(&wait, 1, 0);
		break;
	case 5:
		fcntl(file, any() % 2 ? F_SETFL : F_SETLEASE, (int)any());
		break;
	case 6:
		// A process that has the file, too, and goes with it.
		if (any() % 16)
			break;
		child = fork();
		if (child == 0) {
			ioctl(file, SPLIT_IOC_NEXT, NULL);
			_exit(0);
		}
		if (child > 0)
			waitpid(child, NULL, 0);
		break;
	default:
		fsync(file);
	}
}

// The commands that there are, those with another size or direction, and any.
static void odd(int file)
{
	static const unsigned long commands[] = { SPLIT_IOC_ATTACH, SPLIT_IOC_NEXT,
						  SPLIT_IOC_CALL };
	uint64_t argument[64];
	struct split_next *next = (struct split_next *)(void *)argument;
	unsigned long command = commands[any() % 3];

	fill(argument, sizeof(argument));
	if (command == SPLIT_IOC_NEXT)
		next->wait_ms = 1 + any() % WAIT_MS;
	switch (any() % 3) {
	case 0:
		command ^= 1UL << any() % 32;
		break;
	case 1:
		command = any();
		break;
	}
	request(file, command, anywhere(argument));
}

static void reopen(int slot)
{
	int file = any() % 4 ? open("/dev/"
				    SPLIT_DEVICE, any() % 2 ? O_RDWR : O_RDONLY | O_NONBLOCK) : 0;
	int old = atomic_exchange(&files[slot], file < 0 ? 0 : file);

	if (old)
		close(old);
}

static void *stranger(void *number)
{
	begin(seed * THREADS + (uint64_t)(uintptr_t)number);
	while (atomic_fetch_sub(&left, 1) > 0) {
		int slot = (int)(any() % FILES), file = atomic_load(&files[slot]);

		switch (file ? any() % 16 : 0) {
		case 0:
			reopen(slot);
			break;
		case 1:
			attach(file);
			break;
		case 2 ... 7:
			serve(file);
			break;
		case 8 ... 12:
			odd(file);
			break;
		default:
			other(file);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = interrupted };
	pthread_t threads[THREADS];
	long messages;

	if (argc != 5) {
		fprintf(stderr, "usage: ioctls DRIVER LAYOUT SEED MESSAGES\n");
		return 2;
	}
	driver = argv[1];
	layout = strtoull(argv[2], NULL, 16);
	seed = strtoull(argv[3], NULL, 0);
	messages = atol(argv[4]);
	atomic_store(&left, messages);
	edge = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fixed = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (edge == MAP_FAILED || fixed == MAP_FAILED || munmap(edge + PAGE, PAGE)) {
		perror("memory");
		return 1;
	}
	edge += PAGE;
	// Who waits for ever is woken by a signal.
	sigaction(SIGUSR1, &action, NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, stranger, (void *)i)) {
			perror("threads");
			return 1;
		}
	while (atomic_load(&left) > 0) {
		usleep(50000);
		for (int i = 0; i < THREADS; i++)
			pthread_kill(threads[i], SIGUSR1);
	}
	for (int i = 0; i < THREADS; i++) {
		// It may have waited for ever a moment ago.
		while (pthread_tryjoin_np(threads[i], NULL) == EBUSY) {
			pthread_kill(threads[i], SIGUSR1);
			usleep(10000);
		}
	}
	printf("%ld messages, %ld taken, %ld attached\n", messages, atomic_load(&taken),
	       atomic_load(&attached));
	return 0;
}
