/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The bytes of an input, and what AFL++ wants of a program that it runs: a server that forks, and a
 * map of the edges that were taken.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

/* AFL++'s descriptors, and the variable that names its map. */
#define CONTROL 198
#define STATUS 199
#define MAP_NAME "__AFL_SHM_ID"
#define MAP_LEN (1u << 16)
#define INPUT_MAX (64u << 10)

static unsigned char nobodys[MAP_LEN];
static unsigned char *edges = nobodys;
static uintptr_t before;

static const char *file;
static unsigned char input[INPUT_MAX];
static size_t len, at;
static bool begun;

void __sanitizer_cov_trace_pc(void);
/*
 * Called at the begin of each block of the driver; the same place has the same number in each run.
 */
__attribute__((no_sanitize_address)) void __sanitizer_cov_trace_pc(void)
{
	const uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)nobodys;
	const uintptr_t number = (place ^ place >> 16) * 0x9e3779b1u >> 8 & (MAP_LEN - 1);

	edges[number ^ before]++;
	before = number >> 1;
}

void fuzz_input_file(const char *path)
{
	file = path;
}

static void read_input(void)
{
	int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t got;

	if (!file)
		return;
	if (fd < 0) {
		fprintf(stderr, "%s: %m\n", file);
		_exit(2);
	}
	while (len < INPUT_MAX && (got = read(fd, input + len, INPUT_MAX - len)) > 0)
		len += (size_t)got;
	close(fd);
}

/*
 * Says hello, and makes a child whenever it is asked for one; returns in the children, and where
 * nobody asks.
 */
static void serve(void)
{
	const char *name = getenv(MAP_NAME);
	uint32_t word = 0;

	if (!name)
		return;
	edges = shmat(atoi(name), NULL, 0);
	if (edges == (void *)-1) {
		perror("AFL++'s map");
		_exit(2);
	}
	if (write(STATUS, &word, sizeof(word)) != (ssize_t)sizeof(word))
		return;
	while (read(CONTROL, &word, sizeof(word)) == (ssize_t)sizeof(word)) {
		const pid_t child = fork();
		int status;

		if (child == 0) {
			close(CONTROL);
			close(STATUS);
			return;
		}
		if (child < 0 || write(STATUS, &child, sizeof(child)) != (ssize_t)sizeof(child) ||
		    waitpid(child, &status, 0) < 0 ||
		    write(STATUS, &status, sizeof(status)) != (ssize_t)sizeof(status))
			break;
	}
	_exit(0);
}

void fuzz_begin(void)
{
	if (begun)
		return;
	begun = true;
	serve();
	before = 0;
	read_input();
}

uint8_t fuzz_byte(enum fuzz_end from)
{
	if (at >= len)
		return 0;
	return from == FUZZ_FRONT ? input[at++] : input[--len];
}

uint64_t fuzz_bytes(enum fuzz_end from, unsigned int count)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < count; i++)
		value |= (uint64_t)fuzz_byte(from) << 8 * i;
	return value;
}

bool fuzz_ended(void)
{
	return begun && at >= len;
}
