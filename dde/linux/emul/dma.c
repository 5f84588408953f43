// SPDX-License-Identifier: GPL-2.0-only
/*
 * DMA: all memory of the kernel is the device's arena, so that mapping is adding. Nothing is looked
 * up, and no system call is made; what lies elsewhere, a driver's own static data perhaps, is
 * refused.
 *
 * For comparison, and where the device is recorded, which is told of pages that nobody else writes
 * to, each buffer can be copied instead (dde_options.dma_copies): mapped is a copy in pages of its
 * own, at the same offset in its first page, and what a driver says of when it and the device look
 * at it (dma_sync_...) is when bytes move. What is allocated for both at once is one memory in
 * either way.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>

#include "dde.h"
#include "ddekit/check.h"
#include "dde_options.h"

bool dde_two_memories;

/*
 * The driver says in memory what it wants, and looks behind a barrier what the device wants
 * (include/dde_barrier.h).
 */
void dde_barrier(void)
{
	ddekit_dma_sync(dde_device);
}

static dma_addr_t dma_of(phys_addr_t address)
{
	return ddekit_dma_arena(dde_device)->iova + address;
}

static bool in_arena(phys_addr_t address, size_t size)
{
	size_t len = ddekit_dma_arena(dde_device)->len;

	if (address < len && size <= len - address)
		return true;
	pr_err_once("dde: the driver maps %zu bytes at %pa, which the device does not reach: they "
		    "lie outside of its memory\n", size, &address);
	return false;
}

/* Whether a device that drives as many address lines reaches all of the arena. */
static bool reaches(u64 mask)
{
	const struct ddekit_arena *arena = ddekit_dma_arena(dde_device);

	return arena->iova + arena->len - 1 <= mask;
}

static bool to_device(enum dma_data_direction dir)
{
	return dir == DMA_TO_DEVICE || dir == DMA_BIDIRECTIONAL;
}

static bool from_device(enum dma_data_direction dir)
{
	return dir == DMA_FROM_DEVICE || dir == DMA_BIDIRECTIONAL;
}

/* The pages of a copy. Their first one knows what it is a copy of: private has its address. */
static struct page *copy_of(dma_addr_t address)
{
	return compound_head(phys_to_page(address - ddekit_dma_arena(dde_device)->iova));
}

/* What is copied lies as far in the copy as the original does in its page. */
static void *original_of(struct page *copy, dma_addr_t address)
{
	return (void *)copy->private +
	       (address - dma_of(page_to_phys(copy)) - offset_in_page(copy->private));
}

static void *bytes_at(dma_addr_t address)
{
	return __va(address - ddekit_dma_arena(dde_device)->iova);
}

static dma_addr_t map_copy(phys_addr_t address, size_t size, enum dma_data_direction dir,
			   bool synced)
{
	unsigned int offset = offset_in_page(address);
	unsigned int order = get_order(offset + size);
	/* What was there before is nothing that can be repeated. */
	struct page *copy = alloc_pages(GFP_ATOMIC | __GFP_COMP |
					(dde_options.journaled ? __GFP_ZERO : 0), order);

	if (!copy)
		return DMA_MAPPING_ERROR;
	ddekit_dma_share(dde_device, page_address(copy), PAGE_SIZE << order);
	copy->private = (unsigned long)__va(address);
	if (synced && to_device(dir))
		memcpy(page_address(copy) + offset, __va(address), size);
	return dma_of(page_to_phys(copy)) + offset;
}

static void unmap_copy(dma_addr_t address, size_t size, enum dma_data_direction dir, bool synced)
{
	struct page *copy = copy_of(address);

	if (synced && from_device(dir))
		memcpy(original_of(copy, address), bytes_at(address), size);
	ddekit_dma_unshare(dde_device, page_address(copy));
	__free_pages(copy, compound_order(copy));
}

static dma_addr_t map(phys_addr_t address, size_t size, enum dma_data_direction dir,
		      unsigned long attrs)
{
	if (!in_arena(address, size))
		return DMA_MAPPING_ERROR;
	if (dde_options.dma_copies)
		return map_copy(address, size, dir, !(attrs & DMA_ATTR_SKIP_CPU_SYNC));
	if (dir != DMA_TO_DEVICE)
		ddekit_check_device_writes(phys_to_virt(address), size);
	return dma_of(address);
}

static void unmap(dma_addr_t address, size_t size, enum dma_data_direction dir, unsigned long attrs)
{
	if (dde_options.dma_copies)
		unmap_copy(address, size, dir, !(attrs & DMA_ATTR_SKIP_CPU_SYNC));
	else if (DDEKIT_CHECKED && dir != DMA_TO_DEVICE)
		ddekit_check_device_done(bytes_at(address));
}

dma_addr_t dma_map_page_attrs(struct device *dev, struct page *page, size_t offset, size_t size,
			      enum dma_data_direction dir, unsigned long attrs)
{
	return map(page_to_phys(page) + offset, size, dir, attrs);
}

void dma_unmap_page_attrs(struct device *dev, dma_addr_t address, size_t size,
			  enum dma_data_direction dir, unsigned long attrs)
{
	unmap(address, size, dir, attrs);
}

#if DDE_LINUX_7
dma_addr_t dma_map_phys(struct device *dev, phys_addr_t address, size_t size,
			enum dma_data_direction dir, unsigned long attrs)
{
	return map(address, size, dir, attrs);
}

void dma_unmap_phys(struct device *dev, dma_addr_t address, size_t size,
		    enum dma_data_direction dir, unsigned long attrs)
{
	unmap(address, size, dir, attrs);
}

/* Where buffers are copied, what the device has written comes with that. */
bool dma_need_unmap(struct device *dev)
{
	return true;
}
#endif

unsigned int dma_map_sg_attrs(struct device *dev, struct scatterlist *list, int count,
			      enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i) {
		piece->dma_address = map(sg_phys(piece), piece->length, dir, attrs);
		if (piece->dma_address == DMA_MAPPING_ERROR) {
			dma_unmap_sg_attrs(dev, list, i, dir, attrs | DMA_ATTR_SKIP_CPU_SYNC);
			return 0;
		}
		sg_dma_len(piece) = piece->length;
	}
	return count;
}

void dma_unmap_sg_attrs(struct device *dev, struct scatterlist *list, int count,
			enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i)
		unmap(piece->dma_address, piece->length, dir, attrs);
}

void *dma_alloc_attrs(struct device *dev, size_t size, dma_addr_t *handle, gfp_t gfp,
		      unsigned long attrs)
{
	void *memory = alloc_pages_exact(size, gfp | __GFP_ZERO);

	if (memory) {
		*handle = dma_of(__pa(memory));
		ddekit_dma_share(dde_device, memory, PAGE_ALIGN(size));
		ddekit_check_device_writes(memory, size);
	}
	return memory;
}

void dma_free_attrs(struct device *dev, size_t size, void *memory, dma_addr_t handle,
		    unsigned long attrs)
{
	ddekit_check_device_done(memory);
	ddekit_dma_unshare(dde_device, memory);
	free_pages_exact(memory, size);
}

int dma_set_mask(struct device *dev, u64 mask)
{
	if (!reaches(mask)) {
		pr_err("dde: the device reaches addresses up to %#llx, and its memory lies beyond: "
		       "open it with below=\n", mask);
		return -EIO;
	}
	if (dev->dma_mask)
		*dev->dma_mask = mask;
	/* Nobody is asked where nothing is copied. */
#if DDE_LINUX_7
	dev_assign_dma_skip_sync(dev, !dde_options.dma_copies);
#else
	dev->dma_skip_sync = !dde_options.dma_copies;
#endif
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

void __dma_sync_single_for_cpu(struct device *dev, dma_addr_t address, size_t size,
			       enum dma_data_direction dir)
{
	if (dde_options.dma_copies && from_device(dir))
		memcpy(original_of(copy_of(address), address), bytes_at(address), size);
}

void __dma_sync_single_for_device(struct device *dev, dma_addr_t address, size_t size,
				  enum dma_data_direction dir)
{
	if (dde_options.dma_copies && to_device(dir))
		memcpy(bytes_at(address), original_of(copy_of(address), address), size);
}

void __dma_sync_sg_for_cpu(struct device *dev, struct scatterlist *list, int count,
			   enum dma_data_direction dir)
{
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i)
		__dma_sync_single_for_cpu(dev, piece->dma_address, piece->length, dir);
}

void __dma_sync_sg_for_device(struct device *dev, struct scatterlist *list, int count,
			      enum dma_data_direction dir)
{
	struct scatterlist *piece;
	int i;

	for_each_sg(list, piece, count, i)
		__dma_sync_single_for_device(dev, piece->dma_address, piece->length, dir);
}

bool __dma_need_sync(struct device *dev, dma_addr_t address)
{
	return dde_options.dma_copies;
}

int dma_configure(struct device *dev)
{
	return 0;
}
