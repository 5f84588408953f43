/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that the device reaches: one arena, mapped when the device was opened, in one piece here
 * and there. Where a byte lies for the device is one subtraction and one addition away from where
 * it lies here; nothing is mapped later.
 */
#ifndef DDEKIT_DMA_H
#define DDEKIT_DMA_H

#include <stddef.h>
#include <stdint.h>

#include "ddekit/device.h"

/**
 * struct ddekit_arena - the memory
 * @base: where it begins, at a multiple of 2 MiB from the device's view of 4 KiB here
 * @len: bytes
 * @iova: where it begins for the device
 */
struct ddekit_arena {
	unsigned char *base;
	size_t len;
	uint64_t iova;
};

/**
 * ddekit_dma_arena() - the arena of a device, all of it
 * @device: the device
 *
 * Return: the same each time, valid while the device is open.
 */
const struct ddekit_arena *ddekit_dma_arena(const struct ddekit_device *device);

/**
 * ddekit_dma_share() - say what of the arena the device reaches from now on, for a recording, which
 * has nothing else of it @device: the device @memory: the first byte, at the beginning of a page
 * @len: bytes, which are all zero as far as the driver has not written them since
 */
void ddekit_dma_share(const struct ddekit_device *device, const void *memory, size_t len);

/** ddekit_dma_unshare() - say that it does not reach what was shared from @memory on */
void ddekit_dma_unshare(const struct ddekit_device *device, const void *memory);

/**
 * ddekit_dma_sync() - a full barrier between the memory of the driver and that of a device that is
 * recorded or replayed, which are two; nothing for others, whose processor does it
 */
void ddekit_dma_sync(const struct ddekit_device *device);

/**
 * ddekit_dma_iova() - where the device finds the byte that lies at @address; UINT64_MAX if that is
 * not in the arena
 */
uint64_t ddekit_dma_iova(const struct ddekit_arena *arena, const void *address);

/**
 * ddekit_dma_address() - where the byte lies that the device finds at @iova; NULL if that is not in
 * the arena
 */
void *ddekit_dma_address(const struct ddekit_arena *arena, uint64_t iova);

#endif
