// SPDX-License-Identifier: GPL-2.0-only
/*
 * Disks as block/genhd.c has them, without the file system of devices, its inodes and its page
 * cache: nobody opens a disk by its number, reads a partition table or mounts. Whoever wants one
 * hears of it when it is there.
 */
#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/major.h>
#include <linux/pagemap.h>
#include <linux/part_stat.h>

#include "block/blk.h"
#include "dde.h"
#include "dde_block.h"

struct opened {
	struct block_device bdev;
	struct address_space mapping;
	bool live;
};

static struct opened *opened_of(struct block_device *bdev)
{
	return container_of(bdev, struct opened, bdev);
}

struct block_device *bdev_alloc(struct gendisk *disk, u8 number)
{
	struct opened *opened = kzalloc(sizeof(*opened), GFP_KERNEL);
	struct block_device *bdev = opened ? &opened->bdev : NULL;

	if (!opened)
		return NULL;
	bdev->bd_stats = alloc_percpu(struct disk_stats);
	if (!bdev->bd_stats) {
		kfree(opened);
		return NULL;
	}
	mutex_init(&bdev->bd_fsfreeze_mutex);
	mutex_init(&bdev->bd_holder_lock);
	spin_lock_init(&bdev->bd_size_lock);
	atomic_set(&bdev->__bd_flags, number);
	bdev->bd_mapping = &opened->mapping;
	bdev->bd_queue = disk->queue;
	bdev->bd_disk = disk;
	/* What is in a partition is its users' business. */
	set_bit(GD_SUPPRESS_PART_SCAN, &disk->state);
	return bdev;
}

void bdev_set_nr_sectors(struct block_device *bdev, sector_t sectors)
{
	bdev->bd_nr_sectors = sectors;
}

void bdev_add(struct block_device *bdev, dev_t number)
{
	bdev->bd_dev = number;
	opened_of(bdev)->live = true;
	dde_block_came(bdev);
}

void bdev_unhash(struct block_device *bdev)
{
	opened_of(bdev)->live = false;
}

bool disk_live(struct gendisk *disk)
{
	return opened_of(disk->part0)->live;
}

/* The last reference of a disk: what block/bdev.c does when its inode goes. */
void bdev_drop(struct block_device *bdev)
{
	struct gendisk *disk = bdev->bd_disk;

	free_percpu(bdev->bd_stats);
	if (disk && disk->bdi)
		bdi_put(disk->bdi);
	kfree(disk);
	if (MAJOR(bdev->bd_dev) == BLOCK_EXT_MAJOR)
		blk_free_ext_minor(MINOR(bdev->bd_dev));
	kfree(opened_of(bdev));
}

void bdev_mark_dead(struct block_device *bdev, bool surprise)
{
	dde_block_goes(bdev);
}

unsigned int block_size(struct block_device *bdev)
{
	return bdev_logical_block_size(bdev);
}

/* There are no pages of files: nothing is dirty. */
int sync_blockdev(struct block_device *bdev)
{
	return 0;
}

void invalidate_bdev(struct block_device *bdev)
{
}
