/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Between the glue of disks, which knows the kernel, and the program, which knows the host; how it
 * ends is as dde_net.h has it.
 */
#ifndef DDE_DISK_H
#define DDE_DISK_H

#include <stdint.h>

/*
 * The program's: where the disk is to be served, PATH[,KEY=VALUE]...; NULL if whoever has leased
 * the device takes the disk.
 */
const char *dde_block_access(void);
/* It is served. */
void dde_block_served(const char *driver, const char *model, uint64_t blocks, uint32_t block_size);

#endif
