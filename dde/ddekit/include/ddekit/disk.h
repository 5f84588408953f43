/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A disk whose driver is in this process, for other processes: the way out of it. */
#ifndef DDEKIT_DISK_H
#define DDEKIT_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ddekit/device.h"

struct ddekit_disk;

/**
 * struct ddekit_disk_info - what the disk is
 * @model: its maker's name for it
 * @serial: its serial number
 * @firmware: its firmware's revision
 * @blocks: how many it has
 * @block_size: bytes of each
 * @max_transfer: most bytes of one request
 * @optimal_io: bytes of a write that costs no read within the disk
 * @max_write_zeroes_blocks: most blocks of one request that writes zeroes; 0 if it cannot
 * @max_discard_blocks: most blocks of one discard; 0 if it cannot
 * @discard_granularity: bytes of the smallest piece that a discard frees
 * @depth: most requests at once
 * @volatile_cache: writes may sit in a cache that loses them with the power
 * @fua: a single write can be durable at its end
 * @read_only: it refuses to be changed
 * @rotates: its medium turns
 */
struct ddekit_disk_info {
	const char *model, *serial, *firmware;
	uint64_t blocks;
	uint32_t block_size, max_transfer, optimal_io;
	uint32_t max_write_zeroes_blocks, max_discard_blocks, discard_granularity;
	uint16_t depth;
	bool volatile_cache, fua, read_only, rotates;
};

/** enum ddekit_disk_operation - what is to be done; only reads and writes have data */
enum ddekit_disk_operation {
	DDEKIT_DISK_READ,
	DDEKIT_DISK_WRITE,
	DDEKIT_DISK_FLUSH,
	DDEKIT_DISK_WRITE_ZEROES,
	DDEKIT_DISK_DISCARD,
};

/**
 * struct ddekit_disk_request - a request of a client's, which was checked @tag: for
 * ddekit_disk_end() @lba: the first block @data: where its bytes lie in one piece, in the memory
 * that the disk was served with; NULL if there are none @blocks: how many @operation: an enum
 * ddekit_disk_operation @fua: a write is durable at its end
 */
struct ddekit_disk_request {
	uint64_t tag;
	uint64_t lba;
	void *data;
	uint32_t blocks;
	uint32_t operation;
	bool fua;
};

/**
 * ddekit_disk_serve() - give the disk to other processes, or to whoever has leased the device
 * @device: whose disk it is @info: what it is @memory: where data lies, in the device's arena, page
 * by page; @info->depth + 1 times @info->max_transfer at least @len: its bytes @ready: called from
 * the event loop when ddekit_disk_turn() has something to do @access: where it is served,
 * PATH[,KEY=VALUE]... as ring3 serve disk takes it; NULL if it goes to ring3d, which has leased
 * @device @disk: where the handle is put
 *
 * Return: 0 or a negative errno; ddekit_error() says more.
 */
int ddekit_disk_serve(struct ddekit_device *device, const struct ddekit_disk_info *info,
		      void *memory, size_t len, void (*ready)(void), const char *access,
		      struct ddekit_disk **disk);

/**
 * ddekit_disk_turn() - hear clients, and tell them what has ended
 *
 * Take what they want afterwards, until there is nothing.
 *
 * Return: 1 if there is more to do at once, 0 if not; -ESHUTDOWN once a disk that was stopped, or
 * that ring3d wants back, has nothing left; another negative errno for the end of the server, of
 * which ddekit_error() says more.
 */
int ddekit_disk_turn(struct ddekit_disk *disk);

/** ddekit_disk_take() - the next request; false if there is none */
bool ddekit_disk_take(struct ddekit_disk *disk, struct ddekit_disk_request *request);

/**
 * ddekit_disk_end() - the request with @tag has ended, well or with an errno; its client hears of
 * it at the next turn
 */
void ddekit_disk_end(struct ddekit_disk *disk, uint64_t tag, int error);

/** ddekit_disk_stop() - take no further requests */
void ddekit_disk_stop(struct ddekit_disk *disk);

/** ddekit_disk_close() - take the disk from its users; NULL is ignored */
void ddekit_disk_close(struct ddekit_disk *disk);

#endif
