/* SPDX-License-Identifier: GPL-2.0 */
/* Locks of a kernel half that may be zeroed memory are made locks where they are taken: ready.c. */
#ifndef READY_H
#define READY_H

#include <linux/mutex.h>
#include <linux/spinlock.h>

#include "ring3_split.h"

#define split_ready_mutex(lock)                                          \
	({                                                               \
		static struct lock_class_key split_key;                  \
		struct mutex *split_mutex_here = lock;                   \
		if (unlikely(!split_is_mutex(split_mutex_here)))         \
			split_make_mutex(split_mutex_here, &split_key);  \
		split_mutex_here;                                        \
	})

#ifdef CONFIG_DEBUG_LOCK_ALLOC
#undef mutex_lock
#undef mutex_lock_interruptible
#undef mutex_lock_killable
#define mutex_lock(lock) mutex_lock_nested(split_ready_mutex(lock), 0)
#define mutex_lock_interruptible(lock) mutex_lock_interruptible_nested(split_ready_mutex(lock), 0)
#define mutex_lock_killable(lock) mutex_lock_killable_nested(split_ready_mutex(lock), 0)
#else
#define mutex_lock(lock) mutex_lock(split_ready_mutex(lock))
#define mutex_lock_interruptible(lock) mutex_lock_interruptible(split_ready_mutex(lock))
#define mutex_lock_killable(lock) mutex_lock_killable(split_ready_mutex(lock))
#endif
#ifndef mutex_trylock
#define mutex_trylock(lock) mutex_trylock(split_ready_mutex(lock))
#endif

#if defined(CONFIG_DEBUG_SPINLOCK) && !defined(CONFIG_PREEMPT_RT)
#define split_ready(lock)                                                \
	({                                                               \
		static struct lock_class_key split_key;                  \
		spinlock_t *split_spinlock = lock;                       \
		if (unlikely(!smp_load_acquire(&split_spinlock->rlock.magic))) \
			split_make_spinlock(split_spinlock, &split_key); \
		split_spinlock;                                          \
	})

#undef spin_lock_irqsave
#define spin_lock(lock) spin_lock(split_ready(lock))
#define spin_lock_bh(lock) spin_lock_bh(split_ready(lock))
#define spin_lock_irq(lock) spin_lock_irq(split_ready(lock))
#define spin_lock_irqsave(lock, flags) \
	raw_spin_lock_irqsave(spinlock_check(split_ready(lock)), flags)
#else
#define split_ready(lock) (lock)
#endif

#endif
