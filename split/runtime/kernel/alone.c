// SPDX-License-Identifier: GPL-2.0
/*
 * Functions of a driver that run alone: no other of them begins meanwhile, whoever calls it, and
 * what must be so before a call stays so until it runs. A plan names them (`alone`).
 *
 * # Nesting
 * What runs alone may call up, and the user half's answer may call such a function again: that one
 * is part of the first. So the section has a task, and a frame remembers the task that waits for
 * its answer.
 *
 * # Waiting
 * Which is bounded: an upcall is, and what runs alone waits for nothing else of the user half's. A
 * call of a frame that was cancelled waits no longer, for its caller waits for the end of the call.
 */
#include "runtime.h"

static bool begin(struct split_host *host, struct task_struct *caller, struct split_alone *alone)
{
	bool mine;

	spin_lock(&host->holding_alone);
	mine = !host->alone || host->alone == current || host->alone == caller;
	if (mine) {
		*alone = (struct split_alone){ host, host->alone };
		host->alone = current;
	}
	spin_unlock(&host->holding_alone);
	return mine;
}

/* By a call of the user half; false when its frame was cancelled. */
bool split_alone_begin_call(struct split_frame *frame, struct split_alone *alone)
{
	bool mine = false;

	wait_event(frame->host->alone_ended, READ_ONCE(frame->cancelled) ||
		   (mine = begin(frame->host, frame->caller, alone)));
	return mine;
}

struct split_alone split_alone_begin(struct split_host *host)
{
	struct split_alone alone;

	wait_event(host->alone_ended, begin(host, NULL, &alone));
	return alone;
}
EXPORT_SYMBOL_GPL(split_alone_begin);

void split_alone_end(struct split_alone *alone)
{
	spin_lock(&alone->host->holding_alone);
	alone->host->alone = alone->before;
	spin_unlock(&alone->host->holding_alone);
	wake_up_all(&alone->host->alone_ended);
}
EXPORT_SYMBOL_GPL(split_alone_end);
