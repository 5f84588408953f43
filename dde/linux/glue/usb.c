// SPDX-License-Identifier: GPL-2.0-only
/*
 * A hub keeps the file of each port's state, to tell who reads it: there are no files, and one that
 * nobody reads will do.
 */
#include <linux/kernfs.h>

#include "dde_version.h"

struct kernfs_node *kernfs_find_and_get_ns(struct kernfs_node *parent, const char *name,
					   const dde_namespace *ns)
{
	static struct kernfs_node unread;

	return &unread;
}
