// SPDX-License-Identifier: GPL-2.0
/*
 * Locks that both halves take: mutexes, and combolocks, which are spinlocks until the user half
 * takes one. A frame takes them by calls, and what it has not given back goes back when it ends, in
 * whatever way.
 *
 * # Combolocks
 * A driver's user half holds one at a time. First `holder` is set, and from then on what takes such
 * a lock in atomic context is held off: interrupts are disabled, and the rest is sent away at its
 * first statement (`split_is_held_off`), to come later. All of it runs in readers' sections of RCU,
 * so after a grace period nothing is behind that statement. Then `held` is set under the lock
 * itself: who takes it as a spinlock sees whether it is the user half's.
 *
 * # Waiting
 * Who can sleep waits until it is given back; where its frame has been ended and the lock is still
 * not back, a call of that frame waits, perhaps for the lock, and does not get it before who waits
 * here. What cannot sleep never waits: it should have been held off, so that is said, and the frame
 * fails.
 */
#include <linux/delay.h>
#include <linux/interrupt.h>
#include <linux/rtnetlink.h>
#include <linux/sched/signal.h>

#include "runtime.h"

/* Lie in types as what a user half may take: a struct mutex, and a spinlock that the plan names. */
const struct split_type split_mutex = { .name = "mutex", .size = sizeof(struct mutex) };
EXPORT_SYMBOL_GPL(split_mutex);
const struct split_type split_combolock = { .name = "combolock", .size = sizeof(spinlock_t) };
EXPORT_SYMBOL_GPL(split_combolock);

bool split_is_held_off(struct split_host *host)
{
	return READ_ONCE(host->holder);
}
EXPORT_SYMBOL_GPL(split_is_held_off);

bool split_is_held(struct split_host *host, const spinlock_t *lock)
{
	return READ_ONCE(host->held) == lock;
}
EXPORT_SYMBOL_GPL(split_is_held);

void split_wait_for(struct split_host *host, const spinlock_t *lock)
{
	bool sleeps = split_may_sleep(), lost = false;
	unsigned long flags;

	if (sleeps && wait_event_timeout(host->given_back, !split_is_held(host, lock), HZ))
		return;
	spin_lock_irqsave(&host->holding, flags);
	if (host->held == lock && (!sleeps || host->holder->cancelled)) {
		WRITE_ONCE(host->holder->cancelled, true);
		WRITE_ONCE(host->held, NULL);
		lost = true;
	}
	spin_unlock_irqrestore(&host->holding, flags);
	if (!lost)
		return;
	wake_up_all(&host->given_back);
	pr_err_ratelimited("%s: a lock that the user half holds is taken from it: %s\n",
			   host->driver->name, sleeps ? "its upcall has ended" :
			   "what takes it is called in atomic context");
}
EXPORT_SYMBOL_GPL(split_wait_for);

int split_request_irq(struct split_host *host, unsigned int irq, irq_handler_t handler,
		      unsigned long flags, const char *name, void *dev)
{
	int error = -ENOSPC;

	mutex_lock(&host->lock);
	if (host->nirqs < SPLIT_IRQS)
		error = request_irq(irq, handler, flags, name, dev);
	if (!error) {
		host->irqs[host->nirqs++] = irq;
		if (host->holder)
			disable_irq_nosync(irq);
	}
	mutex_unlock(&host->lock);
	return error;
}
EXPORT_SYMBOL_GPL(split_request_irq);

const void *split_free_irq(struct split_host *host, unsigned int irq, void *dev)
{
	unsigned int i = 0;

	mutex_lock(&host->lock);
	while (i < host->nirqs && host->irqs[i] != irq)
		i++;
	if (i < host->nirqs) {
		host->irqs[i] = host->irqs[--host->nirqs];
		if (host->holder)
			enable_irq(irq);
	}
	mutex_unlock(&host->lock);
	return free_irq(irq, dev);
}
EXPORT_SYMBOL_GPL(split_free_irq);

/*
 * With host->lock held. It keeps who requests interrupts out, and no thread of a handler's is
 * waited for, which may call up.
 */
static void each_irq(struct split_host *host, void (*change)(unsigned int irq))
{
	unsigned int i;

	for (i = 0; i < host->nirqs; i++)
		change(host->irqs[i]);
}

static bool try_combolock(struct split_frame *frame, spinlock_t *lock)
{
	struct split_host *host = frame->host;
	bool free;

	mutex_lock(&host->lock);
	/* Who sleeps for it goes first: a user half could take it again and again. */
	free = !host->holder && !waitqueue_active(&host->given_back);
	if (free) {
		WRITE_ONCE(host->holder, frame);
		each_irq(host, disable_irq_nosync);
	}
	mutex_unlock(&host->lock);
	if (!free)
		return false;
	synchronize_rcu_expedited();
	spin_lock_irq(lock);
	WRITE_ONCE(host->held, lock);
	spin_unlock_irq(lock);
	return true;
}

static void give_combolock(struct split_host *host)
{
	mutex_lock(&host->lock);
	spin_lock_irq(&host->holding);
	WRITE_ONCE(host->held, NULL);
	WRITE_ONCE(host->holder, NULL);
	spin_unlock_irq(&host->holding);
	each_irq(host, enable_irq);
	mutex_unlock(&host->lock);
	wake_up_all(&host->given_back);
}

/* Gives a lock back that the frame has. */
void split_unlock(struct split_frame *frame, struct split_taken *one)
{
	struct mutex *mutex = one->arguments[1] ? NULL : (struct mutex *)one->arguments[0];

	split_given_back(frame, one);
	if (mutex)
		mutex_unlock(mutex);
	else
		give_combolock(frame->host);
}

/* Never waits for longer than the frame lives: two user threads may wait for each other. */
static long take(struct split_frame *frame, void *lock, bool spins)
{
	if (spins && READ_ONCE(frame->host->holder) == frame)
		return -EDEADLK;
	while (!(spins ? try_combolock(frame, lock) : mutex_trylock(lock))) {
		if (READ_ONCE(frame->cancelled) || fatal_signal_pending(current))
			return -ECANCELED;
		usleep_range(50, 200);
	}
	split_take(frame, SPLIT_CALL_LOCK,
		   (unsigned long[SPLIT_ARGUMENTS]){ (unsigned long)lock, spins }, 0);
	return 0;
}

long split_lock_call(struct split_frame *frame, const struct split_call *call)
{
	bool spins = call->arguments[1];
	struct split_taken *one;
	void *lock;
	long error = split_frame_resolve(frame, call->arguments[0],
					 spins ? &split_combolock : &split_mutex, &lock);

	if (error || !lock)
		return error ?: -EINVAL;
	one = split_find_taken(frame, SPLIT_CALL_LOCK, (unsigned long)lock, spins);
	if (call->function == SPLIT_CALL_LOCK)
		return one ? -EDEADLK : take(frame, lock, spins);
	if (call->function == SPLIT_CALL_UNLOCK) {
		if (!one)
			return -EPERM;
		split_unlock(frame, one);
		return 0;
	}
	/*
	 * A mutex that is held has waiters, perhaps, which would wait for ever. A combolock is
	 * unlocked when it is zeroed.
	 */
	if (spins || !mutex_trylock(lock))
		return -EBUSY;
	mutex_init((struct mutex *)lock);
	return 0;
}

void split_unlock_all(struct split_frame *frame)
{
	struct split_taken *one = &frame->taken[frame->ntaken];

	while (one-- != frame->taken)
		if (one->function == SPLIT_CALL_LOCK)
			split_unlock(frame, one);
}

static struct split_frame *answered(struct split_host *host)
{
	struct split_frame *frame;

	mutex_lock(&host->lock);
	frame = split_frame_of(host, current);
	mutex_unlock(&host->lock);
	return frame;
}

/*
 * Who waits for this upcall may hold rtnl, or wait for who does: then only the end of the upcall
 * ends the wait.
 */
bool split_take_rtnl(struct split_host *host)
{
	struct split_frame *frame = answered(host);

	if (!frame || frame->rtnl)
		return false;
	while (!rtnl_trylock()) {
		if (READ_ONCE(frame->cancelled) || fatal_signal_pending(current))
			return false;
		msleep(1);
	}
	frame->rtnl = true;
	return true;
}
EXPORT_SYMBOL_GPL(split_take_rtnl);

/*
 * Also where no call is answered: the run time gives back what an upcall that has failed had taken.
 */
bool split_give_rtnl(struct split_host *host)
{
	struct split_frame *frame = answered(host);
	bool undoes = !frame || READ_ONCE(frame->undoes), had = undoes || frame->rtnl;

	if (!undoes)
		frame->rtnl = false;
	return had;
}
EXPORT_SYMBOL_GPL(split_give_rtnl);
