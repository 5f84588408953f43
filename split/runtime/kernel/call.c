// SPDX-License-Identifier: GPL-2.0
/*
 * Calls of the user half: functions of the driver's table, memory, words; locks are in lock.c,
 * registers in registers.c.
 *
 * # Trust
 * A function that is not in the table cannot be called. Objects, strings and results pass through
 * the frame.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

/*
 * Bits are of words of 64 bits, as the kernel's set_bit has them. A bit that was set here is
 * cleared if the entry fails.
 */
static long word_call(struct split_frame *frame, struct split_call *call)
{
	unsigned long operand = call->arguments[2];
	struct split_taken *one;
	void *address;
	int size = split_frame_word(frame, call->arguments[0], &address);

	if (size < 0)
		return size;
	if (call->arguments[1] == SPLIT_STORE) {
		if (size != sizeof(atomic_t))
			return -EINVAL;
		atomic_set(address, operand);
		return 0;
	}
	if (size % sizeof(long) || operand / 8 >= size || call->arguments[1] > SPLIT_CLEAR_BIT)
		return -ERANGE;
	if (call->arguments[1] == SPLIT_SET_BIT) {
		call->result = test_and_set_bit(operand, address);
		if (!call->result)
			split_take(frame, SPLIT_CALL_WORD,
				   (unsigned long[SPLIT_ARGUMENTS]){ (unsigned long)address,
								     operand }, 0);
		return 0;
	}
	call->result = test_and_clear_bit(operand, address);
	one = split_find_taken(frame, SPLIT_CALL_WORD, (unsigned long)address, operand);
	if (one)
		split_given_back(frame, one);
	return 0;
}

static long allocate(struct split_frame *frame, struct split_call *call)
{
	void *address = split_allocate(frame, call->arguments[0]);
	u32 index;

	if (IS_ERR(address))
		return PTR_ERR(address);
	index = split_hear_of(frame,
			      NULL) ? U32_MAX : split_frame_add(frame, address, NULL, 1, false);
	if (index == U32_MAX) {
		split_free(frame->host, address);
		return -ENOMEM;
	}
	call->result = SPLIT_HANDLE(SPLIT_FRAME(frame->id), index, 0);
	return 0;
}

static unsigned long counted(const struct split_argument *argument, const struct split_call *call)
{
	return argument->counted < SPLIT_ARGUMENTS ? call->arguments[argument->counted] : 1;
}

/*
 * Memory as long as another argument says: an object that is long enough, or the user half's own,
 * on its stack perhaps. Of that the function works on a copy, which `copy` gets and `give_memory`
 * brings back.
 */
static long take_memory(struct split_frame *frame, const struct split_argument *argument,
			const struct split_call *call, u64 value, unsigned long *address,
			void **copy)
{
	unsigned long count = counted(argument, call);
	void *memory = NULL;
	long error = 0;

	if (count > SPLIT_MESSAGE_MAX / argument->size)
		return -EMSGSIZE;
	if (value & SPLIT_OWN_MEMORY) {
		memory = vmemdup_user(u64_to_user_ptr(value & ~SPLIT_OWN_MEMORY),
				      count * argument->size);
		error = PTR_ERR_OR_ZERO(memory);
		if (!error)
			*copy = memory;
	} else {
		error = split_frame_bytes(frame, value, count * argument->size, argument->reads,
					  &memory);
		if (!error && !split_frame_keep(frame, value))
			error = -EBADF;
	}
	*address = (unsigned long)memory;
	return error;
}

static long give_memory(const struct split_argument *argument, const struct split_call *call,
			u64 value, const void *copy)
{
	unsigned long size = counted(argument, call) * argument->size;

	return copy_to_user(u64_to_user_ptr(value & ~SPLIT_OWN_MEMORY), copy, size) ? -EFAULT : 0;
}

/* The arguments as the function gets them. `cells` take what it sets. */
static long take_arguments(struct split_frame *frame, const struct split_downcall *function,
			   const struct split_call *call, unsigned long *arguments, void **cells)
{
	unsigned int i;

	for (i = 0; i < function->narguments; i++) {
		const struct split_argument *argument = &function->arguments[i];
		void *address = NULL;
		char *text;
		long error = 0;

		arguments[i] = call->arguments[i];
		if (argument->way == SPLIT_OBJECT) {
			error = split_frame_resolve(frame, call->arguments[i], argument->type,
						    &address);
			arguments[i] = (unsigned long)address;
			if (!error && !split_frame_keep(frame, call->arguments[i]))
				error = -EBADF;
		} else if (argument->way == SPLIT_TEXT && arguments[i]) {
			text = split_text(frame->host, u64_to_user_ptr(call->arguments[i]));
			error = PTR_ERR_OR_ZERO(text);
			arguments[i] = (unsigned long)text;
		} else if (argument->way == SPLIT_BRIEF && arguments[i]) {
			cells[i] = text = strndup_user(u64_to_user_ptr(call->arguments[i]),
						       PAGE_SIZE);
			error = PTR_ERR_OR_ZERO(text);
			arguments[i] = (unsigned long)text;
			if (error)
				cells[i] = NULL;
		} else if (argument->way == SPLIT_COUNTED) {
			error = take_memory(frame, argument, call, call->arguments[i],
					    &arguments[i], &cells[i]);
		} else if (argument->way == SPLIT_NUMBER) {
			cells[i] = (void *)arguments[i];
			arguments[i] = (unsigned long)&cells[i];
		} else if (argument->way == SPLIT_RESULT && arguments[i]) {
			arguments[i] = (unsigned long)&cells[i];
		}
		if (error) {
			pr_warn_ratelimited("%s: %s: argument %u of %s is refused (%ld, %llx)\n",
					    frame->host->driver->name, frame->entry->name, i,
					    function->name, error, call->arguments[i]);
			return error;
		}
	}
	return 0;
}

static u64 result_handle(struct split_frame *frame, void *address, const struct split_type *type)
{
	return IS_ERR(address) ? (u64)(long)address :
	       split_frame_result(frame, address, type ?: &split_opaque);
}

/* What the entry's own code calls: a user half that answers for a mixer frees no card. */
static bool may_call(const struct split_entry *entry, u32 function)
{
	unsigned int i;

	for (i = 0; i < entry->ncalls; i++)
		if (entry->calls[i] == function)
			return true;
	return false;
}

static long table_call(struct split_frame *frame, struct split_call *call)
{
	const struct split_driver *driver = frame->host->driver;
	const struct split_downcall *function;
	unsigned long arguments[SPLIT_ARGUMENTS] = {}, result;
	void *cells[SPLIT_ARGUMENTS] = {};
	struct split_ended ended = {};
	struct split_alone alone = {};
	unsigned int i;
	long error;

	if (call->function >= driver->ndowncalls)
		return -ENXIO;
	if (!may_call(frame->entry, call->function))
		return -EPERM;
	function = &driver->downcalls[call->function];
	error = take_arguments(frame, function, call, arguments, cells);
	if (!error && function->alone && !split_alone_begin_call(frame, &alone))
		error = -EINTR;
	/* Only this thread asks whether it is itself. */
	WRITE_ONCE(frame->answerer, current);
	if (!error && function->requires && !function->requires(arguments))
		error = -EPERM;
	i = function->ends;
	if (!error && i)
		error = split_ending(frame, call->function, call->arguments[i - 1],
				     arguments[i - 1], &ended);
	result = error ? 0 : function->call(arguments);
	WRITE_ONCE(frame->answerer, NULL);
	if (alone.host)
		split_alone_end(&alone);
	/*
	 * What was set is known by its value from here on: the cell goes, what undoes the call may
	 * need it.
	 */
	for (i = 0; i < function->narguments; i++)
		if (function->arguments[i].way == SPLIT_NUMBER)
			arguments[i] = (unsigned long)cells[i];
	if (!error) {
		split_note(frame, call->function, arguments, result);
		error = split_hear_of(frame, &ended);
	}
	for (i = 0; i < function->narguments; i++) {
		if (!error && function->arguments[i].way == SPLIT_COUNTED && cells[i])
			error = give_memory(&function->arguments[i], call, call->arguments[i],
					    cells[i]);
		if (function->arguments[i].way == SPLIT_BRIEF ||
		    function->arguments[i].way == SPLIT_COUNTED)
			kvfree(cells[i]);
	}
	if (error)
		return error;
	for (i = 0; i < function->narguments; i++)
		if (function->arguments[i].way == SPLIT_NUMBER)
			call->arguments[i] = (unsigned long)cells[i];
		else if (function->arguments[i].way == SPLIT_RESULT &&
			 call->arguments[i]) call->arguments[i] =
			result_handle(frame, cells[i], function->arguments[i].type);
	call->result = function->result.way == SPLIT_OBJECT ?
		       result_handle(frame, (void *)result, function->result.type) : result;
	return 0;
}

/*
 * Brings the copies into step. Memory that the user half has asked for to call a function with has
 * the type of that argument from here on, so that what is in it goes down with the call.
 */
static long step(struct split_frame *frame, const struct split_call *call)
{
	const struct split_driver *driver = frame->host->driver;
	u64 function = call->arguments[1], number = call->arguments[2];
	void *address;

	if (!call->arguments[0])
		return 0;
	if (function >= driver->ndowncalls || number >= SPLIT_ARGUMENTS ||
	    !may_call(frame->entry, function))
		return -EPERM;
	return split_frame_resolve(frame, call->arguments[0],
				   driver->downcalls[function].arguments[number].type, &address);
}

/*
 * Runs a call in the thread of the user half. With frame->lock held; the message is in step with
 * the objects.
 */
long split_call(struct split_frame *frame, struct split_call *call)
{
	/* Whatever it takes must find room. */
	if (frame->ntaken == SPLIT_TAKEN)
		return -ENOLCK;
	switch (call->function) {
	case SPLIT_CALL_ALLOCATE:
		return allocate(frame, call);
	case SPLIT_CALL_FREE:
		return frame->entry->frees ? split_frame_free(frame, call->arguments[0]) : -EPERM;
	case SPLIT_CALL_MUTEX_INIT:
	case SPLIT_CALL_LOCK:
	case SPLIT_CALL_UNLOCK:
		return split_lock_call(frame, call);
	case SPLIT_CALL_STEP:
		return step(frame, call);
	case SPLIT_CALL_WORD:
		return word_call(frame, call);
	}
	return split_is_register_call(call->function) ? split_register_call(frame, call) :
	       table_call(frame, call);
}
