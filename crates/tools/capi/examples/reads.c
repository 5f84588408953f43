/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads 4 KiB blocks in batches, for tests/reads, which counts what a read costs:
 *
 *	reads sim:nvme BATCH BATCHES
 */
#include <stdio.h>
#include <stdlib.h>

#include "ring3.h"

#define MOST 64

static int check(int result)
{
	if (result >= 0)
		return result;
	fprintf(stderr, "reads: %s\n", ring3_error());
	exit(1);
}

int main(int argc, char **argv)
{
	struct ring3_disk_request requests[MOST];
	struct ring3_disk_completion ends[MOST];
	struct ring3_disk *disk;
	struct ring3_disk_queue *queue;
	struct ring3_buffer *buffer;
	char *memory;
	int batch = argc == 4 ? atoi(argv[2]) : 0;

	if (batch < 1 || batch > MOST)
		return 1;
	check(ring3_disk_open(argv[1], NULL, &disk));
	check(ring3_disk_queue_open(disk, MOST, &queue));
	check(ring3_disk_alloc(disk, (size_t)batch * 4096, &buffer));
	memory = ring3_dma_address(buffer);
	for (long left = atol(argv[3]); left > 0; left--) {
		for (int i = 0; i < batch; i++)
			requests[i] = (struct ring3_disk_request){ .tag = i,
				.operation = RING3_READ, .lba = (uint64_t)i * 8, .blocks = 8,
				.data = memory + (size_t)i * 4096 };
		if (check(ring3_disk_queue_submit(queue, requests, batch)) < batch)
			return 1;
		ring3_disk_queue_ring(queue);
		for (int missing = batch; missing > 0;) {
			int count = check(ring3_disk_queue_reap(queue, ends, batch));

			for (int i = 0; i < count; i++)
				if (ends[i].error)
					return 1;
			missing -= count;
		}
	}
	ring3_disk_queue_close(queue);
	ring3_dma_release(buffer);
	ring3_disk_close(disk);
	return 0;
}
