// SPDX-License-Identifier: GPL-2.0
/*
 * The message of a frame: a copy of the members that its entry touches.
 *
 * # Form
 * Parts stand in the order in which objects were found and never move, so what comes back is read
 * at places that the kernel knows: nothing of its form is believed. A member goes back only if the
 * table says that the entry may write it, and if the user half has changed it: what the kernel has
 * changed meanwhile stays.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

static bool is_plain(const struct split_field *field)
{
	return field->kind == SPLIT_DATA || field->kind == SPLIT_BITS || field->kind == SPLIT_WORD;
}

static u32 part_length(const struct split_object *object)
{
	u32 length = 0, i;

	if (split_is_bytes(object))
		return object->size;
	for (i = 0; i < object->view->nfields; i++)
		length += object->view->fields[i].size;
	return length * object->count;
}

void *split_pointer_at(const void *address)
{
	void *value = NULL;

	/* The kernel's own pointer, but a member that nobody has set yet may be anything. */
	return copy_from_kernel_nofault(&value, address, sizeof(value)) ? NULL : value;
}

static u64 field_handle(struct split_frame *frame, const void *base,
			const struct split_field *field)
{
	void *pointer = split_pointer_at(base + field->offset);
	const struct split_type *type = field->kind == SPLIT_POINTER ? field->type : &split_opaque;
	unsigned long count = 1;

	if (!pointer || IS_ERR(pointer))
		return 0;
	if (field->kind == SPLIT_POINTER && field->count)
		count = field->count(field->type == &split_bytes && field->count == split_string ?
				     pointer : base);
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

		frame->via = i + 1;
		for (n = 0; view && !frame->objects[i].gone && n < frame->objects[i].count;
		     n++, base += view->type->size)
			for (f = 0; f < view->nfields; f++)
				if (!is_plain(&view->fields[f]))
					field_handle(frame, base, &view->fields[f]);
	}
	frame->via = 0;
}

static int place(struct split_frame *frame)
{
	u32 i, length = frame->length ?: sizeof(struct split_message);

	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		u32 size;

		if (object->at || object->gone || !(object->view || split_is_bytes(object)))
			continue;
		size = part_length(object);
		if (size > SPLIT_MESSAGE_MAX ||
		    length + sizeof(struct split_part) + size > SPLIT_MESSAGE_MAX - 8)
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

	if (split_is_bytes(object)) {
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
			} else if (copy_from_kernel_nofault(to, base + field->offset,
							    field->size)) {
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
		count = parameter->count(parameter->count == split_string ? pointer :
					 (void *)frame->arguments);
	handle = split_frame_handle(frame, pointer - parameter->inside, parameter->type, count,
				    parameter->written);
	return handle == SPLIT_BAD_HANDLE ? handle : handle + parameter->inside;
}

static int pack(struct split_frame *frame)
{
	struct split_message *message;
	u64 handles[SPLIT_ARGUMENTS] = {};
	u32 i;
	int error;

	for (i = frame->nobjects; i < frame->entry->nvariables; i++) {
		const struct split_variable *variable = &frame->entry->variables[i];

		split_frame_add(frame, frame->host->driver->symbols[variable->symbol].address,
				variable->type, variable->count, false);
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
	/* The kernel may set a pointer meanwhile: to what, the next message tells. */
	frame->placed = true;
	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		struct split_part *part =
			(struct split_part *)(frame->sent + object->at - sizeof(*part));

		if (!object->at)
			continue;
		message->parts++;
		part->handle = SPLIT_HANDLE(SPLIT_FRAME(frame->id), i, 0);
		part->type = split_is_bytes(object) ? SPLIT_PART_BYTES :
			     object->view - frame->entry->views;
		part->size = object->size;
		part->count = object->count;
		part->length = part_length(object);
		if (!object->gone)
			fill_object(frame, object, frame->sent + object->at);
	}
	frame->placed = false;
	return 0;
}

/* Makes the message, or makes it anew with what the kernel's objects hold now. */
int split_pack(struct split_frame *frame)
{
	int error;

	down_read(&frame->host->objects);
	error = split_hear(frame) ?: pack(frame);
	up_read(&frame->host->objects);
	return error;
}
