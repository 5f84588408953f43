// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Calls of the kernel: what the driver's code calls and this half does not have comes through a
 * stub, which leaves the registers as they are to `split_dispatch`.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "split.h"

#define TEXT 1024
#define ERRORS 4095UL

__thread struct split_frame *split_frame;

/* Ends the upcall: its caller in the kernel gets the entry's error, the process lives. */
void split_abandon(const char *why, ...)
{
	char text[TEXT];
	va_list list;

	va_start(list, why);
	vsnprintf(text, sizeof(text), why, list);
	va_end(list);
	split_log("%s", text);
	if (!split_frame)
		abort();
	longjmp(split_frame->abandon, 1);
}

/* Runs a call; the copies are in step with the kernel before and after. */
long split_ioctl_call(struct split_call *call)
{
	struct split_frame *frame = split_frame;
	int registers = call->function >= SPLIT_CALL_PORT_READ;

	if (!frame)
		split_abandon("a call of the kernel outside of an upcall");
	call->frame = frame->id;
	call->buffer = (unsigned long)frame->message;
	call->size = SPLIT_MESSAGE_MAX;
	if (!registers) {
		frame->registers = 0;
		split_repack(frame);
	}
	if (ioctl(split_device, SPLIT_IOC_CALL, call) < 0)
		return -errno;
	if (!registers)
		split_unpack(frame);
	return 0;
}

long split_kernel(unsigned int function, unsigned long first, unsigned long second,
		  unsigned long third)
{
	struct split_call call = { .function = function, .arguments = { first, second, third } };
	long error = split_ioctl_call(&call);

	if (error)
		split_abandon("%s: call %x is refused: %s", split_frame->entry->name, function,
			      strerror((int)-error));
	return call.result;
}

/* The list of arguments behind a format, as va_arg reads it [System V ABI x86-64, 3.5.7]. */
struct registers {
	unsigned int gp_offset, fp_offset;
	void *overflow, *save;
};

static char *formatted(const char *format, unsigned int behind, unsigned long *saved, void *stack)
{
	union {
		va_list list;
		struct registers registers;
	} u;
	static __thread char text[TEXT];

	u.registers = (struct registers){ behind < 6 ? behind * 8 : 48, 48, stack, saved };
	split_format(text, sizeof(text), format, u.list);
	return text;
}

static unsigned long argument(unsigned int i, const unsigned long *saved,
			      const unsigned long *stack)
{
	return i < 6 ? saved[i] : stack[i - 6];
}

/*
 * A struct on this half's stack: memory of the kernel's takes its place for a call, if the entry's
 * table knows its members.
 */
static unsigned long lend(const struct split_stub *stub, unsigned int i, unsigned long address)
{
	const struct split_downcall *function = &split_driver.downcalls[stub->number];
	const struct split_type *type = function->arguments[i].type;
	const struct split_entry *entry = split_frame->entry;
	unsigned long handle;
	unsigned int view = 0;

	while (view < entry->nviews && entry->views[view].type != type)
		view++;
	if (!type || !type->size || view == entry->nviews)
		split_abandon("%s: argument %u of %s is memory that only the user half has",
			      entry->name, i, function->name);
	handle = (unsigned long)split_kernel(SPLIT_CALL_ALLOCATE, type->size, 0, 0);
	split_lend_copy(split_frame, handle, (void *)address, type->size);
	split_kernel(SPLIT_CALL_STEP, handle, stub->number, i);
	return handle;
}

/* Calls of the table and for memory until the one that fails; below 0: none does. */
static int failing = -1;

void split_fail(unsigned int call)
{
	failing = (int)call;
}

/* Whether this call fails as if the kernel had said so: the driver's own way out of it is tried. */
static int fails(const char *name)
{
	if (__atomic_load_n(&failing, __ATOMIC_RELAXED) < 0 ||
	    __atomic_sub_fetch(&failing, 1, __ATOMIC_RELAXED))
		return 0;
	split_log("%s: the call of %s fails, as was wanted", split_frame->entry->name, name);
	return 1;
}

static unsigned long call_table(const struct split_stub *stub, unsigned long *saved,
				unsigned long *stack)
{
	const struct split_downcall *function = &split_driver.downcalls[stub->number];
	struct split_call call = { .function = stub->number };
	void **cells[SPLIT_ARGUMENTS] = { 0 };
	unsigned long lent[SPLIT_ARGUMENTS] = { 0 };
	long error;

	if (fails(function->name))
		return function->result.way == SPLIT_OBJECT ? 0 : (unsigned long)-ENOMEM;
	for (unsigned int i = 0; i < function->narguments; i++) {
		unsigned long value = argument(i, saved, stack);

		if (function->arguments[i].way == SPLIT_OBJECT) {
			call.arguments[i] = split_handle(split_frame, (void *)value);
			if (call.arguments[i] == SPLIT_BAD_HANDLE)
				call.arguments[i] = lent[i] = lend(stub, i, value);
		} else if (function->arguments[i].way == SPLIT_COUNTED) {
			call.arguments[i] = split_handle(split_frame, (void *)value);
			if (call.arguments[i] == SPLIT_BAD_HANDLE)
				call.arguments[i] = value | SPLIT_OWN_MEMORY;
		} else if (function->arguments[i].way == SPLIT_NUMBER) {
			if (value)
				memcpy(&call.arguments[i], (void *)value,
				       function->arguments[i].size);
			/* Many functions only write it. */
			SPLIT_DEFINED(&call.arguments[i], function->arguments[i].size);
		} else if (function->arguments[i].way == SPLIT_RESULT) {
			cells[i] = (void **)value;
			call.arguments[i] = value != 0;
		} else {
			call.arguments[i] = value;
		}
	}
	if (stub->format >= 0) {
		unsigned int format = (unsigned int)stub->format;

		call.arguments[format] = (unsigned long)formatted((char *)call.arguments[format],
								  function->narguments, saved,
								  stack);
	}
	error = split_ioctl_call(&call);
	for (unsigned int i = 0; i < function->narguments; i++)
		if (lent[i])
			split_end_loan(split_frame, lent[i]);
	if (error)
		split_abandon("%s: the call of %s is refused: %s", split_frame->entry->name,
			      function->name, strerror((int)-error));
	for (unsigned int i = 0; i < function->narguments; i++)
		if (function->arguments[i].way == SPLIT_NUMBER && argument(i, saved, stack))
			memcpy((void *)argument(i, saved, stack), &call.arguments[i],
			       function->arguments[i].size);
		else if (cells[i])
			*cells[i] = split_pointer(split_frame, call.arguments[i]);
	if (function->result.way != SPLIT_OBJECT || (unsigned long)call.result >= -ERRORS)
		return (unsigned long)call.result;
	return (unsigned long)split_pointer(split_frame, (unsigned long)call.result);
}

static unsigned long allocate(const struct split_stub *stub, const unsigned long *saved)
{
	unsigned long size = stub->number ? saved[0] * saved[1] : saved[0];
	struct split_call call = { .function = SPLIT_CALL_ALLOCATE, .arguments = { size } };

	if (fails(stub->name) || split_ioctl_call(&call))
		return 0;
	split_add_copy(split_frame, (unsigned long)call.result, (unsigned int)size);
	return (unsigned long)split_pointer(split_frame, (unsigned long)call.result);
}

/*
 * Where every stub leads. `saved` are the six registers of arguments, `stack` what came on the
 * stack.
 */
unsigned long split_dispatch(unsigned int number, unsigned long *saved, unsigned long *stack)
{
	const struct split_stub *stub = &split_stubs[number];

	if (!split_frame)
		split_abandon("%s is called outside of an upcall", stub->name);
	if (stub->kind == SPLIT_STUB_CALL)
		return call_table(stub, saved, stack);
	if (stub->kind == SPLIT_STUB_MEMORY)
		return allocate(stub, saved);
	split_abandon("%s: %s is not to be had in a user half", split_frame->entry->name,
		      stub->name);
}

__asm__(".globl split_thunk\n"
	".type split_thunk, @function\n"
	"split_thunk:\n"
	"	.cfi_startproc\n"
	"	push %r9\n	push %r8\n	push %rcx\n"
	"	push %rdx\n	push %rsi\n	push %rdi\n"
	"	.cfi_def_cfa_offset 56\n"
	"	mov %eax, %edi\n"
	"	mov %rsp, %rsi\n"
	"	lea 56(%rsp), %rdx\n"
	"	sub $8, %rsp\n"
	"	.cfi_def_cfa_offset 64\n"
	"	call split_dispatch\n"
	"	add $56, %rsp\n"
	"	.cfi_def_cfa_offset 8\n"
	"	ret\n"
	"	.cfi_endproc\n");
