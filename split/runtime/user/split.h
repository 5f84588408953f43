/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The run time of a user half: what the generated files give it, and what its own files share. */
#ifndef SPLIT_H
#define SPLIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "../abi.h"
#include "../tables.h"

/*
 * Generated: the tables, the functions that run entries, and what symbols stand for that only the
 * kernel has.
 */
extern const struct split_driver split_driver;
extern long (*const split_runners[])(const unsigned long *arguments);

enum split_stub_kind {
	SPLIT_STUB_CALL,   /* entry `number` of the table of downcalls */
	/* allocates arguments[0] * arguments[1] bytes; `number` says whether the second counts */
	SPLIT_STUB_MEMORY,
	SPLIT_STUB_STOP,   /* cannot be had outside the kernel */
};

struct split_stub {
	const char *name;
	unsigned char kind;
	signed char format; /* argument that is a format, -1: none */
	unsigned short number;
};
extern const struct split_stub split_stubs[];

/* An object of the kernel, as this half sees it. */
struct split_copy {
	char *local;
	unsigned long handle;
	unsigned int size, count, at; /* at: its part in the message, 0 before there is one */
	int view;		      /* -1: bytes, -2: none yet */
	int own;		      /* `local` goes with the frame */
};

struct split_window;

/* One upcall that a thread runs. */
struct split_frame {
	unsigned long id;
	const struct split_entry *entry;
	char *message;
	struct split_copy *copies;
	unsigned int ncopies, room;
	jmp_buf abandon;
	/* Registers that were reached last, and their window; 0: none yet. */
	unsigned long registers;
	const struct split_window *window;
};
extern __thread struct split_frame *split_frame;

/* copies.c */
void split_unpack(struct split_frame *frame);
void split_repack(struct split_frame *frame);
void split_release(struct split_frame *frame);
void split_add_copy(struct split_frame *frame, unsigned long handle, unsigned int size);
void split_lend_copy(struct split_frame *frame, unsigned long handle, void *local,
		     unsigned int size);
void split_end_loan(struct split_frame *frame, unsigned long handle);
void *split_pointer(struct split_frame *frame, unsigned long handle);
unsigned long split_handle(struct split_frame *frame, const void *pointer);
unsigned long split_combolock_handle(struct split_frame *frame, const void *lock);

/* calls.c */
long split_kernel(unsigned int function, unsigned long first, unsigned long second,
		  unsigned long third);
long split_ioctl_call(struct split_call *call);
void split_fail(unsigned int call);
void split_abandon(const char *why, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* format.c */
int split_format(char *to, size_t size, const char *format, va_list list);

/* confine.c, pin.c */
int split_confine(unsigned int user, unsigned int group, int tied);
void split_pin(void);

/* Who looks for errors: see `build` of ring3_split. */
#ifdef __SANITIZE_ADDRESS__
#define SPLIT_ASAN 1
#else
#define SPLIT_ASAN 0
#endif
#ifdef SPLIT_MEMCHECK
#include <valgrind/memcheck.h>
#define SPLIT_DEFINED(memory, size) VALGRIND_MAKE_MEM_DEFINED(memory, size)
#else
#define SPLIT_DEFINED(memory, size) ((void)0)
#endif

/* main.c */
extern int split_device;
void split_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
