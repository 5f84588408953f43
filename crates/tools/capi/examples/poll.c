/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A disk in an event loop that is the program's own: it reads random blocks, and answers each line
 * of standard input with how many it has read. The end of the input ends it.
 *
 *	cc -o poll poll.c $(pkg-config --cflags --libs ring3)
 *	./poll sim:nvme
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring3.h"

#define DEPTH 16

static int check(const char *what, int result)
{
	if (result >= 0)
		return result;
	fprintf(stderr, "poll: %s: %s\n", what, ring3_error());
	exit(1);
}

/* Takes what has ended, and begins the next read in the place of each. */
static unsigned long turn(struct ring3_disk_queue *queue, struct ring3_disk_request *reads,
			  uint64_t blocks)
{
	struct ring3_disk_completion ends[DEPTH];
	int count = check("an end", ring3_disk_queue_reap(queue, ends, DEPTH));

	for (int i = 0; i < count; i++) {
		struct ring3_disk_request *read = &reads[ends[i].tag];

		if (ends[i].error)
			fprintf(stderr, "poll: %s\n", strerror(ends[i].error));
		read->lba = (uint64_t)rand() % blocks;
		check("a read", ring3_disk_queue_submit(queue, read, 1));
	}
	ring3_disk_queue_ring(queue);
	return (unsigned long)count;
}

int main(int argc, char **argv)
{
	struct ring3_disk *disk;
	struct ring3_disk_info info;
	struct ring3_disk_queue *queue;
	struct ring3_buffer *buffer;
	struct ring3_disk_request reads[DEPTH];
	unsigned long done = 0;
	char line[256];

	if (argc != 2) {
		fprintf(stderr, "usage: poll URI\n");
		return 1;
	}
	check(argv[1], ring3_disk_open(argv[1], NULL, &disk));
	check(argv[1], ring3_disk_describe(disk, &info));
	check("a queue", ring3_disk_queue_open(disk, DEPTH, &queue));
	check("memory", ring3_disk_alloc(disk, (size_t)DEPTH * info.block_size, &buffer));
	for (int i = 0; i < DEPTH; i++)
		reads[i] = (struct ring3_disk_request){ .tag = i, .operation = RING3_READ,
			.lba = i, .blocks = 1,
			.data = (char *)ring3_dma_address(buffer) + (size_t)i * info.block_size };
	check("reads", ring3_disk_queue_submit(queue, reads, DEPTH));
	ring3_disk_queue_ring(queue);
	for (;;) {
		struct pollfd fds[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
					 { .fd = ring3_disk_queue_fd(queue), .events = POLLIN } };
		int timeout = 0;

		done += turn(queue, reads, info.blocks);
		/* 0: something has ended meanwhile, so poll only looks. */
		if (!check("sleeping", ring3_disk_queue_arm(queue, &timeout)))
			timeout = 0;
		if (poll(fds, 2, timeout) > 0 && fds[0].revents) {
			if (read(STDIN_FILENO, line, sizeof(line)) <= 0)
				break;
			printf("%lu blocks read\n", done);
			fflush(stdout);
		}
	}
	ring3_disk_queue_close(queue);
	ring3_dma_release(buffer);
	ring3_disk_close(disk);
	return 0;
}
