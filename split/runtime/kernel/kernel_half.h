/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What stands behind the includes of every file of a kernel half: the driver is known to the run time before its module's init
 * function runs, and what its user half may touch is said where the driver asks for it.
 */
#ifndef KERNEL_HALF_H
#define KERNEL_HALF_H

#include <linux/init.h>
#include <linux/io.h>
#include <linux/slab.h>

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

/* What the user half has allocated is freed as such. */
#define kfree(address) split_free(split_host, address)

#define pci_request_regions(pdev, name)                                  \
	({                                                               \
		int split_error = pci_request_regions(pdev, name);       \
		if (!split_error)                                        \
			split_allow_ports(split_host, pdev);             \
		split_error;                                             \
	})
#define pci_ioremap_bar(pdev, bar)                                       \
	({                                                               \
		struct pci_dev *split_pdev = pdev;                       \
		void __iomem *split_at = pci_ioremap_bar(split_pdev, bar);     \
		split_allow_io(split_host, split_at, pci_resource_len(split_pdev, bar)); \
		split_at;                                                \
	})
#define pci_iomap(pdev, bar, size)                                       \
	({                                                               \
		struct pci_dev *split_pdev = pdev;                       \
		void __iomem *split_at = pci_iomap(split_pdev, bar, size);     \
		split_allow_io(split_host, split_at, pci_resource_len(split_pdev, bar)); \
		split_at;                                                \
	})

#endif
