// SPDX-License-Identifier: Apache-2.0 OR MIT
// A user half that has combolocks as it should not. One line for each finding.
//
//     holder DRIVER LAYOUT COMBOLOCK SPINLOCK MILLISECONDS
//
// COMBOLOCK and SPINLOCK are offsets in what its entries have as their first argument: of a lock
// that the plan names, and of another. The first upcall tries what must not be had, and holds the
// lock for so long; the second ends with it; in the third it waits for its end.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

static int device;
static char message[SPLIT_MESSAGE_MAX] __attribute__((aligned(8)));
static __u64 frame;

static const char *called(unsigned int function, __u64 handle, __u64 spins)
{
	struct split_call call = { .frame = frame, .function = function, .size = sizeof(message),
				   .arguments = { handle, spins } };

	call.buffer = (unsigned long)message;
	return ioctl(device, SPLIT_IOC_CALL, &call) < 0 ? strerror(errno) : "done";
}

static long now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

// What it costs whom.
static void measure(__u64 combolock)
{
	for (int i = 0; i < 20; i++) {
		long start = now_us(), taken, given;

		called(SPLIT_CALL_LOCK, combolock, 1);
		taken = now_us();
		called(SPLIT_CALL_UNLOCK, combolock, 1);
		given = now_us();
		called(SPLIT_CALL_STEP, 0, 0);
		printf("lock %ld us, unlock %ld us, an empty call %ld us\n", taken - start,
		       given - taken, now_us() - given);
	}
}

static void answer(int number, __u64 object, __u64 combolock, __u64 spinlock, unsigned int ms)
{
	if (number > 0) {
		// What has waited comes in.
		sleep(3);
		printf("upcall %d takes it: %s\n", number,
		       called(SPLIT_CALL_LOCK, object + combolock, 1));
		fflush(stdout);
		if (number > 1)
			pause();
		return;
	}
	printf("unlock before lock: %s\n", called(SPLIT_CALL_UNLOCK, object + combolock, 1));
	printf("a spinlock that the plan does not name: %s\n",
	       called(SPLIT_CALL_LOCK, object + spinlock, 1));
	printf("beside it: %s\n", called(SPLIT_CALL_LOCK, object + combolock + 1, 1));
	printf("as a mutex: %s\n", called(SPLIT_CALL_LOCK, object + combolock, 0));
	printf("an address: %s\n", called(SPLIT_CALL_LOCK, 0xffff888000000000ULL, 1));
	printf("nothing: %s\n", called(SPLIT_CALL_LOCK, 0, 1));
	measure(object + combolock);
	printf("lock: %s\n", called(SPLIT_CALL_LOCK, object + combolock, 1));
	printf("lock again: %s\n", called(SPLIT_CALL_LOCK, object + combolock, 1));
	fflush(stdout);
	usleep(ms * 1000);
	printf("unlock: %s\n", called(SPLIT_CALL_UNLOCK, object + combolock, 1));
	printf("unlock again: %s\n", called(SPLIT_CALL_UNLOCK, object + combolock, 1));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION };
	struct split_next next = { .buffer = (unsigned long)message, .size = sizeof(message) };

	device = open("/dev/" SPLIT_DEVICE, O_RDWR);
	if (argc != 6 || device < 0)
		return 2;
	snprintf(attach.driver, sizeof(attach.driver), "%s", argv[1]);
	attach.layout = strtoull(argv[2], NULL, 16);
	if (ioctl(device, SPLIT_IOC_ATTACH, &attach) < 0) {
		perror("attaching");
		return 1;
	}
	for (int number = 0; ioctl(device, SPLIT_IOC_NEXT, &next) == 0; number++) {
		frame = next.frame;
		answer(number, ((struct split_message *)message)->arguments[0],
		       strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0),
		       (unsigned int)atoi(argv[5]));
	}
	return 0;
}
