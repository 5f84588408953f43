/* SPDX-License-Identifier: GPL-2.0 */
/* What the kernel half of a split driver uses of the run time. */
#ifndef RING3_SPLIT_H
#define RING3_SPLIT_H

#include <linux/module.h>
#include <linux/pci.h>

#include "tables.h"

struct split_host;
extern const struct split_type split_mutex;

/*
 * Makes a driver known; its user half attaches to it by name. `split_unregister` ends what is pending, and takes the memory that
 * the user half has allocated and not freed.
 */
struct split_host *split_register(const struct split_driver *driver);
void split_unregister(struct split_host *host);

/*
 * Runs an entry in the user half and returns its result, or `failure` of the entry: in atomic context, without a user half, when
 * it dies or does not answer in time, and when the caller is killed. Sleeps.
 */
long split_upcall(struct split_host *host, unsigned int entry, const unsigned long *arguments);

/* Whether an upcall from here would reach a user half. */
bool split_asks(struct split_host *host);

/*
 * Registers that the user half may touch from now on: ports, and a mapping, until it goes. `bus` is where it is on the bus, 0 if it
 * is not to be mapped.
 * `split_is_mapped`: whether such a mapping begins there.
 */
void split_allow_ports(struct split_host *host, unsigned long start, unsigned long size);
void split_allow_io(struct split_host *host, void __iomem *address, unsigned long size, phys_addr_t bus);
void split_deny_io(struct split_host *host, const volatile void __iomem *address);
bool split_is_mapped(struct split_host *host, const volatile void __iomem *address);

/* Frees what the user half has allocated, or what the kernel half has. */
void split_free(struct split_host *host, const void *address);

#endif
