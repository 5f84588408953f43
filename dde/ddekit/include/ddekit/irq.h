/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Interrupts: each vector has a function that the event loop calls. */
#ifndef DDEKIT_IRQ_H
#define DDEKIT_IRQ_H

#include "ddekit/device.h"

/**
 * enum ddekit_irq_kind - how a function signals
 * @DDEKIT_INTX: by its pin, a level: masked from when it fired until ddekit_irq_unmask()
 * @DDEKIT_MSI: by messages to one address
 * @DDEKIT_MSIX: by messages, of a table of vectors
 */
enum ddekit_irq_kind { DDEKIT_INTX, DDEKIT_MSI, DDEKIT_MSIX };

/** ddekit_irq_count() - how many vectors of @kind the device has */
unsigned int ddekit_irq_count(const struct ddekit_device *device, enum ddekit_irq_kind kind);

/**
 * ddekit_irq_enable() - enable vectors 0 to @count - 1 of @kind, and disable what was enabled
 * before @device: the device @kind: which @count: how many; 0 only disables @function: called from
 * ddekit_ev_poll() when a vector was raised, with the vector
 *
 * The pin comes masked, messages come open.
 *
 * Return: 0 or a negative errno.
 */
int ddekit_irq_enable(struct ddekit_device *device, enum ddekit_irq_kind kind, unsigned int count,
		      void (*function)(unsigned int vector));

/** ddekit_irq_mask() - hold @vector back: one that comes meanwhile comes when it is unmasked */
void ddekit_irq_mask(struct ddekit_device *device, unsigned int vector);

/** ddekit_irq_unmask() - let @vector through; look at the device once more before sleeping */
void ddekit_irq_unmask(struct ddekit_device *device, unsigned int vector);

#ifdef DDEKIT_FUZZ
/**
 * ddekit_irq_deliver() - call what was raised and is not masked: only a device that is made of
 * bytes is asked for it, wherever a processor would be interrupted
 */
void ddekit_irq_deliver(void);
#endif

#endif
