/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a kernel half has whose plan names combolocks: each spinlock that it takes may be one that
 * the user half holds, and an interrupt is requested so that it can be disabled meanwhile.
 */
#ifndef COMBOLOCK_H
#define COMBOLOCK_H

#include <linux/netdevice.h>
#include <linux/spinlock.h>

#include "kernel_half.h"

#define SPLIT_TAKE(lock, take, give)                                     \
	do {                                                             \
		spinlock_t *split_lock = split_ready(lock);              \
		for (;;) {                                               \
			take;                                            \
			if (likely(!split_is_held(split_host, split_lock))) \
				break;                                   \
			give;                                            \
			split_wait_for(split_host, split_lock);          \
		}                                                        \
	} while (0)

#undef spin_lock
#undef spin_lock_bh
#undef spin_lock_irq
#undef spin_lock_irqsave
#define spin_lock(lock) SPLIT_TAKE(lock, (spin_lock)(split_lock), spin_unlock(split_lock))
#define spin_lock_bh(lock) SPLIT_TAKE(lock, (spin_lock_bh)(split_lock), spin_unlock_bh(split_lock))
#define spin_lock_irq(lock) \
	SPLIT_TAKE(lock, (spin_lock_irq)(split_lock), spin_unlock_irq(split_lock))
#define spin_lock_irqsave(lock, flags)                                   \
	SPLIT_TAKE(lock, raw_spin_lock_irqsave(spinlock_check(split_lock), flags), \
		   spin_unlock_irqrestore(split_lock, flags))

/* Of a driver whose interrupt handler takes a combolock. */
#ifdef SPLIT_HOLDS_IRQS
#define request_irq(irq, handler, flags, name, dev) \
	split_request_irq(split_host, irq, handler, flags, name, dev)
#define free_irq(irq, dev) split_free_irq(split_host, irq, dev)
#endif

#endif
