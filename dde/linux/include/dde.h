/* SPDX-License-Identifier: GPL-2.0-only */
/* What the parts of the emulation say to each other. */
#ifndef DDE_H
#define DDE_H

#include <linux/interrupt.h>
#include <linux/pci.h>
#include <linux/sched.h>

#include "ddekit/card.h"
#include "ddekit/context.h"
#include "ddekit/device.h"
#include "ddekit/dma.h"
#include "ddekit/event.h"
#include "ddekit/irq.h"
#include "ddekit/log.h"
#include "ddekit/random.h"
#include "ddekit/time.h"

#include "dde_version.h"

/* The one device of this process. */
extern struct ddekit_device *dde_device;

/*
 * Where base address register `bar` of the device lies on the bus that the kernel sees, and how
 * long it is; a length of 0 for none.
 */
struct dde_window {
	resource_size_t start;
	resource_size_t len;
	bool ports;
};
struct dde_window dde_pci_window(unsigned int bar);
/* Why no driver has the device, in words: which ones there are, and what they take. */
const char *dde_pci_misfit(void);

/* The pin of the device, as the kernel numbers interrupts. */
#define DDE_IRQ_PIN 16
/* The interrupts of IDE in compatibility mode. [PCI-IDE 2.1] */
#define DDE_IRQ_IDE 14
#define DDE_IRQ_IDE_COUNT 2
/* The first of its messages. */
#define DDE_IRQ_MESSAGES 32
#define DDE_MESSAGES_MAX 32

/* Start-up, in this order. */
void dde_mm_init(void);
void dde_sched_init(void);
void dde_irq_init(void);
void dde_start_kernel(void);
/* Bytes of the stack of each thread. */
extern const unsigned long dde_stack_size;
/* Has the device signal by `kind`, as interrupts from `first` on. */
int dde_irq_use(enum ddekit_irq_kind kind, unsigned int first, unsigned int count);
/* Has it signal by its pin, or not at all if it has none. */
int dde_irq_use_pin(void);

/*
 * Lets what the host has come in: time, interrupts, frames. Sleeps until `until` (ddekit_now()'s)
 * if nothing is there; 0 does not sleep.
 */
void dde_poll(u64 until);
/* The glue's: called after the host was heard, for what waits for the driver. */
void dde_glue_idle(void);
/*
 * The glue's, if it polls: looks for what has come, without the host; false if there is no need to,
 * and one may sleep.
 */
bool dde_glue_busy(void);
/*
 * The glue's: what the process is for, once the drivers were initialised; in a thread of the
 * kernel.
 */
void dde_run(void);
/* Has jiffies and timers know how late it is. */
void dde_tick(void);
/* Bytes of an allocated block, for who has only its address. */
struct kmem_cache *dde_slab_of(const void *object);

#endif
