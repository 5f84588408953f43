/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What stands behind the includes of every file of a kernel half: the driver is known to the run
 * time before its module's init function runs, and what its user half may touch is said where the
 * driver asks for it.
 */
#ifndef KERNEL_HALF_H
#define KERNEL_HALF_H

#include <linux/delay.h>
#include <linux/init.h>
#include <linux/io.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "ready.h"
#include "ring3_split.h"

extern const struct split_driver split_driver;
extern struct split_host *split_host;

#undef module_init
#define module_init(function)                                            \
	struct split_host *split_host;                                   \
	static int __init split_init(void)                               \
	{                                                                \
		int error;                                               \
                                                                         \
		split_host = split_register(&split_driver);              \
		if (!split_host)                                         \
			return -ENOMEM;                                  \
		error = function();                                      \
		if (error)                                               \
			split_unregister(split_host);                    \
		return error;                                            \
	}                                                                \
	int init_module(void) __copy(split_init) __attribute__((alias("split_init"))); \
	___ADDRESSABLE(init_module, __initdata)

#undef module_exit
#define module_exit(function)                                            \
	static void __exit split_exit(void)                              \
	{                                                                \
		function();                                              \
		split_unregister(split_host);                            \
	}                                                                \
	void cleanup_module(void) __copy(split_exit) __attribute__((alias("split_exit"))); \
	___ADDRESSABLE(cleanup_module, __exitdata)

/*
 * A work item whose upcall has failed runs again until it is done, or cancelled: what is periodic
 * goes on with the next user half.
 */
static inline void split_again(struct work_struct *work)
{
	msleep(1000);
	schedule_work(work);
}

static inline void split_again_delayed(struct work_struct *work)
{
	schedule_delayed_work(to_delayed_work(work), HZ);
}

/* What the user half calls for the macros of that name. */
static inline void split_init_work(struct work_struct *work, work_func_t function)
{
	INIT_WORK(work, function);
}

static inline void split_init_delayed_work(struct delayed_work *work, work_func_t function)
{
	INIT_DELAYED_WORK(work, function);
}

/*
 * A user half that answers for a work item may have what waits for that item called, which no
 * driver does: its upcall would wait for the call, and the call for the upcall. With rtnl held that
 * would be the end of all interfaces. Such a call returns without a wait.
 */
#define cancel_work_sync(work) (!split_answers_for(split_host, work) && cancel_work_sync(work))
#define flush_work(work) (!split_answers_for(split_host, work) && flush_work(work))
#define cancel_delayed_work_sync(dwork) \
	(!split_answers_for(split_host, &(dwork)->work) && cancel_delayed_work_sync(dwork))
#define flush_delayed_work(dwork) \
	(!split_answers_for(split_host, &(dwork)->work) && flush_delayed_work(dwork))

/*
 * What must be so before a call (generate/requires.toml) is asked of the kernel half's own code,
 * too, where the kernel would stop: its functions run in the order in which the user half has them
 * called. A right driver is never refused.
 */
static inline bool split_holds(bool holds, const char *call)
{
	if (!holds)
		pr_warn_ratelimited("%s: the kernel half's %s is not called: it would stop the "
				    "kernel\n", KBUILD_MODNAME, call);
	return holds;
}

#ifdef _LINUX_NETDEVICE_H
static inline bool split_may_enable(const struct napi_struct *n)
{
	return test_bit(NAPI_STATE_NPSVC, &n->state) && test_bit(NAPI_STATE_LISTED, &n->state);
}

static inline bool split_may_disable(const struct napi_struct *n)
{
	return !test_bit(NAPI_STATE_NPSVC, &n->state) && test_bit(NAPI_STATE_LISTED, &n->state);
}

static inline bool split_is_registered(const struct net_device *dev)
{
	return dev->reg_state == NETREG_REGISTERED;
}

#define napi_enable(n)                                            \
	do {                                                      \
		if (split_holds(split_may_enable(n), "napi_enable")) \
			napi_enable(n);                           \
	} while (0)
#define napi_disable(n)                                             \
	do {                                                        \
		if (split_holds(split_may_disable(n), "napi_disable")) \
			napi_disable(n);                            \
	} while (0)
#define unregister_netdev(dev)                                                   \
	do {                                                                     \
		if (split_holds(split_is_registered(dev), "unregister_netdev"))  \
			unregister_netdev(dev);                                  \
	} while (0)
#endif

/* What the user half has allocated is freed as such. */
#define kfree(address) split_free(split_host, address)

/* What members say of the device's memory may be the user half's word: see dma.c. */
#ifdef _LINUX_DMA_MAPPING_H
#define dma_alloc_attrs(device, size, bus, gfp, attributes) \
	split_dma_alloc(split_host, device, size, bus, gfp, attributes)
#define dma_free_attrs(device, size, address, bus, attributes) \
	((void)(size), (void)(bus), split_dma_free(split_host, address))
#define dma_alloc_coherent(device, size, bus, gfp) \
	split_dma_alloc(split_host, device, size, bus, gfp, \
			(gfp) & __GFP_NOWARN ? DMA_ATTR_NO_WARN : 0)
#define dma_free_coherent(device, size, address, bus) \
	((void)(size), (void)(bus), split_dma_free(split_host, address))
#endif

static inline void split_allow_bars(struct pci_dev *pdev, int bars)
{
	int bar;

	for (bar = 0; bar < PCI_STD_NUM_BARS; bar++)
		if (bars & 1 << bar && pci_resource_flags(pdev, bar) & IORESOURCE_IO)
			split_allow_ports(split_host, pci_resource_start(pdev, bar),
					  pci_resource_len(pdev, bar));
}

#define pci_request_regions(pdev, name) \
	SPLIT_PORTS(pdev, (1 << PCI_STD_NUM_BARS) - 1, pci_request_regions(split_pdev, name))
#define pci_request_selected_regions(pdev, bars, name) \
	SPLIT_PORTS(pdev, bars, pci_request_selected_regions(split_pdev, bars, name))
#define SPLIT_PORTS(pdev, bars, request)                                 \
	({                                                               \
		struct pci_dev *split_pdev = pdev;                       \
		int split_error = request;                               \
		if (!split_error)                                        \
			split_allow_bars(split_pdev, bars);              \
		split_error;                                             \
	})

#define pci_ioremap_bar(pdev, bar) SPLIT_IO(pdev, bar, 0UL, pci_ioremap_bar(split_pdev, bar))
#define pci_iomap(pdev, bar, size) \
	SPLIT_IO(pdev, bar, (unsigned long)(size), pci_iomap(split_pdev, bar, size))
#define SPLIT_IO(pdev, bar, most, map)                                   \
	({                                                               \
		struct pci_dev *split_pdev = pdev;                       \
		void __iomem *split_at = map;                            \
		bool split_memory = pci_resource_flags(split_pdev, bar) & IORESOURCE_MEM; \
		unsigned long split_length = pci_resource_len(split_pdev, bar); \
		split_allow_io(split_host, split_at, \
			       most ? min(most, split_length) : split_length, \
			       split_memory ? pci_resource_start(split_pdev, bar) : 0); \
		split_at;                                                \
	})

/*
 * Whether ports (IORESOURCE_IO) or bus addresses (IORESOURCE_MEM) are registers of a function that
 * this driver drives, or is about to.
 */
static inline bool split_is_own(unsigned long kind, resource_size_t start, resource_size_t size)
{
	struct pci_dev *pdev = NULL;
	int bar;

	if (!size || start + size - 1 < start)
		return false;
	for_each_pci_dev(pdev) {
		if (!pdev->driver || pdev->driver->driver.owner != THIS_MODULE)
			continue;
		for (bar = 0; bar < PCI_STD_NUM_BARS; bar++) {
			if (pci_resource_flags(pdev, bar) & kind &&
			    start >= pci_resource_start(pdev, bar) &&
			    start + size - 1 <= pci_resource_end(pdev, bar)) {
				pci_dev_put(pdev);
				return true;
			}
		}
	}
	return false;
}

/* Whether an interrupt is one of such a function. */
static inline bool split_is_own_irq(unsigned int irq)
{
	struct pci_dev *pdev = NULL;

	for_each_pci_dev(pdev) {
		bool own = pdev->irq == irq;
		int vector;

		if (!pdev->driver || pdev->driver->driver.owner != THIS_MODULE)
			continue;
		for (vector = 0; !own && (pdev->msi_enabled || pdev->msix_enabled); vector++) {
			int at = pci_irq_vector(pdev, vector);

			if (at < 0)
				break;
			own = (unsigned int)at == irq;
		}
		if (own) {
			pci_dev_put(pdev);
			return true;
		}
	}
	return false;
}

#undef ioremap
#define ioremap(start, size)                                             \
	({                                                               \
		resource_size_t split_start = start;                     \
		unsigned long split_size = size;                         \
		void __iomem *split_at = (ioremap)(split_start, split_size); \
		if (split_is_own(IORESOURCE_MEM, split_start, split_size)) \
			split_allow_io(split_host, split_at, split_size, split_start); \
		split_at;                                                \
	})

/* What request_region comes to. */
#define __request_region(parent, start, n, name, flags)                  \
	({                                                               \
		struct resource *split_parent = parent, *split_region;   \
		resource_size_t split_start = start, split_size = n;     \
		split_region = (__request_region)(split_parent, split_start, split_size, name, \
						  flags); \
		if (split_region && split_parent == &ioport_resource && \
		    split_is_own(IORESOURCE_IO, split_start, split_size)) \
			split_allow_ports(split_host, split_start, split_size); \
		split_region;                                            \
	})

#undef iounmap
#define iounmap(address)                                                 \
	({                                                               \
		/* Drivers have it volatile, as iounmap takes it. */         \
		void __iomem *split_at = (void __iomem *)(address);      \
		split_deny_io(split_host, split_at);                     \
		(iounmap)(split_at);                                     \
	})
#undef pci_iounmap
#define pci_iounmap(pdev, address)                                       \
	({                                                               \
		void __iomem *split_at = address;                        \
		split_deny_io(split_host, split_at);                     \
		(pci_iounmap)(pdev, split_at);                           \
	})

#endif
