/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/check.h"

#if defined(__SANITIZE_ADDRESS__)

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* How many freed objects are remembered, and how many callers of who has freed them. */
#define FREED 4096u
#define DEPTH 10u
#define TEXT 400

struct freed {
	uintptr_t object;
	size_t len;
	void *by[DEPTH];
};

/* The youngest at the end, which is before `next`. */
static struct freed freed[FREED];
static unsigned int next;

/* Leaks are not looked for: the kernel's memory is no heap of the C library's. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0:exitcode=99:handle_segv=1:allow_user_segv_handler=0:"
	       "detect_stack_use_after_return=0";
}

void ddekit_check_open(const void *memory, size_t len, bool filled)
{
	(void)filled;
	__asan_unpoison_memory_region(memory, len);
}

void ddekit_check_close(const void *memory, size_t len)
{
	__asan_poison_memory_region(memory, len);
}

void ddekit_check_allocated(const void *object, size_t len, bool filled)
{
	ddekit_check_open(object, len, filled);
}

/*
 * Who calls, by the chain of frames, which everything here is compiled with; the words of other
 * libraries' frames end it.
 */
__attribute__((no_sanitize_address)) static void trace(void *by[DEPTH], const uintptr_t *frame)
{
	unsigned int depth = 0;

	while (depth < DEPTH && frame) {
		const uintptr_t *up = (const uintptr_t *)frame[0];

		/* The call, and not what comes after it. */
		by[depth++] = (void *)(frame[1] - 1);
		if (up <= frame || (uintptr_t)up - (uintptr_t)frame > 1u << 16 ||
		    ((uintptr_t)up & 7) != 0)
			break;
		frame = up;
	}
	if (depth < DEPTH)
		by[depth] = NULL;
}

static void print(void *const by[DEPTH], unsigned int number)
{
	char text[TEXT];

	for (unsigned int i = 0; i < DEPTH && by[i]; i++) {
		__sanitizer_symbolize_pc(by[i], "in %f %S", text, sizeof(text));
		dprintf(STDERR_FILENO, "    #%u %p %s\n", number + i, by[i], text);
	}
}

void ddekit_check_print(const void *place, const void *frame)
{
	void *by[DEPTH] = { (void *)(uintptr_t)place };

	print(by, 0);
	trace(by, frame);
	print(by, 1);
}

void ddekit_check_returned(const void *memory, size_t len)
{
	ddekit_check_freed(memory, len);
}

void ddekit_check_freed(const void *object, size_t len)
{
	struct freed *one = &freed[next++ % FREED];

	one->object = (uintptr_t)object;
	one->len = len;
	trace(one->by, __builtin_frame_address(0));
	__asan_poison_memory_region(object, len);
}

/* A device that is made of bytes wants to know. */
#ifndef DDEKIT_FUZZ
void ddekit_check_device_writes(const void *memory, size_t len)
{
	(void)memory, (void)len;
}

void ddekit_check_device_done(const void *memory)
{
	(void)memory;
}
#endif

static void print_freed(const struct freed *one, uintptr_t address)
{
	dprintf(STDERR_FILENO, "%#lx is byte %zu of %zu that were freed by\n",
		(unsigned long)address, (size_t)(address - one->object), one->len);
	print(one->by, 0);
}

/* ASan calls it before its report. */
void __asan_on_error(void);
void __asan_on_error(void)
{
	const uintptr_t address = (uintptr_t)__asan_get_report_address();

	for (unsigned int back = 1; back <= FREED && back <= next; back++) {
		const struct freed *one = &freed[(next - back) % FREED];

		if (address >= one->object && address - one->object < one->len) {
			print_freed(one, address);
			return;
		}
	}
}

#elif defined(DDEKIT_VALGRIND)

#include <valgrind/memcheck.h>

void ddekit_check_open(const void *memory, size_t len, bool filled)
{
	if (filled)
		VALGRIND_MAKE_MEM_DEFINED(memory, len);
	else
		VALGRIND_MAKE_MEM_UNDEFINED(memory, len);
}

void ddekit_check_close(const void *memory, size_t len)
{
	VALGRIND_MAKE_MEM_NOACCESS(memory, len);
}

void ddekit_check_returned(const void *memory, size_t len)
{
	ddekit_check_close(memory, len);
}

void ddekit_check_allocated(const void *object, size_t len, bool filled)
{
	VALGRIND_MALLOCLIKE_BLOCK(object, len, 0, filled);
}

void ddekit_check_freed(const void *object, size_t len)
{
	(void)len;
	VALGRIND_FREELIKE_BLOCK(object, 0);
}

void ddekit_check_device_writes(const void *memory, size_t len)
{
	VALGRIND_MAKE_MEM_DEFINED(memory, len);
}

void ddekit_check_device_done(const void *memory)
{
	(void)memory;
}

void ddekit_check_print(const void *place, const void *frame)
{
	(void)frame;
	VALGRIND_PRINTF_BACKTRACE("at %p\n", place);
}

#else
typedef int ddekit_check_is_not_compiled_in;
#endif
