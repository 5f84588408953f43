// SPDX-License-Identifier: GPL-2.0-only
/* What drivers of disks ask of DMA beside what all do. */
#include <linux/dma-mapping.h>
#include <linux/scatterlist.h>

int dma_map_sgtable(struct device *dev, struct sg_table *table, enum dma_data_direction dir,
		    unsigned long attrs)
{
	int count = dma_map_sg_attrs(dev, table->sgl, table->orig_nents, dir, attrs);

	if (count == 0)
		return -EIO;
	table->nents = count;
	return 0;
}

/* There is one device: nobody else's memory is a peer's. */
bool dma_pci_p2pdma_supported(struct device *dev)
{
	return false;
}

/* Memory that goes when its device's driver does. */
struct managed {
	void *memory;
	size_t size;
	dma_addr_t handle;
};

static void release(struct device *dev, void *resource)
{
	struct managed *managed = resource;

	dma_free_attrs(dev, managed->size, managed->memory, managed->handle, 0);
}

static int is(struct device *dev, void *resource, void *memory)
{
	return ((struct managed *)resource)->memory == memory;
}

void *dmam_alloc_attrs(struct device *dev, size_t size, dma_addr_t *handle, gfp_t gfp,
		       unsigned long attrs)
{
	struct managed *managed = devres_alloc(release, sizeof(*managed), gfp);

	if (!managed)
		return NULL;
	managed->size = size;
	managed->memory = dma_alloc_attrs(dev, size, handle, gfp, attrs);
	if (!managed->memory) {
		devres_free(managed);
		return NULL;
	}
	managed->handle = *handle;
	devres_add(dev, managed);
	return managed->memory;
}

void dmam_free_coherent(struct device *dev, size_t size, void *memory, dma_addr_t handle)
{
	devres_release(dev, release, is, memory);
}
