// SPDX-License-Identifier: GPL-2.0-only
/*
 * MSI and MSI-X: address, data and table are the device layer's, so that drivers' calls go there
 * and drivers/pci/msi is not compiled.
 */
#include <linux/irq.h>
#include <linux/pci.h>

#include "dde.h"
#include "dde_options.h"

void pci_msi_init(struct pci_dev *dev)
{
	dev->msi_cap = pci_find_capability(dev, PCI_CAP_ID_MSI);
}

void pci_msix_init(struct pci_dev *dev)
{
	dev->msix_cap = pci_find_capability(dev, PCI_CAP_ID_MSIX);
}

#if DDE_LINUX_7
bool pci_msi_enabled(void)
#else
int pci_msi_enabled(void)
#endif
{
	return 1;
}

struct irq_domain *pci_msi_get_device_domain(struct pci_dev *dev)
{
	return NULL;
}

void pci_restore_msi_state(struct pci_dev *dev)
{
}

static int available(enum ddekit_irq_kind kind)
{
	unsigned int count = kind == DDEKIT_MSIX && dde_options.no_msix ? 0 :
			     ddekit_irq_count(dde_device, kind);

	return count ? min_t(unsigned int, count, DDE_MESSAGES_MAX) : -EINVAL;
}

int pci_msix_vec_count(struct pci_dev *dev)
{
	return available(DDEKIT_MSIX);
}

int pci_msi_vec_count(struct pci_dev *dev)
{
	return available(DDEKIT_MSI);
}

/* Enables as many of `most` messages as there are; how many, or -ENOSPC for less than `least`. */
static int enable(enum ddekit_irq_kind kind, int least, int most)
{
	int count = available(kind), result;

	if (count < 0)
		return count;
	count = min(count, most);
	if (count < least)
		return -ENOSPC;
	result = dde_irq_use(kind, DDE_IRQ_MESSAGES, count);
	if (result < 0) {
		pr_warn("dde: %d messages: %s\n", count, ddekit_error());
		/* What was enabled before has ended with the attempt. */
		dde_irq_use_pin();
		return result;
	}
	return count;
}

int pci_enable_msix_range(struct pci_dev *dev, struct msix_entry *entries, int least, int most)
{
	int count = enable(DDEKIT_MSIX, least, most);

	if (count <= 0)
		return count;
	for (int i = 0; entries && i < count; i++) {
		/* Vectors are enabled from the first on, in one piece. */
		if (entries[i].entry != i) {
			dde_irq_use_pin();
			return -EINVAL;
		}
		entries[i].vector = DDE_IRQ_MESSAGES + i;
	}
	dev->msix_enabled = 1;
	return count;
}

void pci_disable_msix(struct pci_dev *dev)
{
	if (dev->msix_enabled)
		dde_irq_use_pin();
	dev->msix_enabled = 0;
}

int pci_enable_msi(struct pci_dev *dev)
{
	int count = enable(DDEKIT_MSI, 1, 1);

	if (count < 0)
		return count;
	dev->msi_enabled = 1;
	dev->irq = DDE_IRQ_MESSAGES;
	return 0;
}

void pci_disable_msi(struct pci_dev *dev)
{
	if (!dev->msi_enabled)
		return;
	dde_irq_use_pin();
	dev->msi_enabled = 0;
	dev->irq = DDE_IRQ_PIN;
}

int pci_alloc_irq_vectors_affinity(struct pci_dev *dev, unsigned int least, unsigned int most,
				   unsigned int flags, struct irq_affinity *affinity)
{
	int count = -ENOSPC;

	if (flags & PCI_IRQ_MSIX)
		count = pci_enable_msix_range(dev, NULL, least, most);
	if (count < 0 && flags & PCI_IRQ_MSI && least <= 1)
		count = pci_enable_msi(dev) == 0 ? 1 : -ENOSPC;
	if (count < 0 && flags & PCI_IRQ_INTX && least <= 1 && dev->irq)
		count = 1;
	return count;
}

int pci_alloc_irq_vectors(struct pci_dev *dev, unsigned int least, unsigned int most,
			  unsigned int flags)
{
	return pci_alloc_irq_vectors_affinity(dev, least, most, flags, NULL);
}

void pci_free_irq_vectors(struct pci_dev *dev)
{
	pci_disable_msix(dev);
	pci_disable_msi(dev);
}

int pci_irq_vector(struct pci_dev *dev, unsigned int index)
{
	if (dev->msix_enabled || dev->msi_enabled)
		return DDE_IRQ_MESSAGES + index;
	return index == 0 ? dev->irq : -EINVAL;
}

const struct cpumask *pci_irq_get_affinity(struct pci_dev *dev, int index)
{
	return cpu_possible_mask;
}
