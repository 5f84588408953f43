/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * What both halves of a split driver know: its types, entries and downcalls.
 *
 * The generator writes these tables once, and both halves compile them against the same headers. So
 * offsets and sizes agree by construction; `split_driver.layout` is compared when a user half
 * attaches, in case the two were built apart.
 */
#ifndef SPLIT_TABLES_H
#define SPLIT_TABLES_H

#define SPLIT_ARGUMENTS 8

/*
 * Pointers that cross are handles: generation (16 bits), index (20) and the offset into the object
 * (24). 0 is NULL.
 */
#define SPLIT_OFFSET_BITS 24
#define SPLIT_INDEX_BITS 20
#define SPLIT_OFFSET(handle) ((handle) & ((1UL << SPLIT_OFFSET_BITS) - 1))
#define SPLIT_INDEX(handle) (((handle) >> SPLIT_OFFSET_BITS) & ((1UL << SPLIT_INDEX_BITS) - 1))
#define SPLIT_GENERATION(handle) (((handle) >> (SPLIT_OFFSET_BITS + SPLIT_INDEX_BITS)) & 0xffffUL)
#define SPLIT_HANDLE(generation, index, offset) \
	(((unsigned long)(generation) << (SPLIT_OFFSET_BITS + SPLIT_INDEX_BITS)) | \
	 ((unsigned long)(index) << SPLIT_OFFSET_BITS) | (offset))
/* The generation of functions and static data, which live as long as the module. */
#define SPLIT_SYMBOLS 0xffffUL
/*
 * The generation of a frame's objects: never that of symbols, and never 0, with which the first
 * object's handle would be NULL.
 */
#define SPLIT_FRAME(id) (1 + (id) % (SPLIT_SYMBOLS - 1))
/* A pointer of the user half that cannot cross. */
#define SPLIT_BAD_HANDLE (~0UL)

enum split_kind {
	SPLIT_DATA,	/* bytes, copied */
	SPLIT_BITS,	/* bytes, of which only the bits that were changed go back */
	SPLIT_POINTER,	/* to an object of a type, or to `count` of them */
	SPLIT_OPAQUE,	/* a pointer that the user half only hands on */
	SPLIT_CODE,	/* a function or a static table of the driver */
	/*
	 * bytes that never go back: both halves change them, by atomic operations on the kernel's
	 */
	SPLIT_WORD,
};

struct split_field;

struct split_inside { /* a struct that lies in another one */
	const struct split_type *type;
	unsigned int offset;
};

struct split_type {
	const char *name;
	unsigned int size; /* 0: bytes, or of no known size */
	const struct split_inside *inside;
	unsigned int insides;
	/* It lies behind another struct, in one allocation, and is never an object of its own. */
	const struct split_type *outer;
	unsigned int offset;
	/* the user half has it on its stack, or allocates it; any other is the kernel's to make */
	unsigned char own;
};

struct split_bound { /* what a number of a field may be, or each of `count` of them */
	unsigned int offset, size, count;
	long low, high;
	unsigned char is_signed, nonzero;
};

struct split_field {
	const char *name;
	unsigned int offset, size;
	unsigned char kind;
	unsigned char written; /* the user half may change it */
	const struct split_type *type;
	/* Objects at the pointer; of a parameter, `base` is the array of arguments. NULL: one. */
	unsigned long (*count)(const void *base);
	const struct split_bound *bounds; /* of data that the user half may change */
	unsigned int nbounds;
	/* whether a pointer or a number may be set so; NULL: always, and in the user half */
	int (*requires)(const void *base, unsigned long value);
	unsigned char once; /* the user half may set it while it is zero only */
	/* Where the last byte of each text in it lies, in order. */
	const unsigned int *texts;
	unsigned int ntexts;
};

struct split_view { /* the fields of a type that one entry needs */
	const struct split_type *type;
	const struct split_field *fields;
	unsigned int nfields;
};

struct split_parameter {
	const char *name;
	unsigned char kind;
	unsigned char written; /* of bytes: the user half may change them */
	unsigned int inside; /* the pointer leads to this offset of its object */
	const struct split_type *type;
	unsigned long (*count)(const void *arguments);
};

struct split_variable { /* of the driver, which the user half has as its own copy */
	unsigned int symbol;
	const struct split_type *type;
	unsigned int count;
};

struct split_entry {
	const char *name;
	const struct split_parameter *parameters;
	unsigned int nparameters;
	const struct split_variable *variables; /* the first objects of its frames */
	unsigned int nvariables;
	const struct split_view *views;
	unsigned int nviews;
	/*
	 * Functions of the table that it may call, and whether it may free what the user half has
	 * allocated.
	 */
	const unsigned short *calls;
	unsigned int ncalls;
	unsigned char frees;
	/* Whether the next user half does anew what one has died in. */
	unsigned char again;
	/*
	 * Whether what a success means is so: one that only says so has failed. NULL: it is
	 * believed, and in the user half.
	 */
	int (*ensures)(const unsigned long *arguments);
	long failure; /* what the caller gets when there is no answer */
	unsigned int timeout_ms;
};

enum split_way {
	SPLIT_SCALAR,
	SPLIT_OBJECT,	/* a handle; `type` NULL: any object or symbol */
	SPLIT_TEXT,	/* a string of the user half: copied, and kept as long as the driver */
	SPLIT_BRIEF,	/* a string that is not kept */
	/*
	 * `size` bytes, once or as often as argument `counted` says: an object's, or copied in and
	 * out of the user half
	 */
	SPLIT_COUNTED,
	/* the address of one number of `size` bytes, which the function reads or sets */
	SPLIT_NUMBER,
	SPLIT_RESULT,	/* the address of a pointer that the function sets */
};

struct split_argument {
	unsigned char way;
	const struct split_type *type;
	unsigned char size;
	unsigned char counted;
	unsigned char reads; /* SPLIT_COUNTED: the function does not write it */
};
/*
 * What an argument of SPLIT_COUNTED begins with when it is an address of the user half and no
 * handle.
 */
#define SPLIT_OWN_MEMORY (1UL << 63)

struct split_downcall {
	const char *name;
	unsigned long (*call)(const unsigned long *arguments); /* NULL in the user half */
	unsigned int narguments;
	struct split_argument arguments[SPLIT_ARGUMENTS];
	struct split_argument result;
	/*
	 * What it takes is given back when the entry fails before the user half has done so by
	 * `undone_by` (a number of the table and 1): argument `key` of this function,
	 * SPLIT_ARGUMENTS for its result, is then argument `undone_key` of that one.
	 */
	/* NULL in the user half, and if nothing is to be done */
	void (*undo)(const unsigned long *arguments, unsigned long result);
	unsigned short undone_by;
	unsigned char key, undone_key;
	unsigned char ends;  /* the argument whose object it frees, and 1; 0: none */
	unsigned char along; /* and with it what calls have given since: a sound card has streams */
	/* none of these functions begins before another one has ended: what is required stays so */
	unsigned char alone;
	/* whether it may be called now; NULL: always, and in the user half */
	int (*requires)(const unsigned long *arguments);
};

struct split_symbol {
	const char *name;
	void *address;	    /* in the half that has compiled the table */
	unsigned long size; /* 0 of a function */
	const struct split_type *type;
};

struct split_driver {
	const char *name;
	unsigned long layout;
	const struct split_entry *entries;
	const struct split_downcall *downcalls;
	const struct split_symbol *symbols;
	unsigned int nentries, ndowncalls, nsymbols;
	/* registers are mapped into the user half, where they are whole pages */
	unsigned char maps;
	unsigned char combolocks; /* there are spinlocks that the user half takes by calls */
};

/* split_io: registers that are mapped */
extern const struct split_type split_bytes, split_opaque, split_io;
extern const struct split_type split_combolock; /* a spinlock that the user half may take */
unsigned long split_string(const void *address); /* length with its zero */

#endif
