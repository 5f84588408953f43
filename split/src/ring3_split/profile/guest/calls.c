// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// calls OUT: counts what the kernel's function tracer records, by place of call, while it records.
//
// Every event says which function was entered (ip), where it will return to (parent_ip), and in
// which context. The text files of the tracer name the caller only by its symbol, and its buffers
// hold a few seconds. So this program reads the binary pages of each processor's buffer as they
// fill, counts equal events in a table, and writes one line for each to OUT when SIGTERM comes:
//
//     IP PARENT EPOCH CALLS ATOMIC
//
// in hexadecimal, then decimal. ATOMIC of the CALLS were made where sleeping is forbidden:
// interrupts off, or in an interrupt, or preemption off. The kernel gives the memory of a module's
// init code to the next one, so that an address means one function now and another later: SIGUSR1
// begins a new epoch, whose number is in OUT.epoch once everything before is counted. Lines that
// begin with # say how many events were read, and how many the kernel lost. The tracer is stopped
// first, by whoever sends the signal.

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define PROCESSORS 64
#define SLOTS (1u << 18) // pairs of addresses; a driver has some thousand
#define PAGE 65536	 // at least a page of the ring buffer

// Header of a page of the ring buffer: see events/header_page.
#define PAGE_HEADER 16
#define COMMIT_MASK 0x3fffffffu
#define MISSED_EVENTS (1u << 31)
// Event header: five bits of type or length in words, 27 bits of time. See events/header_event.
#define TYPE_PADDING 29
#define TYPE_TIME_EXTEND 30
#define TYPE_TIME_STAMP 31
// Flags of an event: interrupts off, hard interrupt, soft interrupt (also while bottom halves are
// disabled), NMI.
#define ATOMIC_FLAGS (0x01 | 0x08 | 0x10 | 0x40)
#define PREEMPT_DEPTH 0x0f

struct event { // struct ftrace_entry
	uint16_t type;
	uint8_t flags, preempt;
	int32_t pid;
	uint64_t ip, parent;
};

struct slot {
	uint64_t ip, parent, calls, atomic;
	unsigned epoch;
};

static struct slot *table;
static uint64_t events, missed, full;
static unsigned function_type;
static unsigned epoch;
static volatile sig_atomic_t ended, turned;

static void heard(int signal)
{
	if (signal == SIGTERM)
		ended = 1;
	else
		turned++;
}

static void die(const char *what)
{
	fprintf(stderr, "calls: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void count(const struct event *event)
{
	uint64_t hash = (event->ip * 0x9e3779b97f4a7c15u) ^
			((event->parent + epoch) * 0xc2b2ae3d27d4eb4fu);

	for (unsigned try = 0; try < SLOTS; try++) {
		struct slot *slot = &table[(unsigned)((hash >> 40) + try) % SLOTS];

		if (!slot->calls) {
			slot->ip = event->ip;
			slot->parent = event->parent;
			slot->epoch = epoch;
		}
		if (slot->ip == event->ip && slot->parent == event->parent &&
		    slot->epoch == epoch) {
			slot->calls++;
			slot->atomic += (event->flags & ATOMIC_FLAGS) ||
				(event->preempt & PREEMPT_DEPTH);
			events++;
			return;
		}
	}
	full++;
}

static void read_page(const uint8_t *page, size_t size)
{
	uint32_t commit = *(const uint32_t *)(page + 8);
	size_t end = PAGE_HEADER + (commit & COMMIT_MASK), at = PAGE_HEADER;

	missed += !!(commit & MISSED_EVENTS);
	if (end > size)
		end = size;
	while (at + 4 <= end) {
		uint32_t header = *(const uint32_t *)(page + at), type = header & 31;
		uint32_t length = type ? type * 4 : *(const uint32_t *)(page + at + 4) - 4;
		size_t data = at + (type ? 4 : 8);

		if (type == TYPE_PADDING) {
			if (!(header >> 5))
				return; // the rest of the page is empty
			at += 4 + *(const uint32_t *)(page + at + 4);
			continue;
		}
		if (type == TYPE_TIME_EXTEND || type == TYPE_TIME_STAMP) {
			at += 8;
			continue;
		}
		if (length >= sizeof(struct event) && data + sizeof(struct event) <= end) {
			struct event event;

			memcpy(&event, page + data, sizeof(event));
			if (event.type == function_type)
				count(&event);
		}
		at = data + length;
	}
}

// Reads what there is; whether there was anything.
static int drain(int fd)
{
	static uint8_t page[PAGE];
	ssize_t size = read(fd, page, sizeof(page));

	if (size > 0)
		read_page(page, (size_t)size);
	else if (size < 0 && errno != EAGAIN && errno != EINTR)
		die("reading the tracer's buffer");
	return size > 0;
}

static unsigned type_of_functions(void)
{
	char line[256];
	unsigned id = 0;
	FILE *format = fopen(TRACING "/events/ftrace/function/format", "r");

	if (!format)
		die(TRACING "/events/ftrace/function/format");
	while (fgets(line, sizeof(line), format))
		sscanf(line, "ID: %u", &id);
	fclose(format);
	return id;
}

static void write_table(const char *path)
{
	FILE *out = fopen(path, "w");

	if (!out)
		die(path);
	for (unsigned i = 0; i < SLOTS; i++)
		if (table[i].calls)
			fprintf(out, "%" PRIx64 " %" PRIx64 " %u %" PRIu64 " %"
				PRIu64 "\n", table[i].ip, table[i].parent, table[i].epoch,
				table[i].calls, table[i].atomic);
	fprintf(out, "# events %" PRIu64 "\n# gaps %" PRIu64 "\n# full %"
		PRIu64 "\n", events, missed, full);
	if (fclose(out))
		die(path);
}

static void begin_epoch(const char *path)
{
	char name[4096];
	FILE *out;

	snprintf(name, sizeof(name), "%s.epoch", path);
	out = fopen(name, "w");
	if (!out || fprintf(out, "%u\n", ++epoch) < 0 || fclose(out))
		die(name);
}

int main(int argc, char **argv)
{
	int fds[PROCESSORS], buffers = 0, busy;
	glob_t found;

	if (argc != 2)
		return 2;
	table = calloc(SLOTS, sizeof(*table));
	function_type = type_of_functions();
	if (!table || glob(TRACING "/per_cpu/cpu*/trace_pipe_raw", 0, NULL, &found))
		die(TRACING "/per_cpu");
	for (size_t i = 0; i < found.gl_pathc && buffers < PROCESSORS; i++)
		if ((fds[buffers++] = open(found.gl_pathv[i], O_RDONLY | O_NONBLOCK)) < 0)
			die(found.gl_pathv[i]);
	signal(SIGTERM, heard);
	signal(SIGUSR1, heard);
	do {
		int last = ended, turn = turned;

		busy = 0;
		for (int i = 0; i < buffers; i++)
			for (int pages = 0; pages < 256 && drain(fds[i]); pages++)
				busy = 1;
		if (busy)
			continue;
		if (turn > (int)epoch)
			begin_epoch(argv[1]);
		else if (last)
			break;
		else
			usleep(20000);
	} while (1);
	write_table(argv[1]);
	return 0;
}
