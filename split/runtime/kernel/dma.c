// SPDX-License-Identifier: GPL-2.0
/*
 * Memory of the device's that a driver has allocated, in either half: it is freed by this account.
 * The driver's own code frees it by members, its size and its address on the bus among them, which
 * a user half may write. The kernel finds the pages by that address [kernel/dma/direct.c:
 * dma_direct_free], so it would free somebody else's.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>

#include "runtime.h"

struct dma_account {
	struct device *device;
	size_t size;
	dma_addr_t bus;
	unsigned long attributes;
};

/* Of flags that a user half may have chosen, those that change nothing but how hard is tried. */
#define PERMITTED (GFP_KERNEL | GFP_ATOMIC | GFP_DMA | GFP_DMA32 | __GFP_ZERO | __GFP_NOWARN)

/*
 * Attributes under which the kernel returns an address that it can use, as the driver's code goes
 * on to do. With DMA_ATTR_NO_KERNEL_MAPPING it is none [Linux,
 * Documentation/core-api/dma-attributes.rst].
 */
#define ATTRIBUTES (DMA_ATTR_WEAK_ORDERING | DMA_ATTR_WRITE_COMBINE | DMA_ATTR_SKIP_CPU_SYNC | \
		    DMA_ATTR_FORCE_CONTIGUOUS | DMA_ATTR_ALLOC_SINGLE_PAGES | DMA_ATTR_NO_WARN)

/* Within the budget of the driver; false if it is not. */
static bool take(struct split_host *host, size_t size)
{
	unsigned long flags;
	bool fits;

	xa_lock_irqsave(&host->dma, flags);
	fits = size && size <= SPLIT_DMA_MEMORY - host->dma_memory;
	if (fits)
		host->dma_memory += size;
	xa_unlock_irqrestore(&host->dma, flags);
	return fits;
}

static void give_back(struct split_host *host, size_t size)
{
	unsigned long flags;

	xa_lock_irqsave(&host->dma, flags);
	host->dma_memory -= size;
	xa_unlock_irqrestore(&host->dma, flags);
}

/*
 * As dma_alloc_attrs; in the contexts in which that may be called. With attributes other than
 * ATTRIBUTES, which a user half may have chosen, there is no memory.
 */
void *split_dma_alloc(struct split_host *host, struct device *device, size_t size, dma_addr_t *bus,
		      gfp_t gfp, unsigned long attributes)
{
	struct dma_account *account;
	unsigned long flags;
	dma_addr_t given; /* not read again from *bus, which a user half may write meanwhile */
	void *address;
	int error;

	if (attributes & ~ATTRIBUTES || !take(host, size))
		return NULL;
	account = kmalloc(sizeof(*account), gfp & (GFP_KERNEL | GFP_ATOMIC));
	if (!account)
		goto unaccounted;
	address = dma_alloc_attrs(device, size, &given, gfp & PERMITTED, attributes);
	if (!address)
		goto unallocated;
	*account = (struct dma_account){ device, size, given, attributes };
	xa_lock_irqsave(&host->dma, flags);
	error = xa_err(__xa_store(&host->dma, (unsigned long)address, account, GFP_ATOMIC));
	xa_unlock_irqrestore(&host->dma, flags);
	if (!error) {
		*bus = given;
		return address;
	}
	dma_free_attrs(device, size, address, given, attributes);
unallocated:
	kfree(account);
unaccounted:
	give_back(host, size);
	return NULL;
}
EXPORT_SYMBOL_GPL(split_dma_alloc);

/* As dma_free_attrs of what the other has allocated. Of other memory it frees nothing. */
void split_dma_free(struct split_host *host, const void *address)
{
	struct dma_account *account;
	unsigned long flags;

	if (!address)
		return;
	xa_lock_irqsave(&host->dma, flags);
	account = __xa_erase(&host->dma, (unsigned long)address);
	if (account)
		host->dma_memory -= account->size;
	xa_unlock_irqrestore(&host->dma, flags);
	if (!account) {
		pr_warn_ratelimited("%s: memory of the device's is not freed: it has not "
				    "allocated that\n", host->driver->name);
		return;
	}
	dma_free_attrs(account->device, account->size, (void *)address, account->bus,
		       account->attributes);
	kfree(account);
}
EXPORT_SYMBOL_GPL(split_dma_free);

/* What a driver has not freed by now is lost; its device may still write there. */
void split_dma_end(struct split_host *host)
{
	struct dma_account *account;
	unsigned long address;

	xa_for_each(&host->dma, address, account)
		kfree(account);
	xa_destroy(&host->dma);
}
