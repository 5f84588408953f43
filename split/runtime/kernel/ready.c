// SPDX-License-Identifier: GPL-2.0
/*
 * Locks that nobody has initialised. The driver's source may do so in a function of the user half,
 * which has a copy: the kernel's lock is what zeroed memory is. That is an unlocked lock, with two
 * exceptions. Who waits for a mutex follows its list, so the first one that takes it makes one. And
 * a kernel that checks its spinlocks knows them by a number in them.
 */
#include <linux/mutex.h>
#include <linux/spinlock.h>

#include "ring3_split.h"

/* Two may be the first ones. */
static DEFINE_RAW_SPINLOCK(making);

void split_make_mutex(struct mutex *mutex, struct lock_class_key *key)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&making, flags);
	if (!split_is_mutex(mutex))
		__mutex_init(mutex, "a mutex of the driver's", key);
	raw_spin_unlock_irqrestore(&making, flags);
}
EXPORT_SYMBOL_GPL(split_make_mutex);

#if defined(CONFIG_DEBUG_SPINLOCK) && !defined(CONFIG_PREEMPT_RT)
void split_make_spinlock(spinlock_t *lock, struct lock_class_key *key)
{
	unsigned long flags;
	spinlock_t made;

	__raw_spin_lock_init(&made.rlock, "a spinlock of the driver's", key, LD_WAIT_CONFIG);
	/* Who sees the number takes the lock: all else is there before it. */
	made.rlock.magic = 0;
	raw_spin_lock_irqsave(&making, flags);
	if (!lock->rlock.magic) {
		*lock = made;
		smp_store_release(&lock->rlock.magic, SPINLOCK_MAGIC);
	}
	raw_spin_unlock_irqrestore(&making, flags);
}
EXPORT_SYMBOL_GPL(split_make_spinlock);
#endif
