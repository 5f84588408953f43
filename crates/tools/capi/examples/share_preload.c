/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Has a program that knows nothing of ring3 keep its buffers in memory that is shared with an
 * export (`ring3 run nvme --share SOCKET`): shared memory that it maps is taken from there, the
 * first time that it asks for as much. PostgreSQL's buffers and its log are such, and its O_DIRECT
 * reads and writes of the export's disk are not copied then:
 *
 *	cc -shared -fPIC -o share_preload.so share_preload.c $(pkg-config --cflags --libs ring3)
 *	LD_PRELOAD=./share_preload.so RING3_SHARE=/run/ring3/share \
 *		postgres -D data -c debug_io_direct=data,wal
 *
 * RING3_SHARE is the export's socket, RING3_SHARE_LEAST how many bytes are worth it (8 MiB). Where
 * the memory cannot be had, the program gets what it asked for, and standard error says why.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ring3.h"

#define LEAST (8ull << 20)

typedef void *map_function(void *, size_t, int, int, int, off_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The region of this process and of those that it forks; it ends with them. */
static struct ring3_share *share;
static bool tried;

static bool is_wanted(const void *at, size_t len, int protection, int flags)
{
	const char *least = getenv("RING3_SHARE_LEAST");

	if (at || (protection & PROT_EXEC) ||
	    (flags & (MAP_SHARED | MAP_ANONYMOUS)) != (MAP_SHARED | MAP_ANONYMOUS))
		return false;
	return len >= (least ? strtoull(least, NULL, 10) : LEAST);
}

/*
 * The region, if there is none yet: it is mapped by this same function, which must not be asked for
 * another one.
 */
static void *take(size_t len)
{
	const char *socket = getenv("RING3_SHARE");
	void *memory = NULL;

	if (!socket || pthread_mutex_trylock(&lock))
		return NULL;
	if (!tried) {
		tried = true;
		if (ring3_share_alloc(socket, len, &share))
			fprintf(stderr, "share_preload: %s: %s\n", socket, ring3_error());
		else
			memory = ring3_share_address(share);
	}
	pthread_mutex_unlock(&lock);
	return memory;
}

static void *map(void *at, size_t len, int protection, int flags, int file, off_t offset)
{
	void *memory = is_wanted(at, len, protection, flags) ? take(len) : NULL;
	map_function *next;

	if (memory)
		return memory;
	*(void **)&next = dlsym(RTLD_NEXT, "mmap");
	return next(at, len, protection, flags, file, offset);
}

void *mmap(void *at, size_t len, int protection, int flags, int file, off_t offset)
{
	return map(at, len, protection, flags, file, offset);
}

void *mmap64(void *at, size_t len, int protection, int flags, int file, off_t offset)
{
	return map(at, len, protection, flags, file, offset);
}
