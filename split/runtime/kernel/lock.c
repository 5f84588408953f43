// SPDX-License-Identifier: GPL-2.0
/*
 * Locks that both halves take: mutexes, and combolocks, which are spinlocks until the user half
 * takes one. A frame takes them by calls, and what it has not given back goes back when it ends, in
 * whatever way.
 *
 * # Owners
 * A mutex belongs to a task, which alone may unlock it, and no task goes back to its process with
 * one. The thread of the user half does go back, and may be dead when its frame ends. So mutexes
 * and rtnl are taken and given back by the task that waits for the upcall, as in a driver that is
 * not split: the thread of the user half leaves it a wish (`split_frame.wish`).
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

/* A wish is the address of a mutex, or 0 for rtnl, and one of the first two of these. */
#define SPLIT_WISH_TAKE 1UL
#define SPLIT_WISH_GIVE 2UL
/* In place of a wish: its lock is being given back, so it cannot be withdrawn any more. */
#define SPLIT_WISH_BEGUN 3UL

static bool lock_of(unsigned long wish, bool take)
{
	struct mutex *mutex = (struct mutex *)(wish & ~(SPLIT_WISH_TAKE | SPLIT_WISH_GIVE));

	if (take)
		return mutex ? mutex_trylock(mutex) : rtnl_trylock();
	if (mutex)
		mutex_unlock(mutex);
	else
		rtnl_unlock();
	return true;
}

/*
 * Has the frame's caller take a lock or give one back. False when the frame was cancelled, or the
 * thread is killed, before the caller did so. By a thread of the user half, with frame->lock held:
 * so there is one wish at a time.
 */
static bool wish(struct split_frame *frame, unsigned long wish)
{
	if (READ_ONCE(frame->cancelled))
		return false;
	WRITE_ONCE(frame->wish, wish);
	complete(&frame->done);
	wait_event_killable(frame->granted,
			    !READ_ONCE(frame->wish) || READ_ONCE(frame->cancelled));
	if (cmpxchg(&frame->wish, wish, 0) == wish)
		return false;
	/* The thread may free what the mutex is in, so the caller must be done with the mutex. */
	wait_event(frame->granted, !smp_load_acquire(&frame->wish));
	return true;
}

/*
 * Does what the frame wishes, by its caller, until `deadline`. It waits no longer for a lock: two
 * upcalls may wait for each other. A wish is withdrawn when it is none any more.
 */
static void grant(struct split_frame *frame, unsigned long deadline)
{
	unsigned long wish;

	while ((wish = READ_ONCE(frame->wish))) {
		bool take = wish & SPLIT_WISH_TAKE;

		if (take && !lock_of(wish, true)) {
			if (fatal_signal_pending(current) || time_after_eq(jiffies, deadline))
				return;
			usleep_range(50, 200);
			continue;
		}
		if (take) {
			/* What was withdrawn meanwhile is not taken. */
			if (cmpxchg(&frame->wish, wish, 0) != wish)
				lock_of(wish, false);
		} else if (cmpxchg(&frame->wish, wish, SPLIT_WISH_BEGUN) == wish) {
			lock_of(wish, false);
			smp_store_release(&frame->wish, 0);
		}
		wake_up(&frame->granted);
	}
}

/*
 * Waits for the end of a frame as its caller: as wait_for_completion_killable_timeout does, with
 * its results.
 */
long split_wait(struct split_frame *frame, unsigned long timeout)
{
	unsigned long deadline = jiffies + timeout;
	long left = timeout;

	do {
		left = wait_for_completion_killable_timeout(&frame->done, left);
		if (left <= 0 || READ_ONCE(frame->state) == SPLIT_ENDED)
			return left;
		grant(frame, deadline);
		left = deadline - jiffies;
	} while (left > 0);
	return 0;
}

/*
 * Gives a lock back that the frame has, by a call of the user half. An error: the frame is
 * cancelled, and its caller will do it.
 */
int split_unlock(struct split_frame *frame, struct split_taken *one)
{
	bool spins = one->arguments[1];

	if (!spins && !wish(frame, one->arguments[0] | SPLIT_WISH_GIVE))
		return -ECANCELED;
	split_given_back(frame, one);
	if (spins)
		give_combolock(frame->host);
	return 0;
}

/* Never waits for longer than the frame lives: two user threads may wait for each other. */
static long take_combolock(struct split_frame *frame, spinlock_t *lock)
{
	if (READ_ONCE(frame->host->holder) == frame)
		return -EDEADLK;
	while (!try_combolock(frame, lock)) {
		if (READ_ONCE(frame->cancelled) || fatal_signal_pending(current))
			return -ECANCELED;
		usleep_range(50, 200);
	}
	return 0;
}

/* `lasts`: the lock is the driver's own data, and no object that could end takes it along. */
static long take(struct split_frame *frame, void *lock, bool spins, bool lasts)
{
	long error = 0;

	if (spins)
		error = take_combolock(frame, lock);
	else if (!wish(frame, (unsigned long)lock | SPLIT_WISH_TAKE))
		error = -ECANCELED;
	if (error)
		return error;
	split_take(frame, SPLIT_CALL_LOCK,
		   (unsigned long[SPLIT_ARGUMENTS]){ (unsigned long)lock, spins, lasts }, 0);
	return 0;
}

long split_lock_call(struct split_frame *frame, const struct split_call *call)
{
	static struct lock_class_key key;
	bool spins = call->arguments[1];
	struct split_taken *one;
	struct mutex *mutex;
	void *lock;
	long error = split_frame_resolve(frame, call->arguments[0],
					 spins ? &split_combolock : &split_mutex, &lock);

	if (error || !lock)
		return error ?: -EINVAL;
	one = split_find_taken(frame, SPLIT_CALL_LOCK, (unsigned long)lock, spins);
	/* Others may wait for it, and follow its list. */
	if (call->function == SPLIT_CALL_LOCK && !spins && !split_is_mutex(lock))
		return -EINVAL;
	if (call->function == SPLIT_CALL_LOCK)
		return one ? -EDEADLK :
		       take(frame, lock, spins,
			    SPLIT_GENERATION(call->arguments[0]) == SPLIT_SYMBOLS);
	if (call->function == SPLIT_CALL_UNLOCK)
		return one ? split_unlock(frame, one) : -EPERM;
	/*
	 * A mutex stays what it is: one that is held, or about to be, has waiters, perhaps, which
	 * would wait for ever. A combolock is unlocked when it is zeroed.
	 */
	mutex = lock;
	if (spins || mutex_is_locked(mutex) ||
	    (split_is_mutex(mutex) && !list_empty(&mutex->wait_list)))
		return -EBUSY;
	split_make_mutex(mutex, &key);
	return 0;
}

/* The combolocks of a frame that ends. */
void split_unlock_combolocks(struct split_frame *frame)
{
	struct split_taken *one = &frame->taken[frame->ntaken];

	while (one-- != frame->taken)
		if (one->function == SPLIT_CALL_LOCK && one->arguments[1])
			split_unlock(frame, one);
}

/* The mutexes of a frame that has ended, by its caller, who has taken them. */
void split_unlock_mutexes(struct split_frame *frame)
{
	struct split_taken *one = &frame->taken[frame->ntaken];

	while (one-- != frame->taken) {
		if (one->function != SPLIT_CALL_LOCK)
			continue;
		lock_of(one->arguments[0], false);
		split_given_back(frame, one);
	}
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

	if (!frame || frame->rtnl || !wish(frame, SPLIT_WISH_TAKE))
		return false;
	frame->rtnl = true;
	return true;
}
EXPORT_SYMBOL_GPL(split_take_rtnl);

/*
 * Also where no call is answered: the caller of an upcall that has failed gives back what that had
 * taken.
 */
bool split_give_rtnl(struct split_host *host)
{
	struct split_frame *frame = answered(host);

	if (!frame || READ_ONCE(frame->undoes)) {
		rtnl_unlock();
		return true;
	}
	if (!frame->rtnl || !wish(frame, SPLIT_WISH_GIVE))
		return false;
	frame->rtnl = false;
	return true;
}
EXPORT_SYMBOL_GPL(split_give_rtnl);
