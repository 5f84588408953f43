// SPDX-License-Identifier: GPL-2.0
/*
 * Objects that a call of the user half frees: `ends` of the function's row says which.
 *
 * # Order
 * What the user half has taken by the object is given back first: an interrupt would come to what
 * is freed. Then the host notes that the object ends, and only then the function runs. Frames look
 * at their objects with host->objects held for reading, and before they do they hear of all that
 * has ended; an end is noted with it held for writing. So no frame looks at what is being freed.
 *
 * # What ends with it
 * What a frame has found by way of the object; of a sound card, which takes its streams along, what
 * calls have given since. Of more than is freed nothing is lost but a name: a pointer that leads
 * there is NULL for the user half until its upcall ends.
 */
#include "runtime.h"

static bool lies_in(const struct split_ended *ended, const void *address)
{
	return (unsigned long)address - ended->start < ended->size;
}

/*
 * Whether something that was taken has to do with the object: an argument leads into it, or it lies
 * there.
 */
static bool concerns(const struct split_frame *frame, const struct split_taken *one,
		     const struct split_ended *ended)
{
	const struct split_downcall *function;
	unsigned int i;

	/*
	 * Of a combolock that is held nothing is in the object's memory; a lock in the driver's own
	 * data is there when all objects are forgotten, and others wait for it.
	 */
	if (one->function == SPLIT_CALL_LOCK && (one->arguments[1] || one->arguments[2]))
		return false;
	if (one->function >= SPLIT_CALL_ALLOCATE)
		return lies_in(ended, (void *)one->arguments[0]);
	function = &frame->host->driver->downcalls[one->function];
	for (i = 0; i < function->narguments; i++)
		if (function->arguments[i].way == SPLIT_OBJECT &&
		    lies_in(ended, (void *)one->arguments[i]))
			return true;
	return function->result.way == SPLIT_OBJECT && lies_in(ended, (void *)one->result);
}

static void forget(struct split_frame *frame, const struct split_ended *ended)
{
	u32 i, now = frame->endings + 1, first = U32_MAX;
	struct split_taken *one = &frame->taken[frame->ntaken];

	for (i = 0; i < frame->nobjects; i++) {
		struct split_object *object = &frame->objects[i];
		bool hangs = object->via && frame->objects[object->via - 1].ending == now;

		if (lies_in(ended, object->address))
			first = min(first, i);
		else if (object->allocation ||
			 !(hangs || (ended->along && object->made && i > first)))
			continue;
		object->gone = true;
		object->ending = now;
	}
	while (one-- != frame->taken)
		if (concerns(frame, one, ended))
			split_given_back(frame, one);
}

/*
 * With frame->lock, and host->objects for reading. An error: too much has ended to know what the
 * frame's objects are.
 */
int split_hear(struct split_frame *frame)
{
	const struct split_host *host = frame->host;
	static const struct split_ended all = { 0, ULONG_MAX };
	bool lost = host->endings - frame->endings > SPLIT_ENDINGS;

	if (lost) {
		frame->endings = host->endings - 1;
		forget(frame, &all);
	}
	while (frame->endings != host->endings) {
		forget(frame, &host->ended[frame->endings % SPLIT_ENDINGS]);
		frame->endings++;
	}
	return lost ? -ESTALE : 0;
}

/*
 * Whether an address is of what has ended: a pointer that nobody has cleared may still lead there.
 */
bool split_is_ended(const struct split_frame *frame, const void *address)
{
	u32 i;

	for (i = 0; i < frame->nobjects; i++) {
		const struct split_object *object = &frame->objects[i];

		if (object->ending &&
		    (unsigned long)address - (unsigned long)object->address < max(object->size, 1U))
			return true;
	}
	return false;
}

/*
 * Before `function` frees the object of a handle, which is at `address`. The user half's own memory
 * and the driver's data it does not.
 */
int split_ending(struct split_frame *frame, u32 function, u64 handle, unsigned long address,
		 struct split_ended *ended)
{
	struct split_host *host = frame->host;
	const struct split_downcall *calls = host->driver->downcalls;
	struct split_taken *one = &frame->taken[frame->ntaken];
	const struct split_object *object;

	if (!handle)
		return 0;
	object = &frame->objects[SPLIT_INDEX(handle)];
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS || object->allocation)
		return -EPERM;
	*ended = (struct split_ended){ address, max(object->size - min_t(
		u32, object->size, SPLIT_OFFSET(handle)), 1U), calls[function].along };
	while (one-- != frame->taken) {
		bool own = one->function < SPLIT_CALL_ALLOCATE &&
			   calls[one->function].undone_by == function + 1;

		/* An object whose mutex is held does not go. */
		if (!own && concerns(frame, one, ended) && split_give_up(frame, one))
			return -ECANCELED;
	}
	down_write(&host->objects);
	host->ended[host->endings++ % SPLIT_ENDINGS] = *ended;
	up_write(&host->objects);
	return 0;
}

/* When it is freed: no pointer that the entry's code may set leads others there. */
static void let_go(struct split_frame *frame, const struct split_ended *ended)
{
	u32 i, n, f;

	for (i = 0; i < frame->nobjects; i++) {
		const struct split_view *view = frame->objects[i].view;
		void *base = frame->objects[i].address;

		for (n = 0; view && !frame->objects[i].gone && n < frame->objects[i].count;
		     n++, base += view->type->size) {
			for (f = 0; f < view->nfields; f++) {
				const struct split_field *field = &view->fields[f];
				bool pointer = field->kind == SPLIT_POINTER ||
					       field->kind == SPLIT_OPAQUE;

				if (pointer && field->written &&
				    lies_in(ended, split_pointer_at(base + field->offset)))
					WRITE_ONCE(*(void **)(base + field->offset), NULL);
			}
		}
	}
}

/*
 * After a call, before what it has given is looked at, which may lie where something else has
 * ended.
 */
int split_hear_of(struct split_frame *frame, const struct split_ended *ended)
{
	int error;

	down_read(&frame->host->objects);
	error = split_hear(frame);
	if (!error && ended && ended->size)
		let_go(frame, ended);
	up_read(&frame->host->objects);
	return error;
}
