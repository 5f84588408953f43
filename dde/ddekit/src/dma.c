/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/dma.h"

#include "device.h"

const struct ddekit_arena *ddekit_dma_arena(const struct ddekit_device *device)
{
	return &device->arena;
}

uint64_t ddekit_dma_iova(const struct ddekit_arena *arena, const void *address)
{
	const uintptr_t offset = (uintptr_t)address - (uintptr_t)arena->base;

	return offset < arena->len ? arena->iova + offset : UINT64_MAX;
}

void *ddekit_dma_address(const struct ddekit_arena *arena, uint64_t iova)
{
	const uint64_t offset = iova - arena->iova;

	return offset < arena->len ? arena->base + offset : NULL;
}
