// SPDX-License-Identifier: GPL-2.0
/* Memory that the user half asks for, and strings that it hands to functions which keep them. */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "runtime.h"

struct split_stored_text {
	struct list_head link;
	char text[];
};

/* Zeroed memory of the kernel, known by its address. */
void *split_allocate(struct split_frame *frame, size_t size)
{
	struct split_host *host = frame->host;
	struct split_allocation *allocation;
	int error;

	if (!size || size > SPLIT_MESSAGE_MAX)
		return ERR_PTR(-EINVAL);
	allocation = kzalloc(sizeof(*allocation), GFP_KERNEL);
	if (!allocation)
		return ERR_PTR(-ENOMEM);
	/* Zeroed to its end, for a type may have padding that the tables do not name. */
	allocation->address = kzalloc(size, GFP_KERNEL | __GFP_NOWARN);
	allocation->size = size;
	xa_lock_irq(&host->allocations);
	host->memory += size;
	error = !allocation->address || host->memory > SPLIT_MEMORY ? -ENOMEM :
		xa_err(__xa_store(&host->allocations, (unsigned long)allocation->address,
				  allocation, GFP_KERNEL));
	if (error)
		host->memory -= size;
	xa_unlock_irq(&host->allocations);
	if (!error)
		return allocation->address;
	kfree(allocation->address);
	kfree(allocation);
	return ERR_PTR(error);
}

struct split_allocation *split_allocation_get(struct split_host *host, void *address)
{
	struct split_allocation *allocation;
	unsigned long flags;

	xa_lock_irqsave(&host->allocations, flags);
	allocation = xa_load(&host->allocations, (unsigned long)address);
	if (allocation)
		allocation->frames++;
	xa_unlock_irqrestore(&host->allocations, flags);
	return allocation;
}

static void end_allocation(struct split_host *host, struct split_allocation *allocation)
{
	host->memory -= allocation->size;
	kfree(allocation->address);
	kfree(allocation);
}

void split_allocation_put(struct split_host *host, struct split_allocation *allocation)
{
	unsigned long flags;

	xa_lock_irqsave(&host->allocations, flags);
	if (--allocation->frames == 0 && allocation->freed)
		end_allocation(host, allocation);
	xa_unlock_irqrestore(&host->allocations, flags);
}

/* With the lock of host->allocations. */
static void let_go(struct split_host *host, struct split_allocation *allocation)
{
	__xa_erase(&host->allocations, (unsigned long)allocation->address);
	if (allocation->frames)
		allocation->freed = true;
	else
		end_allocation(host, allocation);
}

static bool free_allocation(struct split_host *host, const void *address)
{
	struct split_allocation *allocation;
	unsigned long flags;

	xa_lock_irqsave(&host->allocations, flags);
	allocation = xa_load(&host->allocations, (unsigned long)address);
	if (allocation)
		let_go(host, allocation);
	xa_unlock_irqrestore(&host->allocations, flags);
	return allocation;
}

/*
 * The kernel half is given its address, and may go by it from here on: where it puts it nobody
 * sees. Not of what is freed.
 */
bool split_allocation_keep(struct split_host *host, struct split_allocation *allocation)
{
	unsigned long flags;
	bool there;

	xa_lock_irqsave(&host->allocations, flags);
	there = !allocation->freed;
	allocation->kept = true;
	xa_unlock_irqrestore(&host->allocations, flags);
	return there;
}

/*
 * The user half frees: once, and what the kernel half was given stays until that frees it, or goes.
 * With a frame's reference.
 */
static int free_own(struct split_host *host, struct split_allocation *allocation)
{
	unsigned long flags;
	bool there;

	xa_lock_irqsave(&host->allocations, flags);
	there = !allocation->freed && !allocation->let_go;
	if (there && allocation->kept)
		allocation->let_go = true;
	else if (there)
		let_go(host, allocation);
	xa_unlock_irqrestore(&host->allocations, flags);
	return there ? 0 : -EBADF;
}

/* Only what a user half has allocated can be freed by one. */
int split_frame_free(struct split_frame *frame, u64 handle)
{
	struct split_object *object;
	void *address;
	int error = split_frame_resolve(frame, handle, NULL, &address);

	if (error || !address)
		return error;
	object = &frame->objects[SPLIT_INDEX(handle)];
	if (SPLIT_GENERATION(handle) == SPLIT_SYMBOLS || SPLIT_OFFSET(handle) ||
	    !object->allocation)
		return -EPERM;
	error = free_own(frame->host, object->allocation);
	if (!error)
		object->gone = true;
	return error;
}

/* In any context, as kfree: what the driver calls for that may hold a lock. */
void split_free(struct split_host *host, const void *address)
{
	if (!host || !free_allocation(host, address))
		kfree(address);
}
EXPORT_SYMBOL_GPL(split_free);

/*
 * A copy of a string of the user half. The kernel keeps names of interrupts and of regions, so it
 * stays as long as the host.
 */
char *split_text(struct split_host *host, const char __user *text)
{
	struct split_stored_text *stored;
	char *copy = strndup_user(text, PAGE_SIZE);
	size_t size;

	if (IS_ERR(copy))
		return copy;
	size = strlen(copy) + 1;
	mutex_lock(&host->lock);
	list_for_each_entry(stored, &host->texts, link)
		if (!strcmp(stored->text, copy))
			goto found;
	stored = host->text_bytes + size <= SPLIT_TEXTS ? kmalloc(struct_size(stored, text, size),
								  GFP_KERNEL) : NULL;
	if (stored) {
		memcpy(stored->text, copy, size);
		list_add(&stored->link, &host->texts);
		host->text_bytes += size;
	}
found:
	mutex_unlock(&host->lock);
	kfree(copy);
	return stored ? stored->text : ERR_PTR(-ENOMEM);
}

void split_memory_end(struct split_host *host)
{
	struct split_stored_text *text, *next;
	struct split_allocation *allocation;
	unsigned long index;

	xa_for_each(&host->allocations, index, allocation)
		end_allocation(host, allocation);
	xa_destroy(&host->allocations);
	list_for_each_entry_safe(text, next, &host->texts, link)
		kfree(text);
}
