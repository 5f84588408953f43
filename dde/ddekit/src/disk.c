/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/disk.h"

#include <errno.h>
#include <stdlib.h>

#include "ddekit/context.h"
#include "ddekit/event.h"
#include "device.h"
#include "journal.h"

/* The numbers of both interfaces. */
_Static_assert(DDEKIT_DISK_READ == RING3_READ && DDEKIT_DISK_WRITE == RING3_WRITE &&
	       DDEKIT_DISK_FLUSH == RING3_FLUSH && DDEKIT_DISK_WRITE_ZEROES == RING3_WRITE_ZEROES &&
	       DDEKIT_DISK_DISCARD == RING3_DISCARD, "operations differ");

struct ddekit_disk {
	struct ring3_disk *disk;
	struct ddekit_watch *watch;
	void (*ready)(void);
	/* Where requests' bytes lie, and how many a block has. */
	unsigned char *memory;
	size_t len;
	uint32_t block_size;
};

static void ready(void *arg)
{
	const struct ddekit_disk *disk = arg;

	disk->ready();
}

/* A call on the host's stack: the server is the host's. */
struct call {
	struct ddekit_disk *disk;
	const struct ring3_device *device;
	const char *access;
	int result;
};

static void serve(void *arg)
{
	struct call *call = arg;
	struct ring3_disk *disk = call->disk->disk;

	if (!journal_is_replayed())
		call->result = call->access ? ring3_disk_serve(disk, call->access) :
			       ring3_disk_lend(disk, call->device);
	call->result = journal_answer(call->result, NULL, 0);
}

static void turn(void *arg)
{
	struct call *call = arg;

	call->result = journal_is_replayed() ? 0 : ring3_disk_turn(call->disk->disk);
	call->result = journal_answer(call->result, NULL, 0);
}

static void end(void *arg)
{
	ring3_disk_close(arg);
}

int ddekit_disk_serve(struct ddekit_device *device, const struct ddekit_disk_info *info,
		      void *memory, size_t len, void (*function)(void), const char *access,
		      struct ddekit_disk **disk)
{
	const struct ring3_disk_info said = {
		.model = info->model,
		.serial = info->serial,
		.firmware = info->firmware,
		.blocks = info->blocks,
		.block_size = info->block_size,
		.max_transfer = info->max_transfer,
		.optimal_io = info->optimal_io,
		.max_write_zeroes_blocks = info->max_write_zeroes_blocks,
		.max_discard_blocks = info->max_discard_blocks,
		.discard_granularity = info->discard_granularity,
		.depth = info->depth,
		.volatile_cache = info->volatile_cache,
		.fua = info->fua,
		.read_only = info->read_only,
		.rotates = info->rotates,
	};
	const size_t offset = (size_t)((unsigned char *)memory - device->arena.base);
	struct ddekit_disk *made = calloc(1, sizeof(*made));
	struct call call = { .disk = made, .device = device->device, .access = access };
	int result;

	if (!made)
		return -ENOMEM;
	made->ready = function;
	made->memory = memory;
	made->len = len;
	made->block_size = info->block_size;
	result = ring3_disk_new(&said, device->memory, offset, len, &made->disk);
	if (result == 0) {
		ddekit_ctx_call_host(serve, &call);
		result = call.result;
	}
	if (result == 0) {
		made->watch = ddekit_ev_watch(ring3_disk_fd(made->disk), ready, made);
		result = made->watch ? 0 : -errno;
	}
	if (result < 0) {
		ddekit_disk_close(made);
		return result;
	}
	*disk = made;
	return 0;
}

int ddekit_disk_turn(struct ddekit_disk *disk)
{
	struct call call = { .disk = disk };

	ddekit_ctx_call_host(turn, &call);
	return call.result;
}

/*
 * As ring3_disk_take(), with the bytes that are to be written. In a recording a place is counted
 * from the memory's beginning.
 */
static int take(const struct ddekit_disk *disk, struct ring3_disk_request *taken)
{
	int result = journal_is_replayed() ? 0 : ring3_disk_take(disk->disk, taken);
	uint64_t bytes;
	uint64_t place = result == 1 && taken->data ?
			 (uint64_t)((unsigned char *)taken->data - disk->memory) : UINT64_MAX;

	result = journal_answer(result, taken, sizeof(*taken));
	if (!journal_is_on() || result != 1)
		return result;
	journal_answer(0, &place, sizeof(place));
	bytes = (uint64_t)taken->blocks * disk->block_size;
	taken->data = NULL;
	if (place == UINT64_MAX) {
		if (taken->operation == RING3_READ || taken->operation == RING3_WRITE)
			journal_refuse("a request without a place for its bytes");
		return result;
	}
	if (place > disk->len || bytes > disk->len - place)
		journal_refuse("a request beyond the memory that there is for them");
	taken->data = disk->memory + place;
	if (taken->operation == RING3_WRITE)
		journal_answer(0, taken->data, bytes);
	return result;
}

bool ddekit_disk_take(struct ddekit_disk *disk, struct ddekit_disk_request *request)
{
	struct ring3_disk_request taken = { 0 };

	if (take(disk, &taken) != 1)
		return false;
	*request = (struct ddekit_disk_request){
		.tag = taken.tag,
		.lba = taken.lba,
		.data = taken.data,
		.blocks = taken.blocks,
		.operation = taken.operation,
		.fua = taken.fua,
	};
	return true;
}

void ddekit_disk_end(struct ddekit_disk *disk, uint64_t tag, int error)
{
	if (!journal_is_replayed())
		ring3_disk_end(disk->disk, tag, error);
}

void ddekit_disk_stop(struct ddekit_disk *disk)
{
	if (!journal_is_replayed())
		ring3_disk_stop(disk->disk);
}

void ddekit_disk_close(struct ddekit_disk *disk)
{
	if (!disk)
		return;
	ddekit_ev_unwatch(disk->watch);
	ddekit_ctx_call_host(end, disk->disk);
	free(disk);
}
