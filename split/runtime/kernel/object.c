// SPDX-License-Identifier: GPL-2.0
/*
 * The objects of a frame, and the handles by which the user half names them.
 *
 * # Trust
 * A handle is good for its frame only, or names a symbol of the driver. It leads to an address only
 * if what lies there is of the type that is asked for, and lies wholly inside the object. So a user
 * half can hand back no address that it was not given.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

const struct split_type split_bytes = { .name = "bytes" };
EXPORT_SYMBOL_GPL(split_bytes);
const struct split_type split_opaque = { .name = "opaque" };
EXPORT_SYMBOL_GPL(split_opaque);
const struct split_type split_io = { .name = "io" };
EXPORT_SYMBOL_GPL(split_io);

unsigned long split_string(const void *address)
{
	unsigned long at = (unsigned long)address & ~7UL, word = 0, length = 0;
	unsigned int skipped = (unsigned long)address & 7;

	/* By aligned words, of which none lies in two pages: the pointer may be anything. */
	for (; length < PAGE_SIZE - 1; at += sizeof(word), skipped = 0) {
		if (copy_from_kernel_nofault(&word, (void *)at, sizeof(word)))
			return 0;
		for (; skipped < sizeof(word) && length < PAGE_SIZE - 1; skipped++, length++)
			if (!(word >> 8 * skipped & 0xff))
				return length + 1;
	}
	return length + 1;
}
EXPORT_SYMBOL_GPL(split_string);

/* Whether an object of `type` begins at `offset` of `count` objects of `outer`. */
static bool fits(const struct split_type *outer, unsigned long count, unsigned long offset,
		 const struct split_type *type)
{
	unsigned int i;

	if (!outer)
		return false;
	if (outer->size) {
		if (offset / outer->size >= count)
			return false;
		offset %= outer->size;
	}
	if (outer == type)
		return !offset || type == &split_bytes;
	for (i = 0; i < outer->insides; i++) {
		const struct split_inside *inside = &outer->inside[i];

		if (offset >= inside->offset &&
		    fits(inside->type, 1, offset - inside->offset, type))
			return true;
	}
	return false;
}

static const struct split_symbol *symbol_at(const struct split_host *host, const void *address,
					    u32 *index)
{
	u32 i;

	/* Most addresses are of objects, and memory lies below modules. */
	if (address < host->symbols)
		return NULL;
	for (i = 0; i < host->driver->nsymbols; i++) {
		const struct split_symbol *symbol = &host->driver->symbols[i];
		unsigned long offset = (unsigned long)address - (unsigned long)symbol->address;

		if (offset == 0 || offset < symbol->size) {
			*index = i;
			return symbol;
		}
	}
	return NULL;
}

static const struct split_view *view_of(struct split_frame *frame, const struct split_type *type)
{
	unsigned int i;

	for (i = 0; i < frame->entry->nviews; i++)
		if (frame->entry->views[i].type == type)
			return &frame->entry->views[i];
	return NULL;
}

/*
 * Gives an object its type, unless its allocation is too small, or the type is one that only the
 * kernel makes. What the user half has allocated has none at first.
 */
static bool give_type(struct split_frame *frame, struct split_object *object,
		      const struct split_type *type, unsigned long count)
{
	unsigned long size = type->size ? type->size * count : type == &split_bytes ? count : 0;

	if (count > SPLIT_MESSAGE_MAX || size > SPLIT_MESSAGE_MAX)
		return false;
	if (object->allocation && (size > object->allocation->size ||
				   !(type->own || type == &split_bytes || type == &split_opaque)))
		return false;
	object->type = type;
	/* Memory that it has asked for as numbers is its own to write. */
	if (object->allocation && type == &split_bytes)
		object->written = true;
	object->count = type->size ? count : 1;
	object->view = view_of(frame, type);
	/* The user half's copy of an allocation is there already, in its full size. */
	object->size = object->allocation ? object->allocation->size : size;
	return true;
}

/* How many of a type were asked for: an array is known as one when its first element is. */
static unsigned long elements(const struct split_allocation *allocation,
			      const struct split_type *type)
{
	return type->size ? max(allocation->size / type->size, 1UL) : 1;
}

/* The same, one of the entry's types that have a `type` at `offset`. */
static bool give_type_with(struct split_frame *frame, struct split_object *object,
			   unsigned long offset, const struct split_type *type)
{
	unsigned int i;

	for (i = 0; i < frame->entry->nviews; i++) {
		const struct split_type *outer = frame->entry->views[i].type;

		if (outer->own && fits(outer, 1, offset, type) &&
		    give_type(frame, object, outer, 1))
			return true;
	}
	return false;
}

u32 split_frame_add(struct split_frame *frame, void *address, const struct split_type *type,
		    unsigned long count, bool written)
{
	struct split_object *object;

	if (frame->nobjects == SPLIT_OBJECTS || frame->placed)
		return U32_MAX;
	if (frame->nobjects == frame->room) {
		u32 room = frame->room ? frame->room * 2 : 16;
		struct split_object *more = krealloc_array(frame->objects, room, sizeof(*more),
							   GFP_KERNEL);

		if (!more)
			return U32_MAX;
		frame->objects = more;
		frame->room = room;
	}
	object = &frame->objects[frame->nobjects];
	*object = (struct split_object){ .address = address, .written = written,
					 .via = frame->via };
	object->allocation = split_allocation_get(frame->host, address);
	if (type && !give_type(frame, object, type, count)) {
		if (object->allocation)
			split_allocation_put(frame->host, object->allocation);
		return U32_MAX;
	}
	if (!type)
		object->size = object->allocation ? object->allocation->size : 0;
	return frame->nobjects++;
}

static u64 handle(struct split_frame *frame, u32 index, unsigned long offset)
{
	return SPLIT_HANDLE(SPLIT_FRAME(frame->id), index, offset);
}

static u64 find(struct split_frame *frame, void *address, const struct split_type *type,
		unsigned long count, bool written, bool fresh)
{
	const struct split_symbol *symbol;
	u32 i;

	if (!address || count == 0)
		return 0;
	if (type->outer) {
		u64 around = find(frame, address - type->offset, type->outer, 1, written, fresh);

		return !around || around == SPLIT_BAD_HANDLE ? around : around + type->offset;
	}
	symbol = symbol_at(frame->host, address, &i);
	if (symbol)
		return SPLIT_HANDLE(SPLIT_SYMBOLS, i,
				    (unsigned long)address - (unsigned long)symbol->address);
	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		unsigned long offset = (unsigned long)address - (unsigned long)object->address;

		if (object->gone || (offset && offset >= object->size))
			continue;
		if (type == &split_opaque || fits(object->type, object->count, offset, type))
			return handle(frame, i, offset);
		/* Only handed on until now. */
		if (!offset && (!object->type || object->type == &split_opaque) &&
		    give_type(frame, object, type, count)) {
			object->written = written;
			return handle(frame, i, 0);
		}
	}
	/* A pointer to what a call has freed, which nobody has cleared, is none. */
	if (!fresh && split_is_ended(frame, address))
		return 0;
	i = split_frame_add(frame, address, type, count, written);
	return i == U32_MAX ? SPLIT_BAD_HANDLE : handle(frame, i, 0);
}

/* The handle of an address of the kernel, which is made an object of the frame if it is none. */
u64 split_frame_handle(struct split_frame *frame, void *address, const struct split_type *type,
		       unsigned long count, bool written)
{
	return find(frame, address, type, count, written, false);
}

/* The same of what a call has given. */
u64 split_frame_result(struct split_frame *frame, void *address, const struct split_type *type)
{
	u32 before = frame->nobjects;
	u64 found = find(frame, address, type, 1, false, true);

	if (frame->nobjects > before)
		frame->objects[before].made = true;
	return found;
}

/* The kernel half gets the address of a handle: false if the user half has freed what is there. */
bool split_frame_keep(struct split_frame *frame, u64 handle)
{
	struct split_allocation *allocation = NULL;

	if (handle && SPLIT_GENERATION(handle) != SPLIT_SYMBOLS)
		allocation = frame->objects[SPLIT_INDEX(handle)].allocation;
	return !allocation || split_allocation_keep(frame->host, allocation);
}

static int resolve_symbol(struct split_frame *frame, u64 handle, const struct split_type *type,
			  void **address)
{
	const struct split_driver *driver = frame->host->driver;
	const struct split_symbol *symbol;
	unsigned long offset = SPLIT_OFFSET(handle);

	if (SPLIT_INDEX(handle) >= driver->nsymbols)
		return -EBADF;
	symbol = &driver->symbols[SPLIT_INDEX(handle)];
	if (offset && offset >= symbol->size)
		return -ERANGE;
	if (type && type != &split_opaque && symbol->type != type) {
		unsigned long count = symbol->type && symbol->type->size ?
				      symbol->size / symbol->type->size : 1;

		if (!fits(symbol->type, count, offset, type))
			return -EPROTOTYPE;
	} else if (type && type != &split_opaque && type->size && offset % type->size) {
		return -EPROTOTYPE;
	}
	*address = symbol->address + offset;
	return 0;
}

static bool is_lock(const struct split_type *type)
{
	return type == &split_mutex || type == &split_combolock;
}

/* The address that a handle stands for, if an object of `type` is there; of any type for NULL. */
int split_frame_resolve(struct split_frame *frame, u64 handle, const struct split_type *type,
			void **address)
{
	struct split_object *object;
	unsigned long offset = SPLIT_OFFSET(handle);

	*address = NULL;
	if (!handle)
		return 0;
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS)
		return resolve_symbol(frame, handle, type, address);
	if (handle >> 60 || SPLIT_GENERATION(handle) != SPLIT_FRAME(frame->id) ||
	    SPLIT_INDEX(handle) >= frame->nobjects)
		return -EBADF;
	object = &frame->objects[SPLIT_INDEX(handle)];
	if (object->gone)
		return -EBADF;
	if (offset && offset >= object->size)
		return -ERANGE;
	/*
	 * A pointer that C gives no struct (char *, void *) says nothing: what it leads to is what
	 * the kernel put there, and never a lock.
	 */
	if (type && type != &split_opaque && (object->type != &split_opaque || is_lock(type)) &&
	    !fits(object->type, object->count, offset, type)) {
		/*
		 * The user half's own memory, of which nothing is known yet: a lock says which
		 * struct it is, so that no two of them overlap.
		 */
		if (object->type || !object->allocation)
			return -EPROTOTYPE;
		if (is_lock(type) ? !give_type_with(frame, object, offset, type)
				  : offset || !give_type(frame, object, type,
							 elements(object->allocation, type)))
			return -EPROTOTYPE;
	}
	if (type == &split_io && !split_is_mapped(frame->host, object->address + offset))
		return -EACCES;
	*address = object->address + offset;
	return 0;
}

void split_frame_forget(struct split_frame *frame)
{
	u32 i;

	for (i = 0; i < frame->nobjects; i++)
		if (frame->objects[i].allocation)
			split_allocation_put(frame->host, frame->objects[i].allocation);
	kfree(frame->objects);
	kvfree(frame->sent);
}
