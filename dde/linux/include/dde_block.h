/* SPDX-License-Identifier: GPL-2.0-only */
/* What the emulation and the glue of disks say to each other. */
#ifndef DDE_BLOCK_H
#define DDE_BLOCK_H

#include <linux/blkdev.h>

/* What a disk is called, without spaces at its ends. */
struct dde_identity {
	char model[64];
	char serial[32];
	char firmware[16];
};

/* The glue's: there is a disk, or it goes. */
void dde_block_came(struct block_device *bdev);
void dde_block_goes(struct block_device *bdev);
/* Of the glue of the driver's kind, if there is one: what it calls the disk. */
void dde_block_identify(struct gendisk *disk, struct dde_identity *identity);

#endif
