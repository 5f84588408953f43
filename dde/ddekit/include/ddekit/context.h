/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Contexts: flows of execution with stacks of their own, of which one runs until it switches to
 * another one.
 *
 * A stack begins at a multiple of its size, so that who has a stack pointer finds what lies at its
 * begin. Below it is a page that nothing may touch: who overruns his stack is ended by SIGSEGV
 * there and then.
 *
 * All contexts of a process belong to the thread that first asked for ddekit_ctx_host().
 */
#ifndef DDEKIT_CONTEXT_H
#define DDEKIT_CONTEXT_H

#include <stddef.h>

struct ddekit_ctx;

/**
 * ddekit_ctx_stand_still() - have the stacks of all that are made from now on lie at the same
 * places each time
 */
void ddekit_ctx_stand_still(void);

/**
 * ddekit_ctx_create() - make a context that has not run yet
 * @stack: bytes of its stack, a power of two of at least 8192
 * @entry: what it does; it must not return, but switch away for good
 * @arg: given to @entry
 *
 * Return: the context, or NULL if there is no memory or @stack is none.
 */
struct ddekit_ctx *ddekit_ctx_create(size_t stack, void (*entry)(void *arg), void *arg);

/**
 * ddekit_ctx_destroy() - take a context's memory back
 * @ctx: one that does not run, and is never switched to again
 */
void ddekit_ctx_destroy(struct ddekit_ctx *ctx);

/** ddekit_ctx_host() - the context of the thread's own stack, which was not created */
struct ddekit_ctx *ddekit_ctx_host(void);

/** ddekit_ctx_self() - the context that runs */
struct ddekit_ctx *ddekit_ctx_self(void);

/**
 * ddekit_ctx_stack() - the lowest byte of a context's stack, a multiple of its size; NULL for the
 * host's @ctx: the context
 */
void *ddekit_ctx_stack(const struct ddekit_ctx *ctx);

/**
 * ddekit_ctx_switch() - leave the running context, and go on where @to has left
 * @to: any other context, or the running one, which changes nothing
 *
 * Returns when somebody switches back.
 */
void ddekit_ctx_switch(struct ddekit_ctx *to);

/**
 * ddekit_ctx_call_host() - call a function on the host's stack
 * @function: what to call; it must not switch
 * @arg: given to it
 *
 * For functions of the host, which may want more stack than a context has.
 */
void ddekit_ctx_call_host(void (*function)(void *arg), void *arg);

#endif
