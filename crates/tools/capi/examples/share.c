/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads a disk that ring3 exports (`ring3 run nvme --share SOCKET`) into memory that its device
 * reaches: no byte of it is copied on the way. It writes them to standard output.
 *
 *	cc -o share share.c $(pkg-config --cflags --libs ring3)
 *	./share SOCKET /dev/ublkb0 BYTES >file
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring3.h"

/* Bytes of a request: a multiple of every disk's block, in one piece. */
#define PIECE (128 << 10)

/* Ends the program with what has happened. */
static void fail(const char *what, const char *why)
{
	fprintf(stderr, "share: %s: %s\n", what, why);
	exit(1);
}

static void put(const char *bytes, size_t len)
{
	if (fwrite(bytes, 1, len, stdout) != len)
		fail("standard output", strerror(errno));
}

/* Reads the first `all` bytes of the disk, a piece at a time, each into the same place. */
static void copy(int disk, char *memory, unsigned long long all)
{
	for (unsigned long long at = 0; at < all; at += PIECE) {
		ssize_t len = pread(disk, memory, PIECE, (off_t)at);

		if (len < 0)
			fail("reading the disk", strerror(errno));
		if (len == 0)
			fail("reading the disk", "it is shorter than that");
		put(memory, all - at < (unsigned long long)len ? (size_t)(all - at) : (size_t)len);
	}
	if (fflush(stdout))
		fail("standard output", strerror(errno));
}

int main(int argc, char **argv)
{
	struct ring3_share *share;
	unsigned long long all;
	char *rest;
	int disk;

	if (argc != 4)
		fail("usage",
		     "share SOCKET DISK BYTES, such as share /run/ring3/share /dev/ublkb0 1048576");
	errno = 0;
	all = strtoull(argv[3], &rest, 10);
	if (errno || *rest || rest == argv[3] || argv[3][0] == '-')
		fail(argv[3], "how many bytes is that?");
	/* A read that is not O_DIRECT would go by the kernel's own pages. */
	disk = open(argv[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (disk < 0)
		fail(argv[2], strerror(errno));
	if (ring3_share_alloc(argv[1], PIECE, &share))
		fail(argv[1], ring3_error());
	copy(disk, ring3_share_address(share), all);
	/* From here on nothing more of the device's reaches it. */
	if (ring3_share_revoke(share))
		fail("taking the memory back", ring3_error());
	ring3_share_close(share);
	close(disk);
	return 0;
}
