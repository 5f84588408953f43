/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a switch between stacks tells AddressSanitizer and valgrind, which else take it for one
 * stack that grows by gigabytes.
 */
#ifndef DDEKIT_SRC_STACK_CHECK_H
#define DDEKIT_SRC_STACK_CHECK_H

#include <stddef.h>

/* A stack as a checker knows it. The host's bounds are learned when it is left. */
struct stack_check {
	const void *bottom;
	size_t len;
	void *fake;
	unsigned int number;
};

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static inline void stack_check_leave(struct stack_check *from, const struct stack_check *to)
{
	__sanitizer_start_switch_fiber(&from->fake, to->bottom, to->len);
}

static inline void stack_check_arrive(struct stack_check *on, struct stack_check *from)
{
	__sanitizer_finish_switch_fiber(on->fake, &from->bottom, &from->len);
}

/* What frames that nobody has left have marked is not for the next one who has this memory. */
static inline void stack_check_forget(struct stack_check *stack)
{
	__asan_unpoison_memory_region(stack->bottom, stack->len);
}
#else
static inline void stack_check_leave(struct stack_check *from, const struct stack_check *to)
{
	(void)from, (void)to;
}

static inline void stack_check_arrive(struct stack_check *on, struct stack_check *from)
{
	(void)on, (void)from;
}

static inline void stack_check_forget(struct stack_check *stack)
{
	(void)stack;
}
#endif

/*
 * Some instructions without effect where valgrind is not, when a context is made and when it goes.
 */
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>

static inline void stack_check_register(struct stack_check *stack)
{
	stack->number =
		(unsigned int)VALGRIND_STACK_REGISTER(stack->bottom,
						      (const char *)stack->bottom + stack->len - 1);
}

static inline void stack_check_unregister(struct stack_check *stack)
{
	VALGRIND_STACK_DEREGISTER(stack->number);
}
#else
static inline void stack_check_register(struct stack_check *stack)
{
	(void)stack;
}

static inline void stack_check_unregister(struct stack_check *stack)
{
	(void)stack;
}
#endif

/*
 * A call begins at `stack`, another one than that on which it is made. memcheck sees switch and
 * call as one step, and the return address below what it knows to be in use.
 */
#if defined(DDEKIT_VALGRIND)
#include <valgrind/memcheck.h>

static inline void stack_check_call(void *stack)
{
	VALGRIND_MAKE_MEM_UNDEFINED((char *)stack - sizeof(void *), sizeof(void *));
}
#else
static inline void stack_check_call(void *stack)
{
	(void)stack;
}
#endif

#endif
