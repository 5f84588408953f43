/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parts of ddekit that stand on ring3.h know of a device. */
#ifndef DDEKIT_SRC_DEVICE_H
#define DDEKIT_SRC_DEVICE_H

#include <ring3.h>

#include "ddekit/device.h"
#include "ddekit/dma.h"
#include "ddekit/event.h"

#define BARS 6

struct ddekit_vector {
	struct ring3_irq *irq;
	struct ddekit_watch *watch;
	unsigned int number;
	/* It signals by messages, each of which is heard once. */
	bool edges;
	unsigned int skipped;
	/* Ends the pause of one that came too often. */
	struct ddekit_timer rearm;
	struct ddekit_device *device;
};

struct ddekit_device {
	struct ring3_device *device;
	struct ring3_buffer *memory;
	struct ddekit_arena arena;
	struct ring3_bar *bars[BARS];
	struct ddekit_vector *vectors;
	unsigned int vector_count;
	void (*raised)(unsigned int vector);
	/* Until the device is wanted back. */
	struct ddekit_watch *removal;
	void (*wanted_back)(void *arg);
	void *wanted_back_arg;
};

/* Has the interrupt heard that a recording has. */
void ddekit_irq_raise(struct ddekit_device *device, unsigned int vector);

/* Disables all interrupts. */
void ddekit_irq_end(struct ddekit_device *device);

#endif
