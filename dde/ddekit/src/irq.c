/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/irq.h"

#include <errno.h>
#include <stdlib.h>

#include "ddekit/log.h"
#include "ddekit/time.h"
#include "device.h"
#include "journal.h"

#define MILLISECOND 1000000u
/*
 * Messages of which only the last is taken: by its count one that comes too often is found, and the
 * others cost no system call.
 */
#define SKIPPED 16

/* The numbers of both interfaces. */
_Static_assert(DDEKIT_INTX == RING3_INTX && DDEKIT_MSI == RING3_MSI && DDEKIT_MSIX == RING3_MSIX,
	       "kinds of interrupts differ");

unsigned int ddekit_irq_count(const struct ddekit_device *device, enum ddekit_irq_kind kind)
{
	return ring3_irq_count(device->device, kind);
}

static void rearm(void *arg)
{
	struct ddekit_vector *vector = arg;

	ring3_irq_rearm(vector->irq);
}

static void raised(void *arg)
{
	struct ddekit_vector *vector = arg;
	uint64_t count = 0;
	int64_t held;

	if (vector->edges && ++vector->skipped < SKIPPED) {
		vector->device->raised(vector->number);
		return;
	}
	vector->skipped = 0;
	if (ring3_irq_take(vector->irq, &count) < 0) {
		ddekit_logf(DDEKIT_ERROR, "interrupt %u: %s", vector->number, ddekit_error());
		return;
	}
	held = ring3_irq_held_ms(vector->irq);
	/* It may be set already: by the one before, when this came as it was being masked. */
	if (held >= 0)
		ddekit_ev_timer_set(&vector->rearm, ddekit_now() + (uint64_t)held * MILLISECOND);
	if (count > 0)
		vector->device->raised(vector->number);
}

void ddekit_irq_raise(struct ddekit_device *device, unsigned int vector)
{
	if (vector < device->vector_count)
		raised(&device->vectors[vector]);
}

void ddekit_irq_end(struct ddekit_device *device)
{
	for (unsigned int i = 0; i < device->vector_count; i++) {
		struct ddekit_vector *vector = &device->vectors[i];

		ddekit_ev_timer_cancel(&vector->rearm);
		ddekit_ev_unwatch(vector->watch);
		ring3_irq_close(vector->irq);
	}
	free(device->vectors);
	device->vectors = NULL;
	device->vector_count = 0;
}

int ddekit_irq_enable(struct ddekit_device *device, enum ddekit_irq_kind kind, unsigned int count,
		      void (*function)(unsigned int vector))
{
	struct ring3_irq **irqs = calloc(count + 1, sizeof(struct ring3_irq *));
	struct ddekit_vector *vectors = calloc(count + 1, sizeof(*vectors));
	int result = irqs && vectors ? 0 : -ENOMEM;

	ddekit_irq_end(device);
	if (result == 0)
		result = ring3_irq_open(device->device, kind, (uint16_t)count, irqs);
	if (result < 0) {
		free(irqs);
		free(vectors);
		return result;
	}
	device->vectors = vectors;
	device->vector_count = count;
	device->raised = function;
	for (unsigned int i = 0; i < count; i++) {
		vectors[i] = (struct ddekit_vector){ .irq = irqs[i], .number = i, .device = device,
						     .edges = kind != DDEKIT_INTX };
		vectors[i].rearm = (struct ddekit_timer){ .function = rearm, .arg = &vectors[i] };
		if (journal_is_on())
			continue;
		/* The pin is masked until it was taken. */
		vectors[i].watch = vectors[i].edges ? ddekit_ev_watch_edges(ring3_irq_fd(irqs[i]),
									    raised, &vectors[i]) :
						      ddekit_ev_watch(ring3_irq_fd(irqs[i]), raised,
								      &vectors[i]);
		if (!vectors[i].watch)
			result = -errno;
	}
	free(irqs);
	if (result < 0)
		ddekit_irq_end(device);
	return result;
}

void ddekit_irq_mask(struct ddekit_device *device, unsigned int vector)
{
	if (vector < device->vector_count)
		ring3_irq_mask(device->vectors[vector].irq);
}

void ddekit_irq_unmask(struct ddekit_device *device, unsigned int vector)
{
	if (vector < device->vector_count)
		ring3_irq_unmask(device->vectors[vector].irq);
}
