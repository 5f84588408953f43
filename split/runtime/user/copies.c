// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Copies of the kernel's objects, and pointers between them.
 *
 * A frame has copies of its own, so what two upcalls do at once meets in the kernel's objects only.
 * A pointer to an object of which no member is needed is the handle itself, in a form that no
 * access survives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "split.h"

#define OPAQUE (8UL << 60)

const struct split_type split_bytes = { .name = "bytes" };
const struct split_type split_opaque = { .name = "opaque" };
const struct split_type split_io = { .name = "io" };
const struct split_type split_mutex = { .name = "mutex" };
const struct split_type split_combolock = { .name = "combolock" };

static struct split_copy *copy_of(struct split_frame *frame, unsigned long handle)
{
	unsigned long name = handle - SPLIT_OFFSET(handle);

	for (unsigned int i = 0; i < frame->ncopies; i++)
		if (frame->copies[i].handle == name)
			return &frame->copies[i];
	return NULL;
}

void *split_pointer(struct split_frame *frame, unsigned long handle)
{
	struct split_copy *copy;

	if (!handle || handle == SPLIT_BAD_HANDLE)
		return NULL;
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS)
		return (char *)split_driver.symbols[SPLIT_INDEX(handle)].address +
		       SPLIT_OFFSET(handle);
	copy = copy_of(frame, handle);
	return copy ? copy->local + SPLIT_OFFSET(handle) : (void *)(OPAQUE | handle);
}

unsigned long split_handle(struct split_frame *frame, const void *pointer)
{
	unsigned long address = (unsigned long)pointer;

	if (!pointer)
		return 0;
	if (address >> 60 == OPAQUE >> 60)
		return address & ~OPAQUE;
	for (unsigned int i = 0; i < frame->ncopies; i++) {
		const struct split_copy *copy = &frame->copies[i];
		unsigned long offset = address - (unsigned long)copy->local;

		if (offset == 0 || offset < copy->size)
			return copy->handle + offset;
	}
	for (unsigned int i = 0; i < split_driver.nsymbols; i++) {
		const struct split_symbol *symbol = &split_driver.symbols[i];
		unsigned long offset = address - (unsigned long)symbol->address;

		if (offset == 0 || offset < symbol->size)
			return SPLIT_HANDLE(SPLIT_SYMBOLS, i, offset);
	}
	return SPLIT_BAD_HANDLE;
}

static int has_combolock(const struct split_type *type, unsigned long offset)
{
	for (unsigned int i = 0; i < type->insides; i++) {
		const struct split_inside *inside = &type->inside[i];

		if (offset < inside->offset)
			continue;
		if (inside->type == &split_combolock ? offset == inside->offset :
		    has_combolock(inside->type, offset - inside->offset))
			return 1;
	}
	return 0;
}

/* The handle of a spinlock that the kernel half takes, too; 0 of one that is this half's alone. */
unsigned long split_combolock_handle(struct split_frame *frame, const void *lock)
{
	unsigned long handle = frame && split_driver.combolocks ? split_handle(frame, lock) : 0;
	const struct split_copy *copy;

	if (!handle || handle == SPLIT_BAD_HANDLE)
		return 0;
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS) {
		const struct split_type *type = split_driver.symbols[SPLIT_INDEX(handle)].type;

		return type && has_combolock(type, SPLIT_OFFSET(handle)) ? handle : 0;
	}
	copy = copy_of(frame, handle);
	/* Of what this half has no copy of, only the kernel's lock can be meant. */
	if (!copy)
		return handle;
	if (copy->view < 0)
		return 0;
	return has_combolock(frame->entry->views[copy->view].type, SPLIT_OFFSET(handle)) ? handle :
	       0;
}

static struct split_copy *new_copy(struct split_frame *frame)
{
	if (frame->ncopies == frame->room) {
		frame->room = frame->room ? frame->room * 2 : 16;
		frame->copies = realloc(frame->copies, frame->room * sizeof(*frame->copies));
		if (!frame->copies)
			abort();
	}
	return memset(&frame->copies[frame->ncopies++], 0, sizeof(*frame->copies));
}

/* Where a copy begins. Whoever looks for errors sees it end where the kernel's object ends. */
static char *new_local(unsigned int size)
{
#ifdef SPLIT_CHECKED
	char *local = calloc(1, size);
#else
	char *local = calloc(1, size + 8UL);
#endif

	if (!local)
		abort();
	return local;
}

void split_add_copy(struct split_frame *frame, unsigned long handle, unsigned int size)
{
	struct split_copy *copy = new_copy(frame);

	*copy = (struct split_copy){ .local = new_local(size), .handle = handle, .size = size,
				     .view = -2, .own = 1 };
}

/* A struct of this half's own stands for an object of the kernel's ... */
void split_lend_copy(struct split_frame *frame, unsigned long handle, void *local,
		     unsigned int size)
{
	*new_copy(frame) = (struct split_copy){ .local = local, .handle = handle, .size = size,
						.view = -2 };
}

/* ... until the call is over: from here on nothing reaches its memory, which may be a stack's. */
void split_end_loan(struct split_frame *frame, unsigned long handle)
{
	struct split_copy *copy = copy_of(frame, handle);

	copy->local = memcpy(new_local(copy->size), copy->local, copy->size);
	copy->own = 1;
}

static int is_plain(const struct split_field *field)
{
	return field->kind == SPLIT_DATA || field->kind == SPLIT_BITS || field->kind == SPLIT_WORD;
}

typedef void each_field(struct split_frame *frame, const struct split_field *field, char *local,
			char *in_message);

static void copy_in(struct split_frame *frame, const struct split_field *field, char *local,
		    char *in_message)
{
	unsigned long handle;
	void *pointer;

	if (is_plain(field)) {
		memcpy(local, in_message, field->size);
		return;
	}
	memcpy(&handle, in_message, sizeof(handle));
	pointer = split_pointer(frame, handle);
	memcpy(local, &pointer, sizeof(pointer));
}

static void copy_out(struct split_frame *frame, const struct split_field *field, char *local,
		     char *in_message)
{
	unsigned long handle;
	void *pointer;

	if (!field->written)
		return;
	if (is_plain(field)) {
		memcpy(in_message, local, field->size);
		return;
	}
	memcpy(&handle, in_message, sizeof(handle));
	memcpy(&pointer, local, sizeof(pointer));
	/* Untouched, it stays the handle that it was. */
	if (pointer == split_pointer(frame, handle))
		return;
	handle = split_handle(frame, pointer);
	if (handle == SPLIT_BAD_HANDLE)
		split_log("%s: %s is set to memory that only the user half has; it does not cross",
			  frame->entry->name, field->name);
	memcpy(in_message, &handle, sizeof(handle));
}

static void fields(struct split_frame *frame, struct split_copy *copy, each_field *visit)
{
	const struct split_view *view = &frame->entry->views[copy->view];
	char *in_message = frame->message + copy->at;

	for (unsigned int n = 0; n < copy->count; n++) {
		for (unsigned int f = 0; f < view->nfields; f++) {
			visit(frame, &view->fields[f],
			      copy->local + n * view->type->size + view->fields[f].offset,
			      in_message);
			in_message += view->fields[f].size;
		}
	}
}

/* The copy that a part of the message is for. A variable of the driver is its own copy. */
static struct split_copy *take_part(struct split_frame *frame, const struct split_part *part,
				    unsigned int at, int *fresh)
{
	struct split_copy *copy = copy_of(frame, part->handle);
	unsigned int number = SPLIT_INDEX(part->handle);

	*fresh = copy && copy->view == -2;
	if (!copy && number < frame->entry->nvariables) {
		copy = new_copy(frame);
		copy->local = split_driver.symbols[frame->entry->variables[number].symbol].address;
	} else if (!copy) {
		copy = new_copy(frame);
		copy->local = new_local(part->size);
		copy->own = 1;
	}
	copy->handle = part->handle;
	copy->size = part->size;
	copy->count = part->count;
	copy->view = part->type == SPLIT_PART_BYTES ? -1 : (int)part->type;
	copy->at = at;
	return copy;
}

/*
 * Brings the copies to what the message says. Objects that the message has for the first time get
 * one.
 */
void split_unpack(struct split_frame *frame)
{
	const struct split_message *message = (const struct split_message *)frame->message;
	unsigned int at = sizeof(*message);
	/*
	 * What this half has allocated and written before the kernel knew its type stays as it is.
	 */
	char *keep = calloc(message->parts + 1, 1);

	if (!keep)
		abort();
	for (unsigned int pass = 0; pass < 2; pass++) {
		at = sizeof(*message);
		for (unsigned int i = 0; i < message->parts; i++) {
			const struct split_part *part =
				(const struct split_part *)(frame->message + at);
			struct split_copy *copy;
			int fresh;

			at += sizeof(*part);
			if (pass == 0) {
				take_part(frame, part, at, &fresh);
				keep[i] = (char)fresh;
			} else if (!keep[i]) {
				copy = copy_of(frame, part->handle);
				if (copy->view == -1)
					memcpy(copy->local, frame->message + at, copy->size);
				else
					fields(frame, copy, copy_in);
			}
			at = (at + part->length + 7) & ~7U;
		}
	}
	free(keep);
}

/* Puts what this half has changed into the message. */
void split_repack(struct split_frame *frame)
{
	for (unsigned int i = 0; i < frame->ncopies; i++) {
		struct split_copy *copy = &frame->copies[i];

		if (copy->view == -1)
			memcpy(frame->message + copy->at, copy->local, copy->size);
		else if (copy->view >= 0)
			fields(frame, copy, copy_out);
	}
}

void split_release(struct split_frame *frame)
{
	for (unsigned int i = 0; i < frame->ncopies; i++)
		if (frame->copies[i].own)
			free(frame->copies[i].local);
	free(frame->copies);
	frame->copies = NULL;
	frame->ncopies = frame->room = 0;
	frame->registers = 0;
}
