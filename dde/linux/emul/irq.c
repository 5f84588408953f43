// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts: vectors of the device are interrupts of the kernel, the pin a level and messages
 * edges. They arrive in dde_poll() alone, so that code with interrupts off is never interrupted:
 * the flag only keeps dde_poll() from being called there.
 */
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/irq.h>
#include <linux/irqdesc.h>

#include "dde.h"

int signals_enabled;
static unsigned int base = DDE_IRQ_PIN;

int um_set_signals(int enable)
{
	int was = signals_enabled;

	signals_enabled = enable;
	return was;
}

void block_signals(void)
{
	signals_enabled = 0;
}

void unblock_signals(void)
{
	signals_enabled = 1;
}

#if DDE_LINUX_7
/* Counts, which nobody reads. */
DEFINE_PER_CPU_SHARED_ALIGNED(irq_cpustat_t, irq_stat);

int um_get_signals(void)
{
	return signals_enabled;
}
#endif

static void mask(struct irq_data *data)
{
	ddekit_irq_mask(dde_device, data->irq - base);
}

static void unmask(struct irq_data *data)
{
	ddekit_irq_unmask(dde_device, data->irq - base);
}

static void acknowledge(struct irq_data *data)
{
}

static struct irq_chip chip = { .name = "ring3", .irq_mask = mask, .irq_unmask = unmask,
				.irq_ack = acknowledge };

static void raised(unsigned int vector)
{
	unsigned long flags;

	local_irq_save(flags);
	irq_enter();
	generic_handle_irq(base + vector);
	irq_exit();
	local_irq_restore(flags);
}

/* Has the device signal by `kind`, as interrupts from `first` on. */
int dde_irq_use(enum ddekit_irq_kind kind, unsigned int first, unsigned int count)
{
	int result = ddekit_irq_enable(dde_device, kind, count, raised);

	if (result == 0)
		base = first;
	return result;
}

/*
 * By the pin, if there is one. A controller of IDE in compatibility mode has two, which the kernel
 * knows.
 */
int dde_irq_use_pin(void)
{
	unsigned int count = ddekit_irq_count(dde_device, DDEKIT_INTX);

	if (count == 0)
		return dde_irq_use(DDEKIT_MSI, DDE_IRQ_MESSAGES, 0);
	return dde_irq_use(DDEKIT_INTX, count == DDE_IRQ_IDE_COUNT ? DDE_IRQ_IDE : DDE_IRQ_PIN,
			   count);
}

void dde_irq_init(void)
{
#if DDE_LINUX_7
	/* Numbers have descriptors when somebody has asked for them. */
	irq_alloc_descs(DDE_IRQ_IDE, DDE_IRQ_IDE, DDE_IRQ_MESSAGES + DDE_MESSAGES_MAX - DDE_IRQ_IDE,
			0);
#endif
	irq_set_chip_and_handler(DDE_IRQ_PIN, &chip, handle_level_irq);
	for (unsigned int i = 0; i < DDE_IRQ_IDE_COUNT; i++)
		irq_set_chip_and_handler(DDE_IRQ_IDE + i, &chip, handle_level_irq);
	for (unsigned int i = 0; i < DDE_MESSAGES_MAX; i++)
		irq_set_chip_and_handler(DDE_IRQ_MESSAGES + i, &chip, handle_edge_irq);
	if (dde_irq_use_pin() < 0)
		pr_warn("dde: the device's pin: %s\n", ddekit_error());
}

int arch_show_interrupts(struct seq_file *file, int precision)
{
	return 0;
}

#if DDE_LINUX_7
/*
 * What must not run where it is queued: of the kernel below a driver SRCU has such work, and it
 * only queues a work item.
 */
bool irq_work_queue(struct irq_work *work)
{
	work->func(work);
	return true;
}

void irq_work_sync(struct irq_work *work) { }
#endif
