// SPDX-License-Identifier: Apache-2.0 OR MIT
// A user half of the empty driver (runtime/empty) that maps its registers, and tries what it must
// not have. One line for each finding.
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

static int device;
static char message[SPLIT_MESSAGE_MAX] __attribute__((aligned(8)));
static volatile __u32 *window;
static sigjmp_buf touched;

static void caught(int number) { siglongjmp(touched, number); }

// The signal that reading there ends in; 0: none.
static int touch(const volatile __u32 *at)
{
	int number = sigsetjmp(touched, 1);

	if (number == 0)
		(void)*at;
	return number;
}

static volatile __u32 *map(size_t size, int protection, int flags, __u64 offset)
{
	void *at = mmap(NULL, size, protection, flags, device, (off_t)offset);

	return at == MAP_FAILED ? NULL : at;
}

static void try_all(const struct split_next *next, const struct split_call *found, __u64 registers)
{
	size_t size = (size_t)found->arguments[1];
	__u64 offset = (__u64)found->result;
	struct split_call call = { .frame = next->frame, .function = SPLIT_CALL_IO_READ,
				   .arguments = { registers + 8, 4 } };
	volatile __u32 *more = map(2 * size, PROT_READ, MAP_SHARED, offset);
	volatile __u32 *other = map(size, PROT_READ, MAP_SHARED, offset + SPLIT_WINDOW_MAX);
	int status = 0;

	printf("a private window: %s\n",
	       map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, offset) ? "mapped" : strerror(errno));
	printf("a window to run code in: %s\n",
	       map(size, PROT_READ | PROT_EXEC, MAP_SHARED, offset) ? "mapped" : strerror(errno));
	window = map(size, PROT_READ | PROT_WRITE, MAP_SHARED, offset);
	if (!window || !more || !other)
		return;
	printf("to make it executable: %s\n",
	       mprotect((void *)window, size, PROT_READ | PROT_EXEC) ? strerror(errno) : "done");
	printf("behind it: %s\n", strsignal(touch(more + size / 4)));
	printf("one that nobody gave: %s\n", strsignal(touch(other)));
	window[2] = 0x5a;
	ioctl(device, SPLIT_IOC_CALL, &call);
	printf("a write to it is read by a call: %s\n", call.result == 0x5a ? "yes" : "no");
	fflush(stdout);
	if (fork() == 0)
		_exit(touch(window));
	wait(&status);
	printf("a child: %s\n", strsignal(WEXITSTATUS(status)));
}

static void answer(const struct split_next *next)
{
	__u64 registers = ((const struct split_message *)message)->arguments[2];
	struct split_call call = { .frame = next->frame, .function = SPLIT_CALL_WINDOW,
				   .arguments = { registers } };

	if (ioctl(device, SPLIT_IOC_CALL, &call) < 0)
		printf("registers that are not to be mapped: %s\n", strerror(errno));
	else
		try_all(next, &call, registers);
}

int main(void)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION, .layout = 1,
				       .driver = "split_empty" };
	struct split_next next = { .buffer = (unsigned long)message, .size = sizeof(message) };

	signal(SIGBUS, caught);
	signal(SIGSEGV, caught);
	device = open("/dev/" SPLIT_DEVICE, O_RDWR);
	if (device < 0 || ioctl(device, SPLIT_IOC_ATTACH, &attach) < 0) {
		perror("attaching");
		return 1;
	}
	while (ioctl(device, SPLIT_IOC_NEXT, &next) == 0)
		answer(&next);
	if (window)
		printf("when its mapping has gone: %s\n", strsignal(touch(window)));
	return 0;
}
