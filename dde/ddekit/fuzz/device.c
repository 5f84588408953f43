/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The device of a run: a recorded one, with what the input makes of it.
 *
 * # Recording
 *
 * Lines of text: `c OFFSET VALUE` of configuration space, `b INDEX LEN PORTS` of base address
 * registers, `i KIND COUNT` of interrupts, `r BAR OFFSET WIDTH VALUE` for each register that was
 * read, in their order. A register gives what was recorded of it, in order; then the last of that
 * again and again, or 0.
 *
 * # Input
 *
 * At a register that is read: 0x80 to 0x9f give other bytes of the input, for as many reads of this
 * register (the low bits and one) as it says; 0xa0 to 0xbf invert a bit; 0xc0 to 0xcf are all ones,
 * 0xd0 to 0xdf zero; 0xe0 to 0xff have a vector fire, and give what was recorded.
 *
 * When the process would sleep: 0x80 to 0x9f have a vector fire; 0xa0 to 0xcf write bytes of the
 * input, one more than the low bits, to memory that was mapped for the device; 0xd0 to 0xef have a
 * user send a frame, or ask for something of the disk; 0xf0 to 0xff have one change the filter.
 */
#include "ddekit/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ddekit/card.h"
#include "ddekit/check.h"
#include "ddekit/dma.h"
#include "ddekit/irq.h"
#include "fuzz.h"

#define BARS 6
#define CONFIG 4096u
#define VECTORS 64u
#define MAPPED 8192u
#define FRAME 1514u
#define NAME "fuzz"
/* Far from what the host places, and each time the same. */
#define BASE ((void *)0x200000000000ull)
#define IOVA 0x10000000ull

struct reading {
	uint64_t offset, value;
	unsigned int bar, width;
	/* The next one of this register. */
	struct reading *next;
};

/* A register that was read: what it gives next, and what the input has it give. */
struct reg {
	uint64_t offset;
	unsigned int bar, width;
	struct reading *first, *last;
	uint64_t forced;
	unsigned int force;
	struct reg *next;
};

struct ddekit_bar {
	struct ddekit_bar_info info;
	unsigned int index;
	bool present;
};

static struct ddekit_device {
	struct ddekit_arena arena;
	struct ddekit_bar bars[BARS];
	unsigned int irqs[3];
	unsigned int enabled;
	void (*raised)(unsigned int vector);
	bool masked[VECTORS], pending[VECTORS];
} device;

#define REGS 1024u
static struct reg *regs[REGS];
static unsigned char config[CONFIG];
static struct mapped {
	unsigned char *at;
	size_t len;
} mapped[MAPPED];
static unsigned int mapped_count;
static struct ddekit_card_ops card;
static bool served;
/*
 * Places where nothing happens, still to come: where registers are read, and where the process
 * would sleep.
 */
static unsigned int quiet_reads, quiet_events;

static struct reg *reg_of(unsigned int bar, uint64_t offset, unsigned int width)
{
	struct reg **at = &regs[(offset / 4 + bar * 257) % REGS];

	while (*at && ((*at)->bar != bar || (*at)->offset != offset || (*at)->width != width))
		at = &(*at)->next;
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (!*at)
			abort();
		**at = (struct reg){ .bar = bar, .offset = offset, .width = width };
	}
	return *at;
}

static void add_reading(unsigned int bar, uint64_t offset, unsigned int width, uint64_t value)
{
	struct reg *reg = reg_of(bar, offset, width);
	struct reading *reading = calloc(1, sizeof(*reading));

	if (!reading)
		abort();
	reading->value = value;
	if (reg->last)
		reg->last->next = reading;
	else
		reg->first = reading;
	reg->last = reading;
}

static bool take_line(const char *line)
{
	unsigned long long offset, value;
	unsigned int index, width, ports;

	if (sscanf(line, "c %llx %llx", &offset, &value) == 2) {
		if (offset > CONFIG - 4)
			return false;
		memcpy(config + offset, &(uint32_t){ (uint32_t)value }, 4);
	} else if (sscanf(line, "b %u %llx %u", &index, &value, &ports) == 3) {
		if (index >= BARS)
			return false;
		device.bars[index] = (struct ddekit_bar){ .info = { .len = value, .ports = ports },
							  .index = index, .present = true };
	} else if (sscanf(line, "i %u %u", &index, &width) == 2) {
		if (index > DDEKIT_MSIX)
			return false;
		device.irqs[index] = width < VECTORS ? width : VECTORS;
	} else if (sscanf(line, "r %u %llx %u %llx", &index, &offset, &width, &value) == 4) {
		add_reading(index, offset, width, value);
	} else {
		return false;
	}
	return true;
}

bool fuzz_load(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[128];
	bool good = file != NULL;

	while (good && fgets(line, sizeof(line), file))
		good = take_line(line);
	if (file && !good)
		errno = EINVAL;
	if (file)
		fclose(file);
	return good;
}

int ddekit_dev_open(const char *uri, const struct ddekit_device_options *options,
		    struct ddekit_device **opened)
{
	void *memory = mmap(BASE, options->arena, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	(void)uri;
	if (memory == MAP_FAILED)
		return -errno;
	device.arena = (struct ddekit_arena){ .base = memory, .len = options->arena, .iova = IOVA };
	*opened = &device;
	return 0;
}

void ddekit_dev_close(struct ddekit_device *closed)
{
	(void)closed;
}

const char *ddekit_error(void)
{
	return strerror(errno);
}

const char *ddekit_dev_name(const struct ddekit_device *named)
{
	(void)named;
	return NAME;
}

uint32_t ddekit_cfg_read(const struct ddekit_device *of, uint32_t offset, uint32_t width)
{
	uint32_t value = 0;

	(void)of;
	if (width > 4 || offset > CONFIG - width)
		return ~0u;
	memcpy(&value, config + offset, width);
	return value;
}

/*
 * Command, cache line size, latency timer and interrupt line keep what is written; the rest is as
 * it was recorded. A driver may ask whether its cache line size was taken. [PCI 6.2]
 */
static bool is_kept(uint32_t offset)
{
	return offset == 0x04 || offset == 0x05 || offset == 0x0c || offset == 0x0d ||
	       offset == 0x3c;
}

int ddekit_cfg_write(const struct ddekit_device *of, uint32_t offset, uint32_t width,
		     uint32_t value)
{
	(void)of;
	for (uint32_t i = 0; i < width; i++)
		if (is_kept(offset + i))
			config[offset + i] = (unsigned char)(value >> (8 * i));
	return 0;
}

int ddekit_dev_bus_master(const struct ddekit_device *of, bool on)
{
	(void)of, (void)on;
	return 0;
}

int ddekit_dev_reset(const struct ddekit_device *of)
{
	(void)of;
	return 0;
}

int ddekit_bar_info(const struct ddekit_device *of, unsigned int index,
		    struct ddekit_bar_info *info)
{
	if (index >= BARS || !of->bars[index].present)
		return -ENOENT;
	*info = of->bars[index].info;
	return 0;
}

int ddekit_bar_open(struct ddekit_device *of, unsigned int index, struct ddekit_bar **bar)
{
	if (index >= BARS || !of->bars[index].present)
		return -ENOENT;
	*bar = &of->bars[index];
	return 0;
}

void *ddekit_bar_map(const struct ddekit_bar *bar, uint64_t *len)
{
	(void)bar, (void)len;
	return NULL;
}

static void fire(unsigned int number)
{
	if (device.enabled)
		device.pending[number % device.enabled] = true;
}

static uint64_t recorded(struct reg *reg)
{
	struct reading *reading = reg->first;

	if (!reading)
		return 0;
	if (reading->next)
		reg->first = reading->next;
	return reading->value;
}

uint64_t ddekit_bar_read(const struct ddekit_bar *bar, uint64_t offset, uint32_t width)
{
	const uint64_t ones = width < 8 ? (1ull << 8 * width) - 1 : ~0ull;
	struct reg *reg;
	uint64_t value;
	uint8_t byte;

	if (offset >= bar->info.len || width > bar->info.len - offset)
		return ones;
	fuzz_begin();
	reg = reg_of(bar->index, offset, width);
	value = recorded(reg);
	if (reg->force) {
		reg->force--;
		return reg->forced;
	}
	if (quiet_reads) {
		quiet_reads--;
		return value;
	}
	byte = fuzz_byte(FUZZ_FRONT);
	if (byte < QUIET_PLACES) {
		quiet_reads = byte;
	} else if (byte < 0xa0) {
		value = reg->forced = fuzz_bytes(FUZZ_FRONT, width);
		reg->force = byte & 0x1f;
	} else if (byte < 0xc0) {
		value ^= 1ull << (byte & 0x1f) % (8 * width);
	} else if (byte < 0xd0) {
		value = ones;
	} else if (byte < 0xe0) {
		value = 0;
	} else {
		fire(byte & 0x1f);
	}
	return value & ones;
}

void ddekit_bar_write(const struct ddekit_bar *bar, uint64_t offset, uint32_t width, uint64_t value)
{
	(void)bar, (void)offset, (void)width, (void)value;
	fuzz_begin();
}

unsigned int ddekit_irq_count(const struct ddekit_device *of, enum ddekit_irq_kind kind)
{
	return of->irqs[kind];
}

int ddekit_irq_enable(struct ddekit_device *of, enum ddekit_irq_kind kind, unsigned int count,
		      void (*function)(unsigned int vector))
{
	if (count > of->irqs[kind])
		return -EINVAL;
	memset(of->pending, 0, sizeof(of->pending));
	memset(of->masked, 0, sizeof(of->masked));
	of->masked[0] = kind == DDEKIT_INTX;
	of->enabled = count;
	of->raised = function;
	return 0;
}

void ddekit_irq_mask(struct ddekit_device *of, unsigned int vector)
{
	if (vector < VECTORS)
		of->masked[vector] = true;
}

void ddekit_irq_unmask(struct ddekit_device *of, unsigned int vector)
{
	if (vector < VECTORS)
		of->masked[vector] = false;
}

void ddekit_irq_deliver(void)
{
	for (unsigned int i = 0; i < device.enabled; i++)
		if (device.pending[i] && !device.masked[i]) {
			device.pending[i] = false;
			device.raised(i);
		}
}

const struct ddekit_arena *ddekit_dma_arena(const struct ddekit_device *of)
{
	return &of->arena;
}

void ddekit_dma_share(const struct ddekit_device *of, const void *memory, size_t len)
{
	(void)of, (void)memory, (void)len;
}

void ddekit_dma_unshare(const struct ddekit_device *of, const void *memory)
{
	(void)of, (void)memory;
}

void ddekit_dma_sync(const struct ddekit_device *of)
{
	(void)of;
}

void ddekit_check_device_writes(const void *memory, size_t len)
{
	if (mapped_count < MAPPED && len > 0)
		mapped[mapped_count++] = (struct mapped){ .at = (void *)(uintptr_t)memory,
							  .len = len };
}

void ddekit_check_device_done(const void *memory)
{
	for (unsigned int i = mapped_count; i-- > 0;)
		if (mapped[i].at == memory) {
			memmove(&mapped[i], &mapped[i + 1],
				(--mapped_count - i) * sizeof(mapped[0]));
			return;
		}
}

/*
 * The low numbers are rings, which are mapped once and stay; of buffers, all the same ones come
 * often.
 */
static void write_memory(unsigned int count)
{
	const unsigned int which = (unsigned int)fuzz_bytes(FUZZ_BACK, 1);
	const size_t at = (size_t)fuzz_bytes(FUZZ_BACK, 2);
	const struct mapped *to = mapped_count ? &mapped[which % mapped_count] : NULL;

	for (unsigned int i = 0; i < count; i++) {
		const uint8_t byte = fuzz_byte(FUZZ_BACK);

		if (to)
			to->at[(at + i) % to->len] = byte;
	}
}

static void send_frame(unsigned int kind)
{
	const struct ddekit_frame frame =
		{ .len = 14 + (uint32_t)fuzz_bytes(FUZZ_BACK, 2) % (FRAME - 14 + 1) };
	void *room;

	if (!served || card.begin(&frame, &room) != DDEKIT_HERE)
		return;
	for (size_t i = 0; i < frame.len; i++)
		((unsigned char *)room)[i] = (unsigned char)(kind + i);
	card.end(true);
	card.flush();
}

static void change_filter(unsigned int what)
{
	static const uint8_t group[6] = { 1, 0, 0x5e, 0, 0, 1 };

	if (served)
		card.filter(what & 1, what & 2, NULL, 0, &group, what >> 2 & 1);
}

void fuzz_event(void)
{
	uint8_t byte;

	ddekit_irq_deliver();
	if (quiet_events) {
		quiet_events--;
		return;
	}
	byte = fuzz_byte(FUZZ_BACK);
	if (byte < QUIET_PLACES)
		quiet_events = byte;
	else if (byte < 0xa0)
		fire(byte & 0x1f);
	else if (byte < 0xd0)
		write_memory(1 + (byte & 0x1f));
	else if (byte < 0xf0 && fuzz_disk_served())
		fuzz_disk_request(byte & 0x1f);
	else if (byte < 0xf0)
		send_frame(byte & 0x1f);
	else
		change_filter(byte & 0x0f);
	ddekit_irq_deliver();
}

int ddekit_card_serve(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		      const char *access, struct ddekit_card **made)
{
	static char nobodys;

	(void)info, (void)access;
	card = *ops;
	served = true;
	*made = (struct ddekit_card *)&nobodys;
	return 0;
}

int ddekit_card_lend(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		     const struct ddekit_device *device, struct ddekit_card **made)
{
	(void)device;
	return ddekit_card_serve(info, ops, NULL, made);
}

void ddekit_card_filtered(struct ddekit_card *filtered)
{
	(void)filtered;
}

void ddekit_card_close(struct ddekit_card *closed)
{
	(void)closed;
	served = false;
}

void ddekit_card_flush(struct ddekit_card *flushed)
{
	(void)flushed;
}

void ddekit_card_missed(struct ddekit_card *served, uint64_t frames)
{
	(void)served, (void)frames;
}

void ddekit_card_link(struct ddekit_card *linked, bool up, uint32_t mbits, bool full_duplex)
{
	(void)linked, (void)up, (void)mbits, (void)full_duplex;
}

/* Each byte is looked at, so that a frame that ends beyond its buffer is found. */
bool ddekit_card_receive(struct ddekit_card *received, const void *frame, size_t len, bool checked)
{
	static volatile unsigned char sum;

	(void)received, (void)checked;
	for (size_t i = 0; i < len; i++)
		sum += ((const unsigned char *)frame)[i];
	return true;
}

void ddekit_card_resume(struct ddekit_card *resumed)
{
	(void)resumed;
}
