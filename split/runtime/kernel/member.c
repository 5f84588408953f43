// SPDX-License-Identifier: GPL-2.0
/* Places in objects that calls are handed: bytes, numbers, words. */
#include "runtime.h"

static const struct split_field *field_at(const struct split_object *object, unsigned long offset,
					  unsigned long size)
{
	u32 i;

	offset %= object->view->type->size;
	for (i = 0; i < object->view->nfields; i++) {
		const struct split_field *field = &object->view->fields[i];

		if (offset >= field->offset && size <= field->size &&
		    offset - field->offset <= field->size - size)
			return field;
	}
	return NULL;
}

/* Whether some of these bytes of a field are the last one of a text, which stays zero. */
static bool ends_text(const struct split_field *field, unsigned long offset, unsigned long size)
{
	u32 i;

	for (i = 0; i < field->ntexts; i++)
		if (field->texts[i] >= offset && field->texts[i] - offset < size)
			return true;
	return false;
}

/*
 * Memory that a function may be told to read, or to fill: bytes, or a number of an object that
 * crosses. Of the driver's own tables, none.
 */
int split_frame_bytes(struct split_frame *frame, u64 handle, unsigned long size, bool reads,
		      void **address)
{
	const struct split_object *object = &frame->objects[SPLIT_INDEX(handle)];
	int error = split_frame_resolve(frame, handle, NULL, address);
	const struct split_field *field;
	unsigned long at;

	if (error || !handle)
		return error;
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS || SPLIT_OFFSET(handle) > object->size ||
	    size > object->size - SPLIT_OFFSET(handle))
		return -ERANGE;
	if (!object->view)
		return split_frame_resolve(frame, handle, &split_bytes, address);
	field = field_at(object, SPLIT_OFFSET(handle), size);
	if (!field || field->kind != SPLIT_DATA)
		return -EPROTOTYPE;
	at = SPLIT_OFFSET(handle) % object->view->type->size - field->offset;
	return reads || (field->written && !field->nbounds && !ends_text(field, at, size)) ?
	       0 : -EPROTOTYPE;
}

/*
 * The size of the word of a handle, which both halves change; an error if the entry's table has no
 * such word there.
 */
int split_frame_word(struct split_frame *frame, u64 handle, void **address)
{
	const struct split_object *object = &frame->objects[SPLIT_INDEX(handle)];
	int error = split_frame_resolve(frame, handle, NULL, address);
	const struct split_field *field;

	if (error || SPLIT_GENERATION(handle) == SPLIT_SYMBOLS || !handle || !object->view)
		return error ?: -EPERM;
	field = field_at(object, SPLIT_OFFSET(handle), 1);
	return field && field->kind == SPLIT_WORD &&
	       field->offset == SPLIT_OFFSET(handle) % object->view->type->size ? field->size :
	       -EPERM;
}
