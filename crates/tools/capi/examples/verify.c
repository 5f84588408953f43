/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Writes numbered blocks to a disk by ring3's driver, and reads and verifies them, in batches.
 *
 *	cc -o verify verify.c $(pkg-config --cflags --libs ring3)
 *	./verify sim:nvme overwrite
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring3.h"

#define BATCH 32
#define BLOCKS 1024

/* Ends the program if a call has failed. */
static int check(const char *what, int result)
{
	if (result >= 0)
		return result;
	fprintf(stderr, "verify: %s: %s\n", what, ring3_error());
	exit(1);
}

/* Moves `count` blocks, from `lba` on, between disk and memory: a batch, and its ends. */
static void move(struct ring3_disk_queue *queue, uint32_t operation, uint64_t lba, int count,
		 char *memory, uint32_t size)
{
	struct ring3_disk_request batch[BATCH];
	struct ring3_disk_completion ends[BATCH];
	int left = count, queued = 0, done;

	for (int i = 0; i < count; i++)
		batch[i] = (struct ring3_disk_request){ .tag = i, .operation = operation,
			.lba = lba + i, .blocks = 1, .data = memory + (size_t)i * size };
	while (left > 0) {
		queued += check("a request", ring3_disk_queue_submit(queue, batch + queued,
								     count - queued));
		ring3_disk_queue_ring(queue);
		if (!check("waiting", ring3_disk_queue_wait(queue, 10000)))
			continue;
		done = check("an end", ring3_disk_queue_reap(queue, ends, BATCH));
		for (int i = 0; i < done; i++)
			if (ends[i].error) {
				fprintf(stderr, "verify: block %" PRIu64 ": %s\n",
					lba + ends[i].tag, strerror(ends[i].error));
				exit(1);
			}
		left -= done;
	}
}

int main(int argc, char **argv)
{
	struct ring3_disk *disk;
	struct ring3_disk_info info;
	struct ring3_disk_queue *queue;
	struct ring3_buffer *buffer;
	char *memory;

	if (argc != 3 || strcmp(argv[2], "overwrite")) {
		fprintf(stderr, "usage: verify URI overwrite\n");
		return 1;
	}
	check(argv[1], ring3_disk_open(argv[1], NULL, &disk));
	check(argv[1], ring3_disk_describe(disk, &info));
	printf("%s: %s %s, %" PRIu64 " blocks of %" PRIu32 " bytes\n", ring3_disk_name(disk),
	       info.model, info.serial, info.blocks, info.block_size);
	check("a queue", ring3_disk_queue_open(disk, BATCH, &queue));
	check("memory", ring3_disk_alloc(disk, (size_t)BATCH * info.block_size, &buffer));
	memory = ring3_dma_address(buffer);
	for (uint64_t lba = 0; lba < BLOCKS; lba += BATCH) {
		for (int i = 0; i < BATCH; i++)
			snprintf(memory + (size_t)i * info.block_size, 32, "block %" PRIu64,
				 lba + i);
		move(queue, RING3_WRITE, lba, BATCH, memory, info.block_size);
	}
	for (uint64_t lba = 0; lba < BLOCKS; lba += BATCH) {
		memset(memory, 0, (size_t)BATCH * info.block_size);
		move(queue, RING3_READ, lba, BATCH, memory, info.block_size);
		for (int i = 0; i < BATCH; i++) {
			char expected[32];

			snprintf(expected, sizeof(expected), "block %" PRIu64, lba + i);
			if (strcmp(memory + (size_t)i * info.block_size, expected)) {
				fprintf(stderr, "verify: block %" PRIu64 " is another\n", lba + i);
				return 1;
			}
		}
	}
	printf("%d blocks written, read and verified\n", BLOCKS);
	ring3_disk_queue_close(queue);
	ring3_dma_release(buffer);
	ring3_disk_close(disk);
	return 0;
}
