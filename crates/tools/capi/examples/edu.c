/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A driver of QEMU's teaching device in C: registers, an interrupt, DMA. The one in Rust is
 * crates/drivers/driver/src/edu.
 *
 *	cc -o edu edu.c $(pkg-config --cflags --libs ring3)
 *	./edu qtest:edu
 *
 * References: [EDU] QEMU's docs/specs/edu.rst
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ring3.h"

/* [EDU, PCI specs] */
#define EDU_VENDOR 0x1234
#define EDU_DEVICE 0x11e8
/* It drives 28 address lines. [EDU, DMA controller] */
#define EDU_REACH (1ull << 28)

/* [EDU, MMIO area spec] */
enum edu_register {
	EDU_IDENTIFICATION = 0x00,
	EDU_LIVENESS = 0x04,
	EDU_FACTORIAL = 0x08,
	EDU_STATUS = 0x20,
	EDU_IRQ_STATUS = 0x24,
	EDU_IRQ_ACKNOWLEDGE = 0x64,
	EDU_DMA_SOURCE = 0x80,
	EDU_DMA_DESTINATION = 0x88,
	EDU_DMA_COUNT = 0x90,
	EDU_DMA_COMMAND = 0x98,
};

#define EDU_STATUS_COMPUTING 0x01
#define EDU_STATUS_IRQ_AT_END 0x80
#define EDU_DMA_START 0x1
#define EDU_DMA_TO_MEMORY 0x2
#define EDU_DMA_IRQ 0x4
/*
 * Where the device has its own memory, and how much of it one transfer moves. [EDU, DMA controller]
 */
#define EDU_BUFFER 0x40000
#define EDU_TRANSFER 4095

/* A transfer takes the device 100 ms; an emulator that is not scheduled takes longer. */
#define EDU_PATIENCE_MS 10000

struct edu {
	struct ring3_device *device;
	struct ring3_bar *registers;
	struct ring3_irq *irq;
};

/* Ends the program with what has happened. */
static void fail(const char *what, const char *why)
{
	fprintf(stderr, "edu: %s: %s\n", what, why);
	exit(1);
}

/* Ends the program if a call has failed. */
static void check(const char *what, int result)
{
	if (result < 0)
		fail(what, ring3_error());
}

static uint32_t edu_read(const struct edu *edu, enum edu_register offset)
{
	return (uint32_t)ring3_bar_read(edu->registers, offset, 4);
}

static void edu_write(const struct edu *edu, enum edu_register offset, uint32_t value)
{
	ring3_bar_write(edu->registers, offset, 4, value);
}

/* Opens the device, makes sure that it is one, and lets it reach its memory. */
static void edu_attach(struct edu *edu, const char *uri)
{
	const struct ring3_options options = { .arena = 1 << 20, .below = EDU_REACH };
	uint32_t ids;

	check(uri, ring3_open(uri, &options, &edu->device));
	ids = ring3_config_read(edu->device, 0, 4);
	if (ids != (EDU_DEVICE << 16 | EDU_VENDOR)) {
		fprintf(stderr, "edu: %s: it is %04x:%04x, and no teaching device (1234:11e8)\n",
			uri, ids & 0xffff, ids >> 16);
		exit(1);
	}
	check("registers", ring3_bar_open(edu->device, 0, &edu->registers));
	check("bus mastering", ring3_set_bus_master(edu->device, true));
}

/* Has the device signal by its best interrupt; without one, the driver looks. */
static const char *edu_enable_irq(struct edu *edu)
{
	const uint32_t kinds[] = { RING3_MSI, RING3_INTX };
	const char *const names[] = { "MSI", "INTx" };

	for (int i = 0; i < 2; i++) {
		if (ring3_irq_count(edu->device, kinds[i]) == 0)
			continue;
		check("an interrupt", ring3_irq_open(edu->device, kinds[i], 1, &edu->irq));
		check("an interrupt", ring3_irq_unmask(edu->irq));
		edu_write(edu, EDU_STATUS, EDU_STATUS_IRQ_AT_END);
		return names[i];
	}
	return "polling";
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until the device is done: a register is zero in some bits then. */
static void edu_finish(struct edu *edu, enum edu_register reg, uint32_t busy, const char *what)
{
	const int64_t deadline = now_ms() + EDU_PATIENCE_MS;
	uint64_t count = 0;

	while (edu_read(edu, reg) & busy) {
		if (edu_read(edu, reg) == UINT32_MAX)
			fail(what, "the device is gone");
		if (!edu->irq && now_ms() > deadline)
			fail(what, "not done in ten seconds");
		if (!edu->irq)
			continue;
		check(what, ring3_irq_wait(edu->irq, EDU_PATIENCE_MS, &count));
		if (count == 0)
			fail(what, "no interrupt in ten seconds");
		/*
		 * Acknowledge first: a pin that is still high when its mask opens is one more
		 * interrupt.
		 */
		edu_write(edu, EDU_IRQ_ACKNOWLEDGE, edu_read(edu, EDU_IRQ_STATUS));
		check(what, ring3_irq_unmask(edu->irq));
	}
}

static uint32_t edu_factorial(struct edu *edu, uint32_t n)
{
	edu_write(edu, EDU_FACTORIAL, n);
	edu_finish(edu, EDU_STATUS, EDU_STATUS_COMPUTING, "a factorial");
	return edu_read(edu, EDU_FACTORIAL);
}

/* Moves the bytes of a buffer to the device's memory, or back. */
static void edu_transfer(struct edu *edu, const struct ring3_buffer *buffer, uint32_t direction)
{
	const uint64_t iova = ring3_dma_iova(buffer);
	const bool back = direction == EDU_DMA_TO_MEMORY;

	ring3_bar_write(edu->registers, EDU_DMA_SOURCE, 8, back ? EDU_BUFFER : iova);
	ring3_bar_write(edu->registers, EDU_DMA_DESTINATION, 8, back ? iova : EDU_BUFFER);
	ring3_bar_write(edu->registers, EDU_DMA_COUNT, 8, EDU_TRANSFER);
	ring3_bar_write(edu->registers, EDU_DMA_COMMAND, 8,
			EDU_DMA_START | direction | (edu->irq ? EDU_DMA_IRQ : 0));
	edu_finish(edu, EDU_DMA_COMMAND, EDU_DMA_START, "a transfer");
}

static void edu_round_trip(struct edu *edu)
{
	struct ring3_buffer *out, *back;
	unsigned char *bytes;

	check("memory", ring3_dma_alloc(edu->device, EDU_TRANSFER, 16, &out));
	check("memory", ring3_dma_alloc(edu->device, EDU_TRANSFER, 16, &back));
	bytes = ring3_dma_address(out);
	for (int i = 0; i < EDU_TRANSFER; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 256);
	edu_transfer(edu, out, 0);
	edu_transfer(edu, back, EDU_DMA_TO_MEMORY);
	if (memcmp(bytes, ring3_dma_address(back), EDU_TRANSFER) != 0)
		fail("a transfer", "other bytes have come back");
	ring3_dma_release(out);
	ring3_dma_release(back);
}

int main(int argc, char **argv)
{
	struct edu edu = { 0 };
	uint32_t id;

	if (argc != 2)
		fail("usage", "edu URI, such as edu qtest:edu");
	edu_attach(&edu, argv[1]);
	id = edu_read(&edu, EDU_IDENTIFICATION);
	if ((id & 0xff) != 0xed)
		fail(argv[1], "it does not identify itself as the teaching device");
	printf("identification  version %u.%u\n", id >> 24, id >> 16 & 0xff);

	printf("factorial       12! = %u\n", edu_factorial(&edu, 12));

	edu_write(&edu, EDU_LIVENESS, 0x12345678);
	if (edu_read(&edu, EDU_LIVENESS) != ~0x12345678u)
		fail("liveness", "the answer is not the inverse");
	printf("liveness        answers with the inverse\n");

	printf("interrupts      %s: 12! = ", edu_enable_irq(&edu));
	printf("%u\n", edu_factorial(&edu, 12));

	edu_round_trip(&edu);
	printf("DMA             %d bytes there and back\n", EDU_TRANSFER);

	ring3_irq_close(edu.irq);
	ring3_bar_close(edu.registers);
	ring3_close(edu.device);
	return 0;
}
