/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/context.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ddekit/log.h"
#include "stack_check.h"

#define GUARD 4096u
#define STACK_MIN 8192u
/* What the System V ABI lets a function use below its stack pointer. */
#define RED_ZONE 128u

struct ddekit_ctx {
	/* Where it has left, while it does not run. */
	void *saved;
	unsigned char *stack;
	void (*entry)(void *arg);
	void *arg;
	struct stack_check check;
	/* What the host was asked for, stack and guard in it. */
	void *mapping;
	size_t mapped;
};

/* Pushed by ddekit_stack_switch, from the lowest address on. */
struct frame {
	uint32_t mxcsr;
	uint16_t x87;
	uint16_t unused;
	uint64_t r15, r14, r13, r12, rbx, rbp;
	void (*start)(void);
	/* So that the stack is aligned, as the ABI has it before a call. */
	uint64_t none[2];
};

/* The state that the ABI has a program begin with. */
#define MXCSR 0x1f80
#define X87 0x037f

void ddekit_stack_switch(void **save, void *load);
void ddekit_stack_start(void);
void ddekit_stack_call(void *stack, void (*function)(void *arg), void *arg);

static struct ddekit_ctx host;
static struct ddekit_ctx *self = &host;
/* The host's stack has a call on it, which its saved pointer does not know of. */
static bool on_host;
/* Who has left for the one that runs. */
static struct ddekit_ctx *left;

static void run_entry(void *arg)
{
	struct ddekit_ctx *ctx = arg;

	stack_check_arrive(&ctx->check, &left->check);
	ctx->entry(ctx->arg);
}

/* Where stacks lie, one behind the other, if they are to lie at the same places each time. */
static uintptr_t place;

void ddekit_ctx_stand_still(void)
{
	place = 0x210000000000;
}

/* Where the next one is to lie; NULL leaves it to the host. */
static void *next_place(size_t len)
{
	const uintptr_t here = place;

	if (place != 0)
		place += len;
	return (void *)here;
}

struct ddekit_ctx *ddekit_ctx_create(size_t stack, void (*entry)(void *arg), void *arg)
{
	struct ddekit_ctx *ctx;
	struct frame *frame;
	uintptr_t begin;

	if (stack < STACK_MIN || (stack & (stack - 1)) != 0)
		return NULL;
	ctx = calloc(1, sizeof(*ctx));
	if (!ctx)
		return NULL;
	/* Room for the multiple of its size, and for the guard before it. */
	ctx->mapped = 2 * stack + GUARD;
	ctx->mapping = mmap(next_place(ctx->mapped), ctx->mapped, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ctx->mapping == MAP_FAILED) {
		free(ctx);
		return NULL;
	}
	begin = ((uintptr_t)ctx->mapping + GUARD + stack - 1) & ~(uintptr_t)(stack - 1);
	ctx->stack = (unsigned char *)begin;
	if (mprotect(ctx->stack - GUARD, GUARD, PROT_NONE) != 0) {
		ddekit_ctx_destroy(ctx);
		return NULL;
	}
	frame = (struct frame *)(ctx->stack + stack - sizeof(*frame));
	*frame = (struct frame){ .mxcsr = MXCSR, .x87 = X87, .start = ddekit_stack_start };
	frame->r12 = (uint64_t)(uintptr_t)run_entry;
	frame->r13 = (uint64_t)(uintptr_t)ctx;
	ctx->saved = frame;
	ctx->entry = entry;
	ctx->arg = arg;
	ctx->check.bottom = ctx->stack;
	ctx->check.len = stack;
	stack_check_register(&ctx->check);
	return ctx;
}

void ddekit_ctx_destroy(struct ddekit_ctx *ctx)
{
	if (ctx == self || ctx == &host)
		ddekit_panic("a context that runs, or the host's, cannot be destroyed");
	if (ctx->check.len != 0) {
		stack_check_unregister(&ctx->check);
		stack_check_forget(&ctx->check);
	}
	munmap(ctx->mapping, ctx->mapped);
	free(ctx);
}

struct ddekit_ctx *ddekit_ctx_host(void)
{
	return &host;
}

struct ddekit_ctx *ddekit_ctx_self(void)
{
	return self;
}

void *ddekit_ctx_stack(const struct ddekit_ctx *ctx)
{
	return ctx->stack;
}

void ddekit_ctx_switch(struct ddekit_ctx *to)
{
	struct ddekit_ctx *from = self;

	if (to == from)
		return;
	self = to;
	left = from;
	stack_check_leave(&from->check, &to->check);
	ddekit_stack_switch(&from->saved, to->saved);
	stack_check_arrive(&from->check, &left->check);
}

/* A call on the host's stack, as its caller there sees it. */
struct call {
	void (*function)(void *arg);
	void *arg;
};

static void run_call(void *arg)
{
	const struct call *call = arg;

	stack_check_arrive(&host.check, &self->check);
	call->function(call->arg);
	stack_check_leave(&host.check, &self->check);
}

void ddekit_ctx_call_host(void (*function)(void *arg), void *arg)
{
	struct call call = { .function = function, .arg = arg };
	uintptr_t stack;

	if (self == &host || on_host) {
		function(arg);
		return;
	}
	stack = ((uintptr_t)host.saved - RED_ZONE) & ~(uintptr_t)15;
	on_host = true;
	stack_check_leave(&self->check, &host.check);
	stack_check_call((void *)stack);
	ddekit_stack_call((void *)stack, run_call, &call);
	stack_check_arrive(&self->check, &host.check);
	on_host = false;
}
