/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The one device of a driver's process: configuration space, registers, reset. */
#ifndef DDEKIT_DEVICE_H
#define DDEKIT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ddekit_device;
struct ddekit_bar;

/**
 * struct ddekit_device_options - what a driver needs of its device @arena: bytes of the memory that
 * the device reaches, all of which the driver has from ddekit_dma_arena() @below: they lie below
 * this device address; 0 for no limit @unprotected: the user has said that no IOMMU need stand
 * between the device and memory
 */
struct ddekit_device_options {
	size_t arena;
	uint64_t below;
	bool unprotected;
};

/**
 * struct ddekit_bar_info - what a base address register is
 * @len: bytes
 * @ports: ports, not memory
 */
struct ddekit_bar_info {
	uint64_t len;
	bool ports;
};

/**
 * ddekit_dev_open() - open the device that @uri names, as everywhere in ring3
 * @uri: vfio:0000:01:00.0, qtest:e1000e, ...
 * @options: what the driver needs
 * @device: where the handle is put
 *
 * Return: 0 or a negative errno; ddekit_error() says more.
 */
int ddekit_dev_open(const char *uri, const struct ddekit_device_options *options,
		    struct ddekit_device **device);

/**
 * ddekit_dev_close() - give the device up; its registers and interrupts end with it
 * @device: the device, or NULL
 */
void ddekit_dev_close(struct ddekit_device *device);

/**
 * ddekit_dev_journaled() - whether the device that is open is recorded (`record=FILE` behind its
 * name) or one of a recording (`replay:FILE`)
 *
 * What the driver is told of the time and of the world outside is in the recording then, too.
 */
bool ddekit_dev_journaled(void);

/**
 * ddekit_dev_verdict() - what a recording has found when its device was closed: it is not whole, or
 * the driver has left it; NULL if nothing
 */
const char *ddekit_dev_verdict(void);

/** ddekit_error() - what the last call that failed has to say; valid until the next one fails */
const char *ddekit_error(void);

/** ddekit_dev_name() - the name by which @device was opened */
const char *ddekit_dev_name(const struct ddekit_device *device);

/**
 * ddekit_cfg_read() - read configuration space
 * @device: the device
 * @offset: where
 * @width: 1, 2 or 4 bytes
 *
 * Return: what is there; all ones where there is nothing.
 */
uint32_t ddekit_cfg_read(const struct ddekit_device *device, uint32_t offset, uint32_t width);

/**
 * ddekit_cfg_write() - write configuration space
 * @device: the device
 * @offset: where
 * @width: 1, 2 or 4 bytes
 * @value: what
 *
 * Return: 0, or -EINVAL for what is not a driver's: base address registers, MSI, MSI-X, the bits of
 * COMMAND that decode and master the bus.
 */
int ddekit_cfg_write(const struct ddekit_device *device, uint32_t offset, uint32_t width,
		     uint32_t value);

/** ddekit_dev_bus_master() - allow or forbid @device to start transfers */
int ddekit_dev_bus_master(const struct ddekit_device *device, bool on);

/**
 * ddekit_dev_wanted_back() - call @function once, from the event loop, when the platform wants
 * @device back: it is to be closed soon
 *
 * Return: 0, or -ENOENT where nobody can know, or another negative errno.
 */
int ddekit_dev_wanted_back(struct ddekit_device *device, void (*function)(void *arg), void *arg);

/**
 * ddekit_dev_reset() - reset @device: 0, or -EOPNOTSUPP if it cannot be, whose transfers are
 * stopped then
 */
int ddekit_dev_reset(const struct ddekit_device *device);

/**
 * ddekit_bar_info() - what base address register @index (0 to 5) is
 *
 * Return: 0, or -ENOENT if it is absent.
 */
int ddekit_bar_info(const struct ddekit_device *device, unsigned int index,
		    struct ddekit_bar_info *info);

/**
 * ddekit_bar_open() - the range of base address register @index; each time the same handle, which
 * is the device's
 */
int ddekit_bar_open(struct ddekit_device *device, unsigned int index, struct ddekit_bar **bar);

/**
 * ddekit_bar_map() - where its first *@len bytes lie in this process; NULL where nothing is mapped
 */
void *ddekit_bar_map(const struct ddekit_bar *bar, uint64_t *len);

/**
 * ddekit_bar_read() - read @width (1, 2, 4, 8) bytes at @offset; all ones outside of the range and
 * of a device that is gone
 */
uint64_t ddekit_bar_read(const struct ddekit_bar *bar, uint64_t offset, uint32_t width);

/** ddekit_bar_write() - write @width (1, 2, 4, 8) bytes at @offset; nothing outside of the range */
void ddekit_bar_write(const struct ddekit_bar *bar, uint64_t offset, uint32_t width,
		      uint64_t value);

#endif
