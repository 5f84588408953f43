// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages: a buddy allocator over the device's arena. Its first byte is physical address 0, so that
 * the kernel's own arithmetic gives, from an address, the page and what the device is told.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/memblock.h>
#include <linux/page_ref.h>
#include <linux/pagemap.h>

#include "dde.h"
#include "ddekit/check.h"

/* Blocks of up to 32 MiB: rings, buckets and buffers of any driver. */
#define ORDERS 14

unsigned long uml_physmem;
struct page *mem_map;
unsigned long max_mapnr;
unsigned long max_low_pfn, min_low_pfn, max_pfn;
void *high_memory;
gfp_t gfp_allowed_mask = ~0;

static struct list_head free_blocks[ORDERS];
/* Of the first page of a block: its order, and whether it is free. */
static u8 *orders;
#define FREE 0x80

static struct page *take(unsigned int order)
{
	unsigned int from = order;
	struct page *page;

	while (from < ORDERS && list_empty(&free_blocks[from]))
		from++;
	if (from >= ORDERS)
		return NULL;
	page = list_first_entry(&free_blocks[from], struct page, lru);
	list_del(&page->lru);
	while (from > order) {
		struct page *upper = page + (1ul << --from);

		orders[page_to_pfn(upper)] = from | FREE;
		list_add(&upper->lru, &free_blocks[from]);
	}
	orders[page_to_pfn(page)] = order;
	return page;
}

static void give(struct page *page, unsigned int order)
{
	unsigned long pfn = page_to_pfn(page);

	while (order + 1 < ORDERS) {
		unsigned long buddy = pfn ^ (1ul << order);

		if (buddy + (1ul << order) > max_mapnr || orders[buddy] != (order | FREE))
			break;
		list_del(&pfn_to_page(buddy)->lru);
		orders[buddy] = 0;
		pfn &= ~(1ul << order);
		order++;
	}
	orders[pfn] = order | FREE;
	/*
	 * Under a checker, what was freed is used again as late as can be: who still uses it is
	 * found meanwhile.
	 */
	if (DDEKIT_CHECKED)
		list_add_tail(&pfn_to_page(pfn)->lru, &free_blocks[order]);
	else
		list_add(&pfn_to_page(pfn)->lru, &free_blocks[order]);
}

void dde_mm_init(void)
{
	const struct ddekit_arena *arena = ddekit_dma_arena(dde_device);
	unsigned long pages = arena->len >> PAGE_SHIFT;
	unsigned long map = PAGE_ALIGN(pages * (sizeof(struct page) + 1)) >> PAGE_SHIFT;
	unsigned long pfn;

	uml_physmem = (unsigned long)arena->base;
	max_mapnr = max_pfn = max_low_pfn = pages;
	high_memory = arena->base + arena->len;
	/*
	 * Page 0 stays unused: an address of 0 means none to many. What describes the pages comes
	 * next.
	 */
	mem_map = (struct page *)(arena->base + PAGE_SIZE);
	orders = (u8 *)(mem_map + pages);
	memset(mem_map, 0, map << PAGE_SHIFT);
	for (unsigned int order = 0; order < ORDERS; order++)
		INIT_LIST_HEAD(&free_blocks[order]);
	for (pfn = 0; pfn < pages; pfn++)
		atomic_set(&pfn_to_page(pfn)->_mapcount, -1);
	for (pfn = map + 1; pfn < pages; pfn++)
		give(pfn_to_page(pfn), 0);
	ddekit_check_close(page_address(pfn_to_page(map + 1)), (pages - map - 1) << PAGE_SHIFT);
}

/* A number, or one in a structure. */
static void clear_flags(struct page *page)
{
	memset(&page->flags, 0, sizeof(page->flags));
}

static void make_compound(struct page *page, unsigned int order)
{
	struct folio *folio = (struct folio *)page;

	if (order == 0)
		return;
	__SetPageHead(page);
	for (unsigned long i = 1; i < 1ul << order; i++)
#if DDE_LINUX_7
		set_compound_head(page + i, page, order);
#else
		set_compound_head(page + i, page);
#endif
	folio->_flags_1 = (folio->_flags_1 & ~0xfful) | order;
#if !DDE_LINUX_7
	folio->_folio_nr_pages = 1u << order;
#elif defined(NR_PAGES_IN_LARGE_FOLIO)
	folio->_nr_pages = 1u << order;
#endif
}

struct page *__alloc_pages_noprof(gfp_t gfp, unsigned int order, int nid, nodemask_t *mask)
{
	struct page *page = take(order);

	if (!page) {
		if (!(gfp & __GFP_NOWARN))
			pr_warn_once("dde: the arena has no %lu KiB in one piece: give the process "
				     "a larger --arena\n", PAGE_SIZE << order >> 10);
		return NULL;
	}
	for (unsigned long i = 0; i < 1ul << order; i++) {
		clear_flags(&page[i]);
		page[i].mapping = NULL;
		page[i].private = 0;
		clear_compound_head(&page[i]);
		set_page_count(&page[i], 0);
		atomic_set(&page[i]._mapcount, -1);
	}
	set_page_count(page, 1);
	ddekit_check_open(page_address(page), PAGE_SIZE << order, false);
	if (gfp & __GFP_COMP)
		make_compound(page, order);
	if (gfp & __GFP_ZERO)
		memset(page_address(page), 0, PAGE_SIZE << order);
	return page;
}

static void free_block(struct page *page)
{
	unsigned int order = orders[page_to_pfn(page)];

	if (order & FREE)
		ddekit_panic("dde: page %lu is freed twice", page_to_pfn(page));
	clear_flags(page);
	ddekit_check_returned(page_address(page), PAGE_SIZE << order);
	give(page, order);
}

void __free_pages(struct page *page, unsigned int order)
{
	if (put_page_testzero(page))
		free_block(page);
}

void free_pages(unsigned long addr, unsigned int order)
{
	if (addr)
		__free_pages(virt_to_page((void *)addr), order);
}

void __folio_put(struct folio *folio)
{
	free_block(&folio->page);
}

unsigned long get_free_pages_noprof(gfp_t gfp, unsigned int order)
{
	struct page *page = alloc_pages_noprof(gfp, order);

	return page ? (unsigned long)page_address(page) : 0;
}

unsigned long get_zeroed_page_noprof(gfp_t gfp)
{
	return get_free_pages_noprof(gfp | __GFP_ZERO, 0);
}

struct folio *__folio_alloc_noprof(gfp_t gfp, unsigned int order, int nid, nodemask_t *mask)
{
	return (struct folio *)__alloc_pages_noprof(gfp | __GFP_COMP, order, nid, mask);
}

#if DDE_LINUX_7
unsigned long alloc_pages_bulk_noprof(gfp_t gfp, int nid, nodemask_t *mask, int count,
				      struct page **array)
{
	struct list_head *list = NULL;
#else
unsigned long alloc_pages_bulk_noprof(gfp_t gfp, int nid, nodemask_t *mask, int count,
				      struct list_head *list, struct page **array)
{
#endif
	unsigned long got = 0;

	for (int i = 0; i < count; i++) {
		struct page *page;

		if (array && array[i]) {
			got++;
			continue;
		}
		page = alloc_pages_noprof(gfp, 0);
		if (!page)
			break;
		if (array)
			array[i] = page;
		else
			list_add(&page->lru, list);
		got++;
	}
	return got;
}

void *alloc_pages_exact_noprof(size_t size, gfp_t gfp)
{
	return (void *)get_free_pages_noprof(gfp, get_order(size));
}

void free_pages_exact(void *address, size_t size)
{
	free_pages((unsigned long)address, get_order(size));
}

/* Under a checker, who goes beyond his piece, or keeps it, touches nobody else's. */
static void *fragment_of_its_own(unsigned int size, gfp_t gfp)
{
	unsigned int order = get_order(size);
	void *piece = (void *)get_free_pages_noprof(gfp | __GFP_COMP, order);

	if (piece)
		ddekit_check_close(piece + size, (PAGE_SIZE << order) - size);
	return piece;
}

/*
 * Where the pages of a cache of fragments are: 7.x keeps what it knows of them in the low bits,
 * where an address of pages has none.
 */
#if DDE_LINUX_7
static void *pages_of(const struct page_frag_cache *cache)
{
	return (void *)cache->encoded_page;
}

static void set_pages(struct page_frag_cache *cache, void *pages)
{
	cache->encoded_page = (unsigned long)pages;
}
#else
static void *pages_of(const struct page_frag_cache *cache)
{
	return cache->va;
}

static void set_pages(struct page_frag_cache *cache, void *pages)
{
	cache->va = pages;
}
#endif

/* Pieces of a page, each of which holds it: networking's small buffers. */
void *__page_frag_alloc_align(struct page_frag_cache *cache, unsigned int size, gfp_t gfp,
			      unsigned int align_mask)
{
	const unsigned int room = PAGE_FRAG_CACHE_MAX_SIZE;
	void *pages = pages_of(cache);
	int offset;

	if (size > room)
		return NULL;
	if (DDEKIT_CHECKED)
		return fragment_of_its_own(size, gfp);
	offset = pages ? (int)((cache->offset - size) & align_mask) : -1;
	if (!pages || (int)cache->offset < (int)size || offset < 0) {
		if (pages)
			free_pages((unsigned long)pages, 0);
		pages = (void *)get_free_pages_noprof(gfp | __GFP_COMP, get_order(room));
		set_pages(cache, pages);
		if (!pages)
			return NULL;
		offset = (room - size) & align_mask;
	}
	cache->offset = offset;
	page_ref_inc(virt_to_page(pages));
	return pages + offset;
}

void __page_frag_cache_drain(struct page *page, unsigned int count)
{
	if (page_ref_sub_and_test(page, count))
		free_block(compound_head(page));
}

void page_frag_cache_drain(struct page_frag_cache *cache)
{
	free_pages((unsigned long)pages_of(cache), 0);
	set_pages(cache, NULL);
}

void page_frag_free(void *address)
{
	put_page(virt_to_head_page(address));
}

unsigned long nr_free_buffer_pages(void)
{
	return max_mapnr / 2;
}

void si_meminfo(struct sysinfo *info)
{
	*info = (struct sysinfo){ .totalram = max_mapnr, .freeram = max_mapnr / 2,
				  .mem_unit = PAGE_SIZE };
}
