// SPDX-License-Identifier: GPL-2.0-only
/*
 * DMA: all memory of the kernel is the device's arena, so that mapping is adding. Nothing is looked up, and no system call is made; what lies elsewhere, a
 * driver's own static data perhaps, is refused.
 */
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>

#include "dde.h"

static dma_addr_t dma_of(phys_addr_t address)
{
	return ddekit_dma_arena(dde_device)->iova + address;
}

static bool in_arena(phys_addr_t address, size_t size)
{
	size_t len = ddekit_dma_arena(dde_device)->len;

	if (address < len && size <= len - address)
		return true;
	pr_err_once("dde: the driver maps %zu bytes at %pa, which the device does not reach: they lie outside of its memory\n", size, &address);
	return false;
}

/* Whether a device that drives as many address lines reaches all of the arena. */
static bool reaches(u64 mask)
{
	const struct ddekit_arena *arena = ddekit_dma_arena(dde_device);

	return arena->iova + arena->len - 1 <= mask;
}

dma_addr_t dma_map_page_attrs(struct device *dev, struct page *page, size_t offset, size_t size, enum dma_data_direction dir,
			      unsigned long attrs)
{
	phys_addr_t address = page_to_phys(page) + offset;

	return in_arena(address, size) ? dma_of(address) : DMA_MAPPING_ERROR;
}

void dma_unmap_page_attrs(struct device *dev, dma_addr_t address, size_t size, enum dma_data_direction dir, unsigned long attrs)
{
}

unsigned int dma_map_sg_attrs(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
			      unsigned long attrs)
{
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i) {
		if (!in_arena(sg_phys(piece), piece->length))
			return 0;
		piece->dma_address = dma_of(sg_phys(piece));
		sg_dma_len(piece) = piece->length;
	}
	return count;
}

void dma_unmap_sg_attrs(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir,
			unsigned long attrs)
{
}

void *dma_alloc_attrs(struct device *dev, size_t size, dma_addr_t *handle, gfp_t gfp, unsigned long attrs)
{
	void *memory = alloc_pages_exact(size, gfp | __GFP_ZERO);

	if (memory)
		*handle = dma_of(__pa(memory));
	return memory;
}

void dma_free_attrs(struct device *dev, size_t size, void *memory, dma_addr_t handle, unsigned long attrs)
{
	free_pages_exact(memory, size);
}

int dma_set_mask(struct device *dev, u64 mask)
{
	if (!reaches(mask)) {
		pr_err("dde: the device reaches addresses up to %#llx, and its memory lies beyond: open it with below=\n", mask);
		return -EIO;
	}
	if (dev->dma_mask)
		*dev->dma_mask = mask;
	return 0;
}

int dma_set_coherent_mask(struct device *dev, u64 mask)
{
	if (!reaches(mask))
		return -EIO;
	dev->coherent_dma_mask = mask;
	return 0;
}

u64 dma_get_required_mask(struct device *dev)
{
	return DMA_BIT_MASK(64);
}

size_t dma_max_mapping_size(struct device *dev)
{
	return SIZE_MAX;
}

size_t dma_opt_mapping_size(struct device *dev)
{
	return SIZE_MAX;
}

bool dma_addressing_limited(struct device *dev)
{
	return false;
}

unsigned long dma_get_merge_boundary(struct device *dev)
{
	return 0;
}

#ifdef CONFIG_DMA_NEED_SYNC
void __dma_sync_single_for_cpu(struct device *dev, dma_addr_t address, size_t size, enum dma_data_direction dir)
{
}

void __dma_sync_single_for_device(struct device *dev, dma_addr_t address, size_t size, enum dma_data_direction dir)
{
}

void __dma_sync_sg_for_cpu(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir)
{
}

void __dma_sync_sg_for_device(struct device *dev, struct scatterlist *list, int count, enum dma_data_direction dir)
{
}

bool __dma_need_sync(struct device *dev, dma_addr_t address)
{
	return false;
}
#endif

int dma_configure(struct device *dev)
{
	return 0;
}
