// SPDX-License-Identifier: GPL-2.0
/*
 * What a user half has changed in the copies of a message, taken back into the kernel's objects:
 * checked member by member.
 */
#include "runtime.h"

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
			long value = number_at(given + bound->offset + n * bound->size, bound->size,
					       bound->is_signed);

			if (value < bound->low || value > bound->high || (bound->nonzero && !value))
				return false;
		}
	}
	return true;
}

static void refuse_value(const struct split_frame *frame, const struct split_field *field)
{
	pr_warn_ratelimited("%s: %s: the user half's %s is refused: its value is none that it may "
			    "have\n", frame->host->driver->name, frame->entry->name, field->name);
}

/*
 * Numbers and texts. Whoever reads a text, while it is copied or later, goes on to its zero: so the
 * last byte of each has been zero before its other bytes change, and stays so.
 */
static void copy_data(const struct split_frame *frame, const struct split_field *field, char *to,
		      const char *given)
{
	u32 i, from = 0;

	for (i = 0; i < field->ntexts; i++) {
		u32 last = field->texts[i];

		if (given[last])
			pr_warn_ratelimited("%s: %s: the last byte of the user half's %s is zero: "
					    "a text ends there\n", frame->host->driver->name,
					    frame->entry->name, field->name);
		WRITE_ONCE(to[last], 0);
		memcpy(to + from, given + from, last - from);
		from = last + 1;
	}
	memcpy(to + from, given + from, field->size - from);
}

static void apply_field(struct split_frame *frame, const struct split_field *field, void *base,
			u32 at)
{
	const char *given = frame->given + at, *sent = frame->sent + at;
	void *to = base + field->offset, *address;
	unsigned long wanted;
	u64 handle;
	int error;
	u32 i;

	if (field->once && memchr_inv(to, 0, field->size)) {
		pr_warn_ratelimited("%s: %s: the user half's %s is refused: it is set already\n",
				    frame->host->driver->name, frame->entry->name, field->name);
		return;
	}
	if (field->kind == SPLIT_BITS) {
		/* The kernel may have changed the bits beside. */
		if (field->requires) {
			wanted = number_at(to, field->size, false) ^
				 number_at(sent, field->size,
					   false) ^ number_at(given, field->size, false);
			if (!field->requires(base, wanted)) {
				refuse_value(frame, field);
				return;
			}
		}
		for (i = 0; i < field->size; i++)
			((u8 *)to)[i] ^= sent[i] ^ given[i];
		return;
	}
	if (field->kind == SPLIT_DATA) {
		if (in_bounds(field, base, given))
			copy_data(frame, field, to, given);
		else
			refuse_value(frame, field);
		return;
	}
	memcpy(&handle, given, sizeof(handle));
	error = split_frame_resolve(frame, handle, field->type, &address);
	/* The kernel half reaches registers by it as long as they are mapped. */
	if (!error && !address && field->type == &split_io &&
	    split_is_mapped(frame->host, (void __iomem *)split_pointer_at(to)))
		error = -EACCES;
	if (!error && field->requires && !field->requires(base, (unsigned long)address))
		error = -EPERM;
	if (!error && !split_frame_keep(frame, handle))
		error = -EBADF;
	if (error) {
		pr_warn_ratelimited("%s: %s: the user half's %s is refused (%d, handle %llx)\n",
				    frame->host->driver->name, frame->entry->name, field->name,
				    error, handle);
		return;
	}
	WRITE_ONCE(*(void **)to, address);
}

static void apply(struct split_frame *frame)
{
	u32 i, n, f;

	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		u32 at = object->at;
		void *base = object->address;

		if (!at || object->gone)
			continue;
		if (split_is_bytes(object)) {
			if (object->written &&
			    memcmp(frame->sent + at, frame->given + at, object->size))
				memcpy(base, frame->given + at, object->size);
			continue;
		}
		for (n = 0; n < object->count; n++, base += object->view->type->size) {
			for (f = 0; f < object->view->nfields; f++) {
				const struct split_field *field = &object->view->fields[f];

				if (field->written &&
				    memcmp(frame->sent + at, frame->given + at, field->size))
					apply_field(frame, field, base, at);
				at += field->size;
			}
		}
	}
}

/* Takes back what the user half has changed. */
int split_apply(struct split_frame *frame)
{
	int error;

	down_read(&frame->host->objects);
	error = split_hear(frame);
	if (!error)
		apply(frame);
	up_read(&frame->host->objects);
	return error;
}
