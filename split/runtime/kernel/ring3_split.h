/* SPDX-License-Identifier: GPL-2.0 */
/* What the kernel half of a split driver uses of the run time. */
#ifndef RING3_SPLIT_H
#define RING3_SPLIT_H

#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/pci.h>

#include "tables.h"

struct split_host;
extern const struct split_type split_mutex;

/*
 * Makes a driver known; its user half attaches to it by name. `split_unregister` ends what is
 * pending, and takes the memory that the user half has allocated and not freed.
 */
struct split_host *split_register(const struct split_driver *driver);
void split_unregister(struct split_host *host);

/*
 * Runs an entry in the user half and returns its result, or `failure` of the entry: in atomic
 * context, without a user half, when it dies or does not answer in time, and when the caller is
 * killed. Sleeps.
 */
long split_upcall(struct split_host *host, unsigned int entry, const unsigned long *arguments);

/* Whether an upcall from here would reach a user half. */
bool split_asks(struct split_host *host);

/*
 * Registers that the user half may touch from now on: ports, and a mapping, until it goes. `bus` is
 * where it is on the bus, 0 if it is not to be mapped. `split_is_mapped`: whether such a mapping
 * begins there.
 */
void split_allow_ports(struct split_host *host, unsigned long start, unsigned long size);
void split_allow_io(struct split_host *host, void __iomem *address, unsigned long size,
		    phys_addr_t bus);
void split_deny_io(struct split_host *host, const void __iomem *address);
bool split_is_mapped(struct split_host *host, const void __iomem *address);

/*
 * Combolocks. `split_is_held_off`: the user half has one, or is about to, and what takes one in
 * atomic context has to come later. `split_is_held`: this one is the user half's; asked by who has
 * just taken it as a spinlock, who then lets go of it and waits.
 */
bool split_is_held_off(struct split_host *host);
bool split_is_held(struct split_host *host, const spinlock_t *lock);
void split_wait_for(struct split_host *host, const spinlock_t *lock);

/*
 * Locks that may be zeroed memory: see ready.c. A mutex is one when it has both ends of its list.
 */
void split_make_mutex(struct mutex *mutex, struct lock_class_key *key);
void split_make_spinlock(spinlock_t *lock, struct lock_class_key *key);
static inline bool split_is_mutex(const struct mutex *mutex)
{
	return READ_ONCE(mutex->wait_list.next) && READ_ONCE(mutex->wait_list.prev);
}

/*
 * Whether this thread answers for what that work item has called up: who waited for the item here
 * would wait for himself.
 */
bool split_answers_for(struct split_host *host, const struct work_struct *work);

/*
 * What the user half may do with rtnl, by its own calls: it takes it once in an upcall, waits for
 * it no longer than its upcall is waited for, and gives back what it has taken.
 */
bool split_take_rtnl(struct split_host *host);
bool split_give_rtnl(struct split_host *host);

/* The first statement of a function that runs alone (alone.c). Sleeps. */
struct split_alone {
	struct split_host *host;
	struct task_struct *before; /* whose section it is a part of; NULL: nobody's */
};
struct split_alone split_alone_begin(struct split_host *host);
void split_alone_end(struct split_alone *alone);
#define SPLIT_ALONE \
	struct split_alone split_alone __attribute__((cleanup(split_alone_end))) = \
		split_alone_begin(split_host)

/* Interrupts that are disabled while the user half has a combolock. */
int split_request_irq(struct split_host *host, unsigned int irq, irq_handler_t handler,
		      unsigned long flags, const char *name, void *dev);
const void *split_free_irq(struct split_host *host, unsigned int irq, void *dev);

/* Frees what the user half has allocated, or what the kernel half has. */
void split_free(struct split_host *host, const void *address);

/* Memory of the device's, which is freed by the run time's account of it: see dma.c. */
void *split_dma_alloc(struct split_host *host, struct device *device, size_t size, dma_addr_t *bus,
		      gfp_t gfp, unsigned long attributes);
void split_dma_free(struct split_host *host, const void *address);

#endif
