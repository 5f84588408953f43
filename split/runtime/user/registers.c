// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Registers: by calls, or where the plan maps them by loads and stores to a window. A window is
 * good until the kernel half lets its mapping go, so it is asked for anew in each upcall and after
 * each call of the kernel; what a process has once mapped it keeps.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "split.h"

struct split_window {
	const struct split_window *next;
	unsigned long place, size; /* as the kernel says */
	char *at;
};

static pthread_mutex_t windows_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct split_window *windows;

/* NULL where the system has no room for it. */
static const struct split_window *opened(unsigned long place, unsigned long size)
{
	struct split_window *window = malloc(sizeof(*window));
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, split_device, (off_t)place);

	if (!window || at == MAP_FAILED) {
		free(window);
		return NULL;
	}
	*window = (struct split_window){ .next = windows, .place = place, .size = size, .at = at };
	return windows = window;
}

static const struct split_window *find_window(unsigned long registers)
{
	struct split_call call = { .function = SPLIT_CALL_WINDOW, .arguments = { registers } };
	const struct split_window *window;

	if (!split_driver.maps || split_ioctl_call(&call))
		return NULL;
	pthread_mutex_lock(&windows_lock);
	for (window = windows; window && window->place != (unsigned long)call.result;
	     window = window->next)
		;
	if (!window)
		window = opened((unsigned long)call.result, call.arguments[1]);
	pthread_mutex_unlock(&windows_lock);
	return window;
}

/* Where a register is in this process; NULL: it is reached by calls. */
static volatile void *in_window(unsigned long handle, unsigned long size)
{
	unsigned long registers = handle - SPLIT_OFFSET(handle);

	if (split_frame->registers != registers) {
		split_frame->window = find_window(registers);
		split_frame->registers = registers;
	}
	if (!split_frame->window || SPLIT_OFFSET(handle) + size > split_frame->window->size)
		return NULL;
	return split_frame->window->at + SPLIT_OFFSET(handle);
}

static unsigned long handle_of(const volatile void *address, const char *what)
{
	unsigned long handle = split_frame ? split_handle(split_frame,
							  (const void *)address) : SPLIT_BAD_HANDLE;

	if (handle == SPLIT_BAD_HANDLE)
		split_abandon("%s of a register in memory that only the user half has", what);
	return handle;
}

unsigned int split_io_read(const volatile void *address, unsigned long size)
{
	unsigned long handle = handle_of(address, "a read");
	const volatile void *at = in_window(handle, size);

	if (!at)
		return (unsigned int)split_kernel(SPLIT_CALL_IO_READ, handle, size, 0);
	return size == 1 ? *(const volatile __u8 *)at : size == 2 ? *(const volatile __u16 *)at :
	       *(const volatile __u32 *)at;
}

void split_io_write(volatile void *address, unsigned long size, unsigned int value)
{
	unsigned long handle = handle_of(address, "a write");
	volatile void *at = in_window(handle, size);

	if (!at)
		split_kernel(SPLIT_CALL_IO_WRITE, handle, size, value);
	else if (size == 1)
		*(volatile __u8 *)at = (__u8)value;
	else if (size == 2)
		*(volatile __u16 *)at = (__u16)value;
	else
		*(volatile __u32 *)at = value;
}

unsigned int split_port_read(unsigned long port, unsigned long size)
{
	return (unsigned int)split_kernel(SPLIT_CALL_PORT_READ, port, size, 0);
}

void split_port_write(unsigned long port, unsigned long size, unsigned int value)
{
	split_kernel(SPLIT_CALL_PORT_WRITE, port, size, value);
}
