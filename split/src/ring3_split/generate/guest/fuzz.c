// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A user half that lies: attaches to a driver and answers its upcalls with random calls, handles
// and messages.
//
//     fuzz DRIVER LAYOUT SEED MESSAGES
//
// It ends after so many messages, and says how many of them the kernel took. That nothing of the
// kernel was harmed, its log says. What the driver does by itself may take long (a self test), but
// a minute without an upcall is the end: then not all lies were told.

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "abi.h"
#include "random.h"
#include "tables.h"

#define WAIT_MS 2000
#define QUIET 30

static char *message;

// Mostly what is nearly right: a handle of this frame, a small number, a pointer of the kernel's or
// of ours.
static uint64_t odd(uint64_t frame)
{
	switch (any() % 8) {
	case 0:
		return 0;
	case 1:
		return any() % 70000;
	case 2:
		return SPLIT_HANDLE(SPLIT_FRAME(frame), any() % 40, any() % 4096);
	case 3:
		return SPLIT_HANDLE(SPLIT_SYMBOLS, any() % 60, any() % 512);
	case 4:
		return 0xffff888000000000ULL + any() % (1ULL << 30);
	case 5:
		return (uint64_t)(uintptr_t)message + any() % 4096;
	case 6:
		return SPLIT_HANDLE(SPLIT_FRAME(frame), any() % 40, 0);
	default:
		return any();
	}
}

static int call(int device, uint64_t frame)
{
	struct split_call call = { .frame = any() % 16 ? frame : odd(frame), .size = 1 << 20,
				   .buffer = (uintptr_t)message };
	// No function of the table: what those do with good arguments is the driver's right.
	static const uint32_t functions[] = {
		SPLIT_CALL_ALLOCATE, SPLIT_CALL_FREE, SPLIT_CALL_LOCK,
		SPLIT_CALL_UNLOCK, SPLIT_CALL_PORT_READ, SPLIT_CALL_IO_READ,
		SPLIT_CALL_IO_WRITE, SPLIT_CALL_WINDOW, 0xffff,
	};

	call.function = any() % 64 ? functions[any() % 9] : (uint32_t)any() | 0x8000;
	if (any() % 32 == 0)
		call.buffer = odd(frame);
	for (int i = 0; i < 8; i++)
		call.arguments[i] = odd(frame);
	if (call.function == SPLIT_CALL_ALLOCATE && any() % 4)
		call.arguments[0] %= 5000;
	if (call.function == SPLIT_CALL_LOCK || call.function == SPLIT_CALL_UNLOCK)
		call.arguments[1] %= 2;
	return ioctl(device, SPLIT_IOC_CALL, &call) == 0;
}

int main(int argc, char **argv)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION };
	struct split_next next = { .size = 1 << 20, .wait_ms = WAIT_MS };
	long messages, sent = 0, taken = 0;
	int quiet = 0; // waits without an upcall, one behind the other
	int device = open("/dev/" SPLIT_DEVICE, O_RDWR);

	if (argc != 5 || device < 0) {
		fprintf(stderr, "fuzz DRIVER LAYOUT SEED MESSAGES, with /dev/" SPLIT_DEVICE "\n");
		return 2;
	}
	snprintf(attach.driver, sizeof(attach.driver), "%s", argv[1]);
	attach.layout = strtoull(argv[2], NULL, 16);
	begin(strtoull(argv[3], NULL, 0));
	messages = atol(argv[4]);
	message = malloc(1 << 20);
	next.buffer = (uintptr_t)message;
	// Before it is attached, nothing may be done.
	for (int i = 0; i < 100; i++)
		taken += call(device, any());
	if (taken || ioctl(device, any() | 0x100000, message) == 0) {
		printf("a call was taken before the attach\n");
		return 1;
	}
	if (ioctl(device, SPLIT_IOC_ATTACH, &attach) < 0) {
		perror("attach");
		return 1;
	}
	while (sent < messages) {
		struct split_message *head = (struct split_message *)message;
		uint32_t length;

		if (ioctl(device, SPLIT_IOC_NEXT, &next) < 0) {
			if (errno == EAGAIN && ++quiet == QUIET) {
				printf("no more upcalls after %ld of %ld messages, %ld calls "
				       "taken\n", sent, messages, taken);
				return 1;
			}
			next.frame = 0;
			continue;
		}
		quiet = 0;
		length = head->length;
		for (long n = any() % 40; n >= 0; n--, sent++) {
			// What comes back is random where the kernel reads it, in places and in
			// pointers.
			for (uint64_t i = any() % 8; i; i--) {
				uint64_t value = odd(next.frame);
				uint64_t at = any() % (length - 8);

				memcpy(message + (any() % 4 ? at & ~7ULL : at), &value, 8);
			}
			taken += call(device, next.frame);
		}
		next.result = (int64_t)odd(next.frame) % 4096;
	}
	printf("%ld messages, %ld calls taken\n", sent, taken);
	return 0;
}
