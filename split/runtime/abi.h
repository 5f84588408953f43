/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* The device /dev/ring3-split: how a user half and the kernel talk. */
#ifndef SPLIT_ABI_H
#define SPLIT_ABI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SPLIT_DEVICE "ring3-split"
#define SPLIT_ABI_VERSION 1
#define SPLIT_MESSAGE_MAX (1U << 20)
#define SPLIT_NAME 32

/* A message: this, then `parts` times a split_part with its bytes, each padded to 8. */
struct split_message {
	__u32 length;
	__u32 parts;
	__u64 arguments[8]; /* values and handles */
};

struct split_part {
	__u64 handle;
	__u32 type;  /* index of the view of the entry; SPLIT_PART_BYTES of bytes */
	__u32 size;  /* of the object in memory */
	__u32 count; /* objects, one behind the other */
	__u32 length; /* of what follows */
};
#define SPLIT_PART_BYTES 0xffffffffU

struct split_attach {
	__u32 version;
	__u32 pad;
	__u64 layout;
	char driver[SPLIT_NAME];
};

/* Gives the result of `frame` (0: there is none) and waits for the next upcall. */
struct split_next {
	__u64 frame;
	__s64 result;
	/* the message: in as it came, with what the user half has changed; out the next */
	__u64 buffer;
	__u32 size;   /* of the buffer */
	__u32 entry;
	__u32 wait_ms; /* 0: for ever */
	__u32 failed;  /* `frame` was given up */
};

struct split_call {
	__u64 frame;
	__u32 function; /* index of the table, or SPLIT_CALL_... */
	__u32 size;
	__u64 buffer; /* as of split_next; not looked at by calls of registers */
	__u64 arguments[8];
	__s64 result;
};

/* Functions that every driver has. */
#define SPLIT_CALL_ALLOCATE 0x10000	/* bytes -> handle */
#define SPLIT_CALL_FREE 0x10001		/* handle */
#define SPLIT_CALL_MUTEX_INIT 0x10002	/* handle */
#define SPLIT_CALL_LOCK 0x10003		/* handle of a mutex; of a combolock, and 1 */
#define SPLIT_CALL_UNLOCK 0x10004	/* the same */
/* handle, enum split_operation, operand -> what was there */
#define SPLIT_CALL_WORD 0x10005
/* nothing but that the copies are brought into step; handle, function, argument that it will be */
#define SPLIT_CALL_STEP 0x10006
#define SPLIT_CALL_PORT_READ 0x20000	/* port, bytes -> value */
#define SPLIT_CALL_PORT_WRITE 0x20001	/* port, bytes, value */
#define SPLIT_CALL_IO_READ 0x20002	/* handle, bytes -> value */
#define SPLIT_CALL_IO_WRITE 0x20003	/* handle, bytes, value */
/*
 * handle of registers -> offset at which the device has them for mmap, and bytes of them in
 * arguments[1]
 */
#define SPLIT_CALL_WINDOW 0x20004
/* of an offset: the place in a window; above is its number */
#define SPLIT_WINDOW_BITS 28
#define SPLIT_WINDOW_MAX (1UL << SPLIT_WINDOW_BITS)

/* On a word that both halves change. */
enum split_operation {
	SPLIT_SET_BIT,
	SPLIT_CLEAR_BIT,
	SPLIT_STORE, /* of an atomic_t */
};

#define SPLIT_IOC_ATTACH _IOW('r', 0x80, struct split_attach)
#define SPLIT_IOC_NEXT _IOWR('r', 0x81, struct split_next)
#define SPLIT_IOC_CALL _IOWR('r', 0x82, struct split_call)

#endif
