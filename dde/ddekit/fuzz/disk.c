/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A disk's user, who asks for what the input says. */
#include "ddekit/disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

#define REQUESTS 16u
#define OPERATIONS 5u

static struct ddekit_disk {
	struct ddekit_disk_info info;
	unsigned char *memory;
	void (*ready)(void);
	bool served, stopped;
	/* What was asked for: the driver has it from ddekit_disk_take() on. */
	struct ddekit_disk_request requests[REQUESTS];
	bool waits[REQUESTS], taken[REQUESTS];
} disk;

int ddekit_disk_serve(struct ddekit_device *device, const struct ddekit_disk_info *info,
		      void *memory, size_t len, void (*ready)(void), const char *access,
		      struct ddekit_disk **made)
{
	(void)device, (void)len, (void)access;
	disk = (struct ddekit_disk){ .info = *info, .memory = memory, .ready = ready,
				     .served = true };
	*made = &disk;
	return 0;
}

bool fuzz_disk_served(void)
{
	return disk.served;
}

/* What the disk says that it cannot is not asked for: the server refuses that. */
static uint32_t most_blocks(uint32_t operation)
{
	switch (operation) {
	case DDEKIT_DISK_READ:
		return disk.info.max_transfer / disk.info.block_size;
	case DDEKIT_DISK_WRITE:
		return disk.info.read_only ? 0 : disk.info.max_transfer / disk.info.block_size;
	case DDEKIT_DISK_WRITE_ZEROES:
		return disk.info.max_write_zeroes_blocks;
	case DDEKIT_DISK_DISCARD:
		return disk.info.max_discard_blocks;
	default:
		return 0;
	}
}

void fuzz_disk_request(unsigned int kind)
{
	const uint32_t operation = kind % OPERATIONS, most = most_blocks(operation);
	const uint64_t lba = fuzz_bytes(FUZZ_BACK, 2) % disk.info.blocks;
	const uint32_t wanted = 1 + (uint32_t)fuzz_bytes(FUZZ_BACK, 1);
	unsigned int place = 0;

	while (place < REQUESTS && place < disk.info.depth &&
	       (disk.waits[place] || disk.taken[place]))
		place++;
	if (disk.stopped || place == REQUESTS || place == disk.info.depth ||
	    (most == 0 && operation != DDEKIT_DISK_FLUSH))
		return;
	disk.requests[place] = (struct ddekit_disk_request){ .tag = place, .operation = operation };
	if (operation != DDEKIT_DISK_FLUSH) {
		const uint64_t left = disk.info.blocks - lba;
		uint32_t blocks = wanted < most ? wanted : most;

		disk.requests[place].lba = lba;
		disk.requests[place].blocks = blocks < left ? blocks : (uint32_t)left;
		disk.requests[place].fua = operation == DDEKIT_DISK_WRITE && disk.info.fua &&
					   (kind & 0x10);
	}
	if (operation == DDEKIT_DISK_READ || operation == DDEKIT_DISK_WRITE)
		disk.requests[place].data = disk.memory + (size_t)place * disk.info.max_transfer;
	disk.waits[place] = true;
	disk.ready();
}

int ddekit_disk_turn(struct ddekit_disk *turned)
{
	unsigned int left = 0;

	for (unsigned int i = 0; i < REQUESTS; i++)
		left += turned->waits[i] || turned->taken[i];
	return turned->stopped && left == 0 ? -ESHUTDOWN : 0;
}

bool ddekit_disk_take(struct ddekit_disk *from, struct ddekit_disk_request *request)
{
	for (unsigned int i = 0; i < REQUESTS; i++)
		if (from->waits[i]) {
			from->waits[i] = false;
			from->taken[i] = true;
			*request = from->requests[i];
			return true;
		}
	return false;
}

/*
 * Who has asked looks at each byte, so that memory that was given away is found; and a request has
 * one end.
 */
void ddekit_disk_end(struct ddekit_disk *of, uint64_t tag, int error)
{
	static volatile unsigned char sum;
	const struct ddekit_disk_request *request = &of->requests[tag % REQUESTS];

	if (tag >= REQUESTS || !of->taken[tag]) {
		fprintf(stderr, "dde: a request has ended that the driver does not have\n");
		abort();
	}
	of->taken[tag] = false;
	if (error == 0 && request->operation == DDEKIT_DISK_READ)
		for (size_t i = 0; i < (size_t)request->blocks * of->info.block_size; i++)
			sum += ((const unsigned char *)request->data)[i];
}

void ddekit_disk_stop(struct ddekit_disk *stopped)
{
	stopped->stopped = true;
}

void ddekit_disk_close(struct ddekit_disk *closed)
{
	(void)closed;
	disk.served = false;
}
