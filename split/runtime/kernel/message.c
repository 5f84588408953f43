// SPDX-License-Identifier: GPL-2.0
/*
 * The message of a frame: a copy of the members that its entry touches.
 *
 * # Form
 * Parts stand in the order in which objects were found and never move, so what comes back is read at places that the kernel
 * knows: nothing of its form is believed. A member goes back only if the table says that the entry may write it, and if the user
 * half has changed it: what the kernel has changed meanwhile stays.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

static bool is_plain(const struct split_field *field)
{
	return field->kind == SPLIT_DATA || field->kind == SPLIT_BITS || field->kind == SPLIT_WORD;
}

static bool is_bytes(const struct split_object *object)
{
	return object->type == &split_bytes;
}

static u32 part_length(const struct split_object *object)
{
	u32 length = 0, i;

	if (is_bytes(object))
		return object->size;
	for (i = 0; i < object->view->nfields; i++)
		length += object->view->fields[i].size;
	return length * object->count;
}

static unsigned long pointer_at(const void *address)
{
	unsigned long value = 0;

	/* The kernel's own pointer, but a member that nobody has set yet may be anything. */
	return copy_from_kernel_nofault(&value, address, sizeof(value)) ? 0 : value;
}

static u64 field_handle(struct split_frame *frame, const void *base, const struct split_field *field)
{
	void *pointer = (void *)pointer_at(base + field->offset);
	const struct split_type *type = field->kind == SPLIT_POINTER ? field->type : &split_opaque;
	unsigned long count = 1;

	if (!pointer || IS_ERR(pointer))
		return 0;
	if (field->kind == SPLIT_POINTER && field->count)
		count = field->count(field->type == &split_bytes && field->count == split_string ? pointer : base);
	return split_frame_handle(frame, pointer, type, count, field->written);
}

/* Finds all objects: each that is found may lead to further ones. */
static void walk(struct split_frame *frame)
{
	u32 i, n, f;

	for (i = 0; i < frame->nobjects; i++) {
		/* The array moves when an object is added. */
		const struct split_view *view = frame->objects[i].view;
		void *base = frame->objects[i].address;

		for (n = 0; view && !frame->objects[i].gone && n < frame->objects[i].count; n++, base += view->type->size)
			for (f = 0; f < view->nfields; f++)
				if (!is_plain(&view->fields[f]))
					field_handle(frame, base, &view->fields[f]);
	}
}

static int place(struct split_frame *frame)
{
	u32 i, length = frame->length ?: sizeof(struct split_message);

	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		u32 size;

		if (object->at || object->gone || !(object->view || is_bytes(object)))
			continue;
		size = part_length(object);
		if (size > SPLIT_MESSAGE_MAX || length + sizeof(struct split_part) + size > SPLIT_MESSAGE_MAX - 8)
			return -EMSGSIZE;
		object->at = length + sizeof(struct split_part);
		length = ALIGN(object->at + size, 8);
	}
	if (length > frame->length) {
		char *sent = kvzalloc(2 * length, GFP_KERNEL);

		if (!sent)
			return -ENOMEM;
		kvfree(frame->sent);
		frame->sent = sent;
		frame->given = sent + length;
		frame->length = length;
	}
	return 0;
}

static void fill_object(struct split_frame *frame, struct split_object *object, char *to)
{
	const struct split_view *view = object->view;
	void *base = object->address;
	u32 n, f;

	if (is_bytes(object)) {
		if (copy_from_kernel_nofault(to, base, object->size))
			object->gone = true;
		return;
	}
	for (n = 0; n < object->count; n++, base += view->type->size) {
		for (f = 0; f < view->nfields; f++) {
			const struct split_field *field = &view->fields[f];

			if (!is_plain(field)) {
				u64 handle = field_handle(frame, base, field);

				memcpy(to, &handle, sizeof(handle));
			} else if (copy_from_kernel_nofault(to, base + field->offset, field->size)) {
				object->gone = true;
			}
			to += field->size;
		}
	}
}

static u64 argument_handle(struct split_frame *frame, u32 i)
{
	const struct split_parameter *parameter = &frame->entry->parameters[i];
	void *pointer = (void *)frame->arguments[i];
	unsigned long count = 1;
	u64 handle;

	if (parameter->kind == SPLIT_DATA)
		return frame->arguments[i];
	if (!pointer)
		return 0;
	if (parameter->kind != SPLIT_POINTER)
		return split_frame_handle(frame, pointer, &split_opaque, 1, false);
	if (parameter->count)
		count = parameter->count(parameter->count == split_string ? pointer : (void *)frame->arguments);
	handle = split_frame_handle(frame, pointer - parameter->inside, parameter->type, count, parameter->written);
	return handle == SPLIT_BAD_HANDLE ? handle : handle + parameter->inside;
}

/* Makes the message, or makes it anew with what the kernel's objects hold now. */
int split_pack(struct split_frame *frame)
{
	struct split_message *message;
	u64 handles[SPLIT_ARGUMENTS] = {};
	u32 i;
	int error;

	for (i = frame->nobjects; i < frame->entry->nvariables; i++) {
		const struct split_variable *variable = &frame->entry->variables[i];

		split_frame_add(frame, frame->host->driver->symbols[variable->symbol].address, variable->type, variable->count, false);
	}
	for (i = 0; i < frame->entry->nparameters; i++)
		handles[i] = argument_handle(frame, i);
	walk(frame);
	error = place(frame);
	if (error)
		return error;
	message = (struct split_message *)frame->sent;
	message->length = frame->length;
	message->parts = 0;
	memcpy(message->arguments, handles, sizeof(handles));
	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		struct split_part *part = (struct split_part *)(frame->sent + object->at - sizeof(*part));

		if (!object->at)
			continue;
		message->parts++;
		part->handle = SPLIT_HANDLE(frame->id % SPLIT_SYMBOLS, i, 0);
		part->type = is_bytes(object) ? SPLIT_PART_BYTES : object->view - frame->entry->views;
		part->size = object->size;
		part->count = object->count;
		part->length = part_length(object);
		if (!object->gone)
			fill_object(frame, object, frame->sent + object->at);
	}
	return 0;
}

static long number_at(const char *at, unsigned int size, bool is_signed)
{
	u64 value = 0;

	memcpy(&value, at, size);
	return is_signed ? sign_extend64(value, 8 * size - 1) : (long)value;
}

/* Whether the numbers in a field are such as the kernel half can use. */
static bool in_bounds(const struct split_field *field, const void *base, const char *given)
{
	u32 i, n;

	if (field->requires && !field->requires(base, number_at(given, field->size, false)))
		return false;
	for (i = 0; i < field->nbounds; i++) {
		const struct split_bound *bound = &field->bounds[i];

		for (n = 0; n < bound->count; n++) {
			long value = number_at(given + bound->offset + n * bound->size, bound->size, bound->is_signed);

			if (value < bound->low || value > bound->high || (bound->nonzero && !value))
				return false;
		}
	}
	return true;
}

static void apply_field(struct split_frame *frame, const struct split_field *field, void *base, u32 at)
{
	const char *given = frame->given + at, *sent = frame->sent + at;
	void *to = base + field->offset, *address;
	u64 handle;
	int error;
	u32 i;

	if (field->once && memchr_inv(to, 0, field->size)) {
		pr_warn_ratelimited("%s: %s: the user half's %s is refused: it is set already\n", frame->host->driver->name,
				    frame->entry->name, field->name);
		return;
	}
	if (field->kind == SPLIT_BITS) {
		/* The kernel may have changed the bits beside. */
		for (i = 0; i < field->size; i++)
			((u8 *)to)[i] ^= sent[i] ^ given[i];
		return;
	}
	if (field->kind == SPLIT_DATA) {
		if (in_bounds(field, base, given))
			memcpy(to, given, field->size);
		else
			pr_warn_ratelimited("%s: %s: the user half's %s is refused: its value is none that it may have\n",
					    frame->host->driver->name, frame->entry->name, field->name);
		return;
	}
	memcpy(&handle, given, sizeof(handle));
	error = split_frame_resolve(frame, handle, field->type, &address);
	/* The kernel half reaches registers by it as long as they are mapped. */
	if (!error && !address && field->type == &split_io && split_is_mapped(frame->host, (void __iomem *)pointer_at(to)))
		error = -EACCES;
	if (!error && field->requires && !field->requires(base, (unsigned long)address))
		error = -EPERM;
	if (error)
		pr_warn_ratelimited("%s: %s: the user half's %s is refused (%d, handle %llx)\n", frame->host->driver->name,
				    frame->entry->name, field->name, error, handle);
	else
		WRITE_ONCE(*(void **)to, address);
}

/* Takes back what the user half has changed. */
void split_apply(struct split_frame *frame)
{
	u32 i, n, f;

	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		u32 at = object->at;
		void *base = object->address;

		if (!at || object->gone)
			continue;
		if (is_bytes(object)) {
			if (object->written && memcmp(frame->sent + at, frame->given + at, object->size))
				memcpy(base, frame->given + at, object->size);
			continue;
		}
		for (n = 0; n < object->count; n++, base += object->view->type->size) {
			for (f = 0; f < object->view->nfields; f++) {
				const struct split_field *field = &object->view->fields[f];

				if (field->written && memcmp(frame->sent + at, frame->given + at, field->size))
					apply_field(frame, field, base, at);
				at += field->size;
			}
		}
	}
}
