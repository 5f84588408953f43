// SPDX-License-Identifier: GPL-2.0
/*
 * What a frame has taken by its calls, and gives back: by a call, when what it belongs to ends, or
 * when the frame fails.
 */
#include "runtime.h"

void split_take(struct split_frame *frame, u32 function, const unsigned long *arguments,
		unsigned long result)
{
	struct split_taken *one = &frame->taken[frame->ntaken++];

	one->function = function;
	one->result = result;
	memcpy(one->arguments, arguments, sizeof(one->arguments));
}

void split_given_back(struct split_frame *frame, struct split_taken *one)
{
	memmove(one, one + 1, (char *)&frame->taken[--frame->ntaken] - (char *)one);
}

/* The last thing of a kind that was taken, if it was this one. */
struct split_taken *split_find_taken(struct split_frame *frame, u32 function, unsigned long first,
				     unsigned long second)
{
	struct split_taken *one = &frame->taken[frame->ntaken];

	while (one-- != frame->taken)
		if (one->function == function && one->arguments[0] == first &&
		    one->arguments[1] == second)
			return one;
	return NULL;
}

/* Gives back something that was taken. An error: it is a lock, and the frame is cancelled. */
int split_give_up(struct split_frame *frame, struct split_taken *one)
{
	struct split_taken taken = *one;

	if (taken.function == SPLIT_CALL_LOCK)
		return split_unlock(frame, one);
	split_given_back(frame, one);
	if (taken.function == SPLIT_CALL_WORD)
		clear_bit(taken.arguments[1], (unsigned long *)taken.arguments[0]);
	else
		frame->host->driver->downcalls[taken.function].undo(taken.arguments, taken.result);
	return 0;
}

/* Keeps account of what a function of the table has taken, or given back. */
void split_note(struct split_frame *frame, u32 function, const unsigned long *arguments,
		unsigned long result)
{
	const struct split_downcall *calls = frame->host->driver->downcalls;
	struct split_taken *one = &frame->taken[frame->ntaken];
	bool done = calls[function].result.way == SPLIT_OBJECT ? !IS_ERR_OR_NULL((void *)result) :
		    !(int)result;

	/* What nothing ends is begun once, however often it is called. */
	if (calls[function].undo && done &&
	    (calls[function].undone_by ||
	     !split_find_taken(frame, function, arguments[0], arguments[1])))
		split_take(frame, function, arguments, result);
	while (one-- != frame->taken) {
		const struct split_downcall *by = one->function < SPLIT_CALL_ALLOCATE ?
						  &calls[one->function] : NULL;

		if (by && by->undone_by == function + 1 && arguments[by->undone_key] ==
		    (by->key == SPLIT_ARGUMENTS ? one->result : one->arguments[by->key])) {
			split_given_back(frame, one);
			break;
		}
	}
}

/*
 * After a frame that has failed: gives back what it took, the last first. No call of it is running
 * any more.
 */
void split_undo(struct split_frame *frame)
{
	struct split_frame *answered;

	/* The caller of this upcall may be in a call of another one. */
	mutex_lock(&frame->host->lock);
	answered = split_frame_of(frame->host, current);
	mutex_unlock(&frame->host->lock);
	if (answered)
		WRITE_ONCE(answered->undoes, true);
	/* Where too much has ended it has forgotten all that it took. */
	split_hear_of(frame, NULL);
	while (frame->ntaken)
		split_give_up(frame, &frame->taken[frame->ntaken - 1]);
	if (answered)
		WRITE_ONCE(answered->undoes, false);
}
