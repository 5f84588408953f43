/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "device.h"

#include <errno.h>
#include <stdlib.h>

#include "journal.h"
#include "record.h"

/* So that an IOMMU can use large pages, and a driver's own pages begin at multiples of theirs. */
#define ARENA_ALIGN (2u << 20)

static int take_memory(struct ddekit_device *device, size_t len)
{
	const int result = ring3_dma_alloc(device->device, len, ARENA_ALIGN, &device->memory);

	if (result < 0)
		return result;
	device->arena.base = ring3_dma_address(device->memory);
	device->arena.len = ring3_dma_len(device->memory);
	device->arena.iova = ring3_dma_iova(device->memory);
	return 0;
}

int ddekit_dev_open(const char *uri, const struct ddekit_device_options *options,
		    struct ddekit_device **device)
{
	/* The rings of a backend may lie in the arena, too, and its begin may be no multiple. */
	const struct ring3_options wanted = {
		.arena = options->arena + 2 * ARENA_ALIGN,
		.below = options->below,
		.unprotected = options->unprotected,
	};
	struct ddekit_device *opened = calloc(1, sizeof(*opened));
	int result;

	if (!opened)
		return -ENOMEM;
	result = ring3_open(uri, &wanted, &opened->device);
	if (result == 0)
		journal_begin(opened);
	if (result == 0)
		result = take_memory(opened, options->arena);
	if (result == 0)
		result = record_begin(opened);
	if (result < 0) {
		ddekit_dev_close(opened);
		return result;
	}
	*device = opened;
	return 0;
}

void ddekit_dev_close(struct ddekit_device *device)
{
	if (!device)
		return;
	record_end();
	ddekit_irq_end(device);
	ddekit_ev_unwatch(device->removal);
	/* What the device has of the memory it has no longer. */
	if (device->device)
		ring3_set_bus_master(device->device, false);
	for (unsigned int i = 0; i < BARS; i++)
		ring3_bar_close(device->bars[i]);
	ring3_dma_release(device->memory);
	ring3_close(device->device);
	free(device);
}

const char *ddekit_error(void)
{
	return ring3_error();
}

const char *ddekit_dev_name(const struct ddekit_device *device)
{
	return ring3_name(device->device);
}

uint32_t ddekit_cfg_read(const struct ddekit_device *device, uint32_t offset, uint32_t width)
{
	return ring3_config_read(device->device, offset, width);
}

int ddekit_cfg_write(const struct ddekit_device *device, uint32_t offset, uint32_t width,
		     uint32_t value)
{
	return ring3_config_write(device->device, offset, width, value);
}

int ddekit_dev_bus_master(const struct ddekit_device *device, bool on)
{
	return ring3_set_bus_master(device->device, on);
}

static void removal(void *arg)
{
	struct ddekit_device *device = arg;

	/* It stays readable. */
	ddekit_ev_unwatch(device->removal);
	device->removal = NULL;
	device->wanted_back(device->wanted_back_arg);
}

int ddekit_dev_wanted_back(struct ddekit_device *device, void (*function)(void *arg), void *arg)
{
	const int fd = ring3_removal_fd(device->device);

	/* Where there is a recording, watches are numbered. */
	if (fd < 0 && !journal_is_on())
		return fd;
	device->wanted_back = function;
	device->wanted_back_arg = arg;
	ddekit_ev_unwatch(device->removal);
	device->removal = ddekit_ev_watch(fd, removal, device);
	return device->removal ? 0 : -errno;
}

int ddekit_dev_reset(const struct ddekit_device *device)
{
	return ring3_reset(device->device);
}

int ddekit_bar_info(const struct ddekit_device *device, unsigned int index,
		    struct ddekit_bar_info *info)
{
	struct ring3_bar_info found;
	const int result = index < BARS ? ring3_bar_describe(device->device, (uint8_t)index,
							     &found) : -ENOENT;

	if (result == 0)
		*info = (struct ddekit_bar_info){ .len = found.len, .ports = found.ports };
	return result;
}

/* A handle of ddekit's is one of ring3's. */
static const struct ring3_bar *of(const struct ddekit_bar *bar)
{
	return (const struct ring3_bar *)bar;
}

int ddekit_bar_open(struct ddekit_device *device, unsigned int index, struct ddekit_bar **bar)
{
	int result = 0;

	if (index >= BARS)
		return -ENOENT;
	if (!device->bars[index])
		result = ring3_bar_open(device->device, (uint8_t)index, &device->bars[index]);
	if (result == 0)
		*bar = (struct ddekit_bar *)device->bars[index];
	return result;
}

void *ddekit_bar_map(const struct ddekit_bar *bar, uint64_t *len)
{
	return record_is_on() ? NULL : ring3_bar_map(of(bar), len);
}

uint64_t ddekit_bar_read(const struct ddekit_bar *bar, uint64_t offset, uint32_t width)
{
	const uint64_t value = ring3_bar_read(of(bar), offset, width);

	if (record_is_on())
		record_read(of(bar), offset, width, value);
	return value;
}

void ddekit_bar_write(const struct ddekit_bar *bar, uint64_t offset, uint32_t width, uint64_t value)
{
	ring3_bar_write(of(bar), offset, width, value);
}
