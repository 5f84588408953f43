/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Over ring3's model of QEMU's teaching device: [EDU] QEMU's docs/specs/edu.rst */
#include "ddekit/device.h"

#include <stdint.h>
#include <unistd.h>

#include "ddekit/dma.h"
#include "ddekit/event.h"
#include "ddekit/irq.h"
#include "ddekit/time.h"
#include "../src/device.h"
#include "tests.h"

#define MIB (1u << 20)
/* [EDU, 0x60 and 0x64] */
#define RAISE 0x60
#define ACKNOWLEDGE 0x64
#define SECOND 1000000000ull

static struct ddekit_device *device;

static void open_edu(void)
{
	const struct ddekit_device_options options = { .arena = 4 * MIB, .below = 1u << 28 };

	CHECK(ddekit_dev_open("sim:edu", &options, &device) == 0);
}

static void an_address_and_what_the_device_is_told_are_one_addition_apart(void)
{
	const struct ddekit_arena *arena;

	open_edu();
	arena = ddekit_dma_arena(device);
	CHECK(arena->len == 4 * MIB && arena->iova % (2 * MIB) == 0 &&
	      arena->iova + arena->len <= 1u << 28);
	CHECK(ddekit_dma_iova(arena, arena->base + 5) == arena->iova + 5);
	CHECK(ddekit_dma_address(arena, arena->iova + 5) == arena->base + 5);
	CHECK(ddekit_dma_iova(arena, arena->base + arena->len) == UINT64_MAX);
	CHECK(ddekit_dma_iova(arena, arena->base - 1) == UINT64_MAX);
	CHECK(ddekit_dma_address(arena, arena->iova + arena->len) == NULL);
	arena->base[arena->len - 1] = 1;
	ddekit_dev_close(device);
}

static void registers_of_the_backend_are_not_written(void)
{
	open_edu();
	CHECK(ddekit_cfg_read(device, 0, 4) == 0x11e81234);
	CHECK(ddekit_cfg_write(device, 0x10, 4, 0) < 0);
	CHECK(strstr(ddekit_error(), "base address register"));
	ddekit_dev_close(device);
}

static void a_register_that_is_absent_is_not_opened(void)
{
	struct ddekit_bar_info info;
	struct ddekit_bar *bar;

	open_edu();
	CHECK(ddekit_bar_info(device, 0, &info) == 0 && info.len == MIB && !info.ports);
	CHECK(ddekit_bar_info(device, 5, &info) < 0 && ddekit_bar_open(device, 5, &bar) < 0);
	CHECK(ddekit_bar_info(device, 6, &info) < 0 && ddekit_bar_open(device, 6, &bar) < 0);
	ddekit_dev_close(device);
}

static int raised;

static void interrupt(unsigned int vector)
{
	struct ddekit_bar *bar;

	CHECK(vector == 0 && ddekit_bar_open(device, 0, &bar) == 0);
	ddekit_bar_write(bar, ACKNOWLEDGE, 4, 1);
	raised++;
}

static void raise_and_wait(int times)
{
	const uint64_t until = ddekit_now() + 10 * SECOND;
	struct ddekit_bar *bar;

	CHECK(ddekit_bar_open(device, 0, &bar) == 0);
	ddekit_bar_write(bar, RAISE, 4, 1);
	while (raised < times && ddekit_now() < until)
		CHECK(ddekit_ev_poll(until) >= 0);
	CHECK(raised == times);
}

static void interrupts_call_their_function_from_the_loop(void)
{
	open_edu();
	CHECK(ddekit_irq_count(device, DDEKIT_MSI) > 0);
	CHECK(ddekit_dev_bus_master(device, true) == 0);
	CHECK(ddekit_irq_enable(device, DDEKIT_MSI, 1, interrupt) == 0);
	raise_and_wait(1);
	raise_and_wait(2);
	CHECK(ddekit_irq_enable(device, DDEKIT_INTX, 1, interrupt) == 0);
	ddekit_irq_unmask(device, 0);
	raise_and_wait(3);
	ddekit_irq_unmask(device, 0);
	raise_and_wait(4);
	ddekit_dev_close(device);
}

/* Of so many messages one is taken: see SKIPPED. */
#define MESSAGES 16u
/*
 * How often a vector may come before it is held back, and more than that hold lasts: see StormLimit
 * of the device layer.
 */
#define STORM 5001
#define HOLD_NS 500000000ull

/* As many messages as are taken at once, the last of which stands for @last of them. */
static void send_messages(struct ring3_irq *irq, uint64_t last)
{
	for (unsigned int i = 1; i <= MESSAGES; i++) {
		const uint64_t count = i == MESSAGES ? last : 1;
		const int before = raised;

		CHECK(write(ring3_irq_fd(irq), &count, sizeof(count)) == sizeof(count));
		CHECK(ddekit_ev_poll(0) > 0 && raised == before + 1);
	}
}

static void one_that_comes_while_it_is_held_back_leaves_the_timers_whole(void)
{
	struct ring3_irq *irq;
	uint64_t until;

	open_edu();
	CHECK(ddekit_irq_enable(device, DDEKIT_MSI, 1, interrupt) == 0);
	irq = device->vectors[0].irq;
	send_messages(irq, STORM);
	CHECK(ring3_irq_held_ms(irq) >= 0);
	send_messages(irq, 1);
	CHECK(device->vectors[0].rearm.next != &device->vectors[0].rearm);
	for (until = ddekit_now() + HOLD_NS; ddekit_now() < until && ring3_irq_held_ms(irq) >= 0;)
		CHECK(ddekit_ev_poll(until) >= 0);
	CHECK(ring3_irq_held_ms(irq) < 0);
	ddekit_dev_close(device);
}

static void a_device_that_is_none_is_an_error_that_says_so(void)
{
	const struct ddekit_device_options options = { .arena = 4 * MIB };

	CHECK(ddekit_dev_open("sim:nonsense", &options, &device) < 0);
	CHECK(strstr(ddekit_error(), "nonsense"));
}

static const struct test tests[] = {
	TEST(an_address_and_what_the_device_is_told_are_one_addition_apart),
	TEST(registers_of_the_backend_are_not_written),
	TEST(a_register_that_is_absent_is_not_opened),
	TEST(interrupts_call_their_function_from_the_loop),
	TEST(one_that_comes_while_it_is_held_back_leaves_the_timers_whole),
	TEST(a_device_that_is_none_is_an_error_that_says_so),
};

MAIN(tests)
