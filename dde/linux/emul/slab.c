// SPDX-License-Identifier: GPL-2.0-only
/*
 * Objects: free lists by size over pages. An object's cache is found by its page, so that kfree()
 * takes any of them.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "dde.h"
#include "ddekit/check.h"

/*
 * Under a checker of memory, an object is followed by bytes that nobody may touch, and a freed one
 * rests for a while before somebody has it again. How many bytes were asked for stands at the end
 * of its place, beside the link.
 */
#define GUARD 16u
#define RESTING 1024u

struct tail {
	size_t asked;
	void *next;
};

#define TAIL (DDEKIT_CHECKED ? GUARD + (unsigned int)sizeof(struct tail) : 0u)

struct kmem_cache {
	const char *name;
	/* Between objects, and of each. */
	unsigned int stride, size;
	void (*ctor)(void *object);
	/* Where a free object keeps the next one: behind it if its content counts. */
	unsigned int link;
	/* RCU's readers look at free objects. */
	bool read_free;
	void *free;
};

/* 8 bytes to 8 KiB. What is larger has pages of its own. */
#define CLASS_MIN 3
#define CLASS_MAX 13
#define BLOCK_ORDER 3
/* In page.private of the pages of caches: no pointer has it. */
#define LARGE 1ul

static struct kmem_cache classes[CLASS_MAX + 1];
kmem_buckets kmalloc_caches[NR_KMALLOC_TYPES];

static struct kmem_cache *class_of(size_t size)
{
	unsigned int class = size + TAIL <= 1 << CLASS_MIN ? CLASS_MIN : fls_long(size + TAIL - 1);

	if (class > CLASS_MAX)
		return NULL;
	if (!classes[class].size)
		classes[class] = (struct kmem_cache){
			.name = "kmalloc",
			.stride = 1 << class,
			.size = (1 << class) - TAIL,
			.link = DDEKIT_CHECKED ? (1 << class) - sizeof(void *) : 0,
		};
	return &classes[class];
}

struct kmem_cache *dde_slab_of(const void *object)
{
	struct page *page = virt_to_head_page(object);

	return page->private == LARGE ? NULL : (struct kmem_cache *)page->private;
}

static void **link_of(struct kmem_cache *cache, void *object)
{
	return object + cache->link;
}

static struct tail *tail_of(struct kmem_cache *cache, const void *object)
{
	return (struct tail *)(object + cache->stride) - 1;
}

static bool refill(struct kmem_cache *cache, gfp_t gfp)
{
	unsigned int order = max_t(unsigned int, BLOCK_ORDER, get_order(cache->stride));
	struct page *page = alloc_pages(gfp | __GFP_COMP, order);
	void *block;

	if (!page)
		return false;
	page->private = (unsigned long)cache;
	block = page_address(page);
	for (size_t at = 0; at + cache->stride <= PAGE_SIZE << order; at += cache->stride) {
		if (cache->ctor)
			cache->ctor(block + at);
		*link_of(cache, block + at) = cache->free;
		cache->free = block + at;
		if (DDEKIT_CHECKED && !cache->read_free)
			ddekit_check_close(block + at, cache->stride - sizeof(struct tail));
	}
	return true;
}

static void *alloc(struct kmem_cache *cache, size_t size, gfp_t gfp)
{
	void *object;

	if (!cache->free && !refill(cache, gfp & ~__GFP_ZERO))
		return NULL;
	object = cache->free;
	cache->free = *link_of(cache, object);
	if (DDEKIT_CHECKED) {
		tail_of(cache, object)->asked = size;
		if (!cache->read_free)
			ddekit_check_allocated(object, size, cache->ctor || gfp & __GFP_ZERO);
	}
	if (gfp & __GFP_ZERO)
		memset(object, 0, DDEKIT_CHECKED ? size : cache->size);
	return object;
}

static void *alloc_large(size_t size, gfp_t gfp)
{
	struct page *page = alloc_pages(gfp | __GFP_COMP, get_order(size));

	if (!page)
		return NULL;
	page->private = LARGE;
	return page_address(page);
}

static void *alloc_size(size_t size, gfp_t gfp)
{
	struct kmem_cache *cache;

	if (size == 0)
		return ZERO_SIZE_PTR;
	cache = class_of(size);
	return cache ? alloc(cache, size, gfp) : alloc_large(size, gfp);
}

static void put_back(struct kmem_cache *cache, void *object)
{
	*link_of(cache, object) = cache->free;
	cache->free = object;
}

/* Lets an object rest, and puts back the one that has rested longest. */
static void rest(struct kmem_cache *cache, void *object)
{
	static struct resting {
		struct kmem_cache *cache;
		void *object;
	} resting[RESTING];
	static unsigned int oldest;
	struct resting *place = &resting[oldest++ % RESTING];

	ddekit_check_freed(object, tail_of(cache, object)->asked);
	if (place->object)
		put_back(place->cache, place->object);
	*place = (struct resting){ .cache = cache, .object = object };
}

static void release(struct kmem_cache *cache, void *object)
{
	if (DDEKIT_CHECKED && !cache->read_free)
		rest(cache, object);
	else
		put_back(cache, object);
}

void *__kmalloc_noprof(size_t size, gfp_t gfp)
{
	return alloc_size(size, gfp);
}

void *__kmalloc_node_noprof(DECL_BUCKET_PARAMS(size, b), gfp_t gfp, int node)
{
	return alloc_size(size, gfp);
}

void *__kmalloc_node_track_caller_noprof(DECL_BUCKET_PARAMS(size, b), gfp_t gfp, int node,
					 unsigned long caller)
{
	return alloc_size(size, gfp);
}

void *__kmalloc_cache_noprof(struct kmem_cache *cache, gfp_t gfp, size_t size)
{
	return alloc_size(size, gfp);
}

void *__kmalloc_cache_node_noprof(struct kmem_cache *cache, gfp_t gfp, int node, size_t size)
{
	return alloc_size(size, gfp);
}

void *__kmalloc_large_noprof(size_t size, gfp_t gfp)
{
	return alloc_large(size, gfp);
}

void *__kmalloc_large_node_noprof(size_t size, gfp_t gfp, int node)
{
	return alloc_large(size, gfp);
}

void kfree(const void *object)
{
	struct kmem_cache *cache;

	if (ZERO_OR_NULL_PTR(object))
		return;
	cache = dde_slab_of(object);
	if (cache)
		release(cache, (void *)object);
	else
		__free_pages(virt_to_page(object), 0);
}

size_t __ksize(const void *object)
{
	struct kmem_cache *cache;

	if (ZERO_OR_NULL_PTR(object))
		return 0;
	cache = dde_slab_of(object);
	if (!cache)
		return page_size(virt_to_page(object));
	return DDEKIT_CHECKED ? tail_of(cache, object)->asked : cache->size;
}

size_t ksize(const void *object)
{
	return __ksize(object);
}

void kfree_sensitive(const void *object)
{
	if (object)
		memzero_explicit((void *)object, __ksize(object));
	kfree(object);
}

size_t kmalloc_size_roundup(size_t size)
{
	struct kmem_cache *cache = size ? class_of(size) : NULL;

	if (cache)
		return cache->size;
	return size ? PAGE_SIZE << get_order(size) : 0;
}

#if DDE_LINUX_7
void *krealloc_node_align_noprof(const void *object, size_t size, unsigned long align, gfp_t gfp,
				 int node)
{
#else
void *krealloc_noprof(const void *object, size_t size, gfp_t gfp)
{
#endif
	size_t had = __ksize(object);
	void *new;

	if (size == 0) {
		kfree(object);
		return ZERO_SIZE_PTR;
	}
	if (had >= size)
		return (void *)object;
	new = alloc_size(size, gfp);
	if (new && had) {
		memcpy(new, object, had);
		kfree(object);
	}
	return new;
}

#if DDE_LINUX_7
/* What mm/util.c and RCU have before: memory of either kind is one here. */
void *__kvmalloc_node_noprof(DECL_KMALLOC_PARAMS(size, b, token), unsigned long align, gfp_t gfp,
			     int node)
{
	return alloc_size(size, gfp);
}

void *kvrealloc_node_align_noprof(const void *object, DECL_TOKEN_PARAMS(size, token),
				  unsigned long align, gfp_t gfp, int node)
{
	return krealloc_node_align_noprof(object, size, align, gfp, node);
}

void kvfree(const void *object)
{
	kfree(object);
}

/* Of the object, only the head is known, which lies somewhere in it. */
static void free_later(struct rcu_head *head)
{
	struct kmem_cache *cache = dde_slab_of(head);
	void *block = page_address(virt_to_head_page(head));

	kfree(cache ? block + rounddown((unsigned long)((void *)head - block), cache->stride) :
	      block);
}

void kvfree_call_rcu(struct rcu_head *head, void *object)
{
	if (head) {
		call_rcu(head, free_later);
		return;
	}
	synchronize_rcu();
	kvfree(object);
}
#endif

struct kmem_cache *__kmem_cache_create_args(const char *name, unsigned int size,
					    struct kmem_cache_args *args, slab_flags_t flags)
{
	struct kmem_cache *cache = kzalloc(sizeof(*cache), GFP_KERNEL);
	unsigned int align = max_t(unsigned int, args->align, sizeof(void *));

	if (!cache)
		return NULL;
	if (flags & SLAB_HWCACHE_ALIGN)
		align = max_t(unsigned int, align, L1_CACHE_BYTES);
	cache->name = name;
	cache->size = size;
	cache->ctor = args->ctor;
	/*
	 * What a constructor has made, or RCU's readers still look at, stays as it is while the
	 * object is free.
	 */
	cache->link = args->ctor || flags & SLAB_TYPESAFE_BY_RCU ? ALIGN(size, sizeof(void *)) : 0;
	cache->stride = ALIGN(max_t(unsigned int, cache->link + sizeof(void *), size), align);
	cache->read_free = flags & SLAB_TYPESAFE_BY_RCU;
	if (DDEKIT_CHECKED) {
		cache->stride = ALIGN(ALIGN(size, (unsigned int)sizeof(void *)) + TAIL, align);
		cache->link = cache->stride - sizeof(void *);
	}
	return cache;
}

void kmem_cache_destroy(struct kmem_cache *cache)
{
	/* Its pages stay its own: nobody counts what is still used of it. */
}

int kmem_cache_shrink(struct kmem_cache *cache)
{
	return 0;
}

unsigned int kmem_cache_size(struct kmem_cache *cache)
{
	return cache->size;
}

void *kmem_cache_alloc_noprof(struct kmem_cache *cache, gfp_t gfp)
{
	return alloc(cache, cache->size, gfp);
}

void *kmem_cache_alloc_lru_noprof(struct kmem_cache *cache, struct list_lru *lru, gfp_t gfp)
{
	return alloc(cache, cache->size, gfp);
}

void *kmem_cache_alloc_node_noprof(struct kmem_cache *cache, gfp_t gfp, int node)
{
	return alloc(cache, cache->size, gfp);
}

void kmem_cache_free(struct kmem_cache *cache, void *object)
{
	if (object)
		release(cache, object);
}

static bool alloc_bulk(struct kmem_cache *cache, gfp_t gfp, size_t count, void **objects)
{
	for (size_t i = 0; i < count; i++) {
		objects[i] = alloc(cache, cache->size, gfp);
		if (!objects[i]) {
			kmem_cache_free_bulk(cache, i, objects);
			return false;
		}
	}
	return true;
}

#if DDE_LINUX_7
bool kmem_cache_alloc_bulk_noprof(struct kmem_cache *cache, gfp_t gfp, size_t count, void **objects)
{
	return alloc_bulk(cache, gfp, count, objects);
}

/* Objects that are set aside, so that who may not sleep later finds them. */
struct slab_sheaf {
	unsigned int count;
	void *objects[];
};

struct slab_sheaf *kmem_cache_prefill_sheaf(struct kmem_cache *cache, gfp_t gfp, unsigned int count)
{
	struct slab_sheaf *sheaf = kmalloc(struct_size(sheaf, objects, count), gfp);

	if (!sheaf)
		return NULL;
	sheaf->count = count;
	if (!alloc_bulk(cache, gfp, count, sheaf->objects)) {
		kfree(sheaf);
		return NULL;
	}
	return sheaf;
}

void kmem_cache_return_sheaf(struct kmem_cache *cache, gfp_t gfp, struct slab_sheaf *sheaf)
{
	kmem_cache_free_bulk(cache, sheaf->count, sheaf->objects);
	kfree(sheaf);
}

int kmem_cache_refill_sheaf(struct kmem_cache *cache, gfp_t gfp, struct slab_sheaf **sheaf,
			    unsigned int count)
{
	struct slab_sheaf *full;

	if ((*sheaf)->count >= count)
		return 0;
	full = kmem_cache_prefill_sheaf(cache, gfp, count);
	if (!full)
		return -ENOMEM;
	kmem_cache_return_sheaf(cache, gfp, *sheaf);
	*sheaf = full;
	return 0;
}

void *kmem_cache_alloc_from_sheaf_noprof(struct kmem_cache *cache, gfp_t gfp,
					 struct slab_sheaf *sheaf)
{
	void *object = sheaf->count ? sheaf->objects[--sheaf->count] : NULL;

	if (object && gfp & __GFP_ZERO)
		memset(object, 0, cache->size);
	return object;
}

unsigned int kmem_cache_sheaf_size(struct slab_sheaf *sheaf)
{
	return sheaf->count;
}
#else
int kmem_cache_alloc_bulk_noprof(struct kmem_cache *cache, gfp_t gfp, size_t count, void **objects)
{
	return alloc_bulk(cache, gfp, count, objects) ? count : 0;
}
#endif

void kmem_cache_free_bulk(struct kmem_cache *cache, size_t count, void **objects)
{
	for (size_t i = 0; i < count; i++)
		kfree(objects[i]);
}

bool slab_is_available(void)
{
	return true;
}

/* All memory lies in one piece, so that what asks for mapped pages gets pages. */
void *vmalloc_noprof(unsigned long size)
{
	return alloc_large(size, GFP_KERNEL);
}

void *vzalloc_noprof(unsigned long size)
{
	return alloc_large(size, GFP_KERNEL | __GFP_ZERO);
}

void *vmalloc_node_noprof(unsigned long size, int node)
{
	return vmalloc_noprof(size);
}

void *vzalloc_node_noprof(unsigned long size, int node)
{
	return vzalloc_noprof(size);
}

void *__vmalloc_noprof(unsigned long size, gfp_t gfp)
{
	return alloc_large(size, gfp);
}

void *__vmalloc_node_range_noprof(unsigned long size, unsigned long align, unsigned long start,
				  unsigned long end, gfp_t gfp, pgprot_t prot, unsigned long flags,
				  int node, const void *caller)
{
	return alloc_large(size, gfp);
}

void *__vmalloc_node_noprof(unsigned long size, unsigned long align, gfp_t gfp, int node,
			    const void *caller)
{
	return alloc_large(size, gfp);
}

void vfree(const void *address)
{
	kfree(address);
}

bool is_vmalloc_addr(const void *address)
{
	return false;
}

void vfree_atomic(const void *address)
{
	kfree(address);
}

/* One processor: what is each processor's is an object. */
void __percpu *pcpu_alloc_noprof(size_t size, size_t align, bool reserved, gfp_t gfp)
{
	return (void __percpu __force *)alloc_size(max(size, align), gfp | __GFP_ZERO);
}

void free_percpu(void __percpu *object)
{
	kfree((void __force *)object);
}
