/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What one kernel calls otherwise than another, where a name or a type is all of it. Where more
 * differs, files ask for DDE_LINUX_7 themselves.
 */
#ifndef DDE_VERSION_H
#define DDE_VERSION_H

#include <linux/version.h>

/* Hosted drivers are built of 6.12 and of 7.2: what came between them counts as new here. */
#define DDE_LINUX_7 (LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0))

#if DDE_LINUX_7
#define bdev_nonrot(disk) (!bdev_rot(disk))
#define dde_namespace struct ns_common
#else
#define dde_namespace void
#endif

#endif
