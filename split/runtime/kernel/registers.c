// SPDX-License-Identifier: GPL-2.0
/*
 * Registers: ports and mappings that the kernel half has allowed, reached by calls that are checked
 * or, where the plan says so, by loads and stores of the user half.
 *
 * # Windows
 * A window is a mapping's pages in the user half: whole pages of a BAR, and only while the driver
 * has them mapped. They are found when they are touched, and taken away when the mapping goes; who
 * touches them afterwards gets SIGBUS.
 */
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/rwsem.h>

#include "runtime.h"

bool split_is_register_call(u32 function)
{
	return function >= SPLIT_CALL_PORT_READ && function <= SPLIT_CALL_WINDOW;
}

static bool allowed(struct split_host *host, bool port, unsigned long start, unsigned long size)
{
	unsigned int i, n = smp_load_acquire(&host->nranges); /* pairs with allow() */

	for (i = 0; i < n; i++) {
		const struct split_range *range = &host->ranges[i];

		if (range->port == port && start >= range->start && size <= range->size &&
		    start - range->start <= range->size - size)
			return true;
	}
	return false;
}

/*
 * Read: registers are reached, and stay mapped. Written: a mapping is about to go, and nobody is in
 * it.
 */
static DECLARE_RWSEM(registers);

/* The mapping that begins there; a place that none has any more is one of no size, at 0. */
static struct split_range *mapping(struct split_host *host, unsigned long start)
{
	unsigned int i, n = smp_load_acquire(&host->nranges); /* pairs with allow() */

	for (i = 0; i < n; i++)
		if (!host->ranges[i].port && READ_ONCE(host->ranges[i].start) == start)
			return &host->ranges[i];
	return NULL;
}

static void allow(struct split_host *host, bool port, unsigned long start, unsigned long size,
		  phys_addr_t bus)
{
	mutex_lock(&host->lock);
	if (size && !allowed(host, port, start, size)) {
		struct split_range *free = port ? NULL : mapping(host, 0);
		u32 window = host->maps && bus && PAGE_ALIGNED(bus | size) &&
			     size <= SPLIT_WINDOW_MAX ? ++host->windows : 0;

		if (free) {
			free->size = size;
			free->bus = bus;
			free->window = window;
			smp_store_release(&free->start, start);
		} else if (host->nranges < SPLIT_RANGES) {
			host->ranges[host->nranges] =
				(struct split_range){ start, size, bus, window, port };
			/* Who reads the number without the lock finds the whole range. */
			smp_store_release(&host->nranges, host->nranges + 1);
		} else {
			pr_warn("%s: more than %d ranges of registers: the user half cannot use "
				"the last\n", host->driver->name, SPLIT_RANGES);
		}
	}
	mutex_unlock(&host->lock);
}

void split_allow_ports(struct split_host *host, unsigned long start, unsigned long size)
{
	if (host)
		allow(host, true, start, size, 0);
}
EXPORT_SYMBOL_GPL(split_allow_ports);

void split_allow_io(struct split_host *host, void __iomem *address, unsigned long size,
		    phys_addr_t bus)
{
	if (host && address)
		allow(host, false, (unsigned long)address, size, bus);
}
EXPORT_SYMBOL_GPL(split_allow_io);

/*
 * All windows of a host; those that are still good are found anew. With host->lock held, under
 * which its file stays.
 */
void split_close_windows(struct split_host *host)
{
	if (host->windows && host->file)
		unmap_mapping_range(host->file->f_mapping, 0, 0, 1);
}

void split_deny_io(struct split_host *host, const void __iomem *address)
{
	struct split_range *found;

	if (!host || !address)
		return;
	down_write(&registers);
	mutex_lock(&host->lock);
	found = mapping(host, (unsigned long)address);
	if (found) {
		WRITE_ONCE(found->size, 0);
		WRITE_ONCE(found->start, 0);
		found->window = 0;
		split_close_windows(host);
	}
	mutex_unlock(&host->lock);
	up_write(&registers);
}
EXPORT_SYMBOL_GPL(split_deny_io);

bool split_is_mapped(struct split_host *host, const void __iomem *address)
{
	return host && address && mapping(host, (unsigned long)address);
}
EXPORT_SYMBOL_GPL(split_is_mapped);

static long port_access(struct split_host *host, struct split_call *call)
{
	unsigned long port = call->arguments[0], size = call->arguments[1];
	u32 value = call->arguments[2];
	bool write = call->function == SPLIT_CALL_PORT_WRITE;

	if ((size != 1 && size != 2 && size != 4) || !allowed(host, true, port, size))
		return -EACCES;
	if (write)
		size == 1 ? outb(value, port) : size == 2 ? outw(value, port) : outl(value, port);
	else
		call->result = size == 1 ? inb(port) : size == 2 ? inw(port) : inl(port);
	return 0;
}

static long io_access(struct split_frame *frame, struct split_call *call)
{
	unsigned long size = call->arguments[1];
	u64 value = call->arguments[2];
	bool write = call->function == SPLIT_CALL_IO_WRITE;
	void *found;
	void __iomem *at;
	/* The handle is that of the mapping's begin; how long it is, only `allowed` knows. */
	long error = split_frame_resolve(frame, call->arguments[0] &
					 ~((1UL << SPLIT_OFFSET_BITS) - 1), NULL, &found);

	if (error)
		return error;
	at = (void __iomem *)found + SPLIT_OFFSET(call->arguments[0]);
	if ((size != 1 && size != 2 && size != 4) || (unsigned long)at % size)
		return -EACCES;
	down_read(&registers);
	if (!allowed(frame->host, false, (unsigned long)at, size))
		error = -EACCES;
	else if (write) /* pci_iomap maps ports, too */
		size == 1 ? iowrite8(value, at) : size == 2 ? iowrite16(value, at) :
			iowrite32(value, at);
	else
		call->result = size == 1 ? ioread8(at) : size == 2 ? ioread16(at) : ioread32(at);
	up_read(&registers);
	return error;
}

/* Where the user half is to map the registers of a handle from. */
static long window_call(struct split_frame *frame, struct split_call *call)
{
	struct split_host *host = frame->host;
	struct split_range *range;
	void *found;
	long error = split_frame_resolve(frame, call->arguments[0], NULL, &found);

	if (error || !found)
		return error ?: -EINVAL;
	mutex_lock(&host->lock);
	range = mapping(host, (unsigned long)found);
	if (range && range->window) {
		call->result = (s64)range->window << SPLIT_WINDOW_BITS;
		call->arguments[1] = range->size;
	} else {
		error = -EOPNOTSUPP;
	}
	mutex_unlock(&host->lock);
	return error;
}

static vm_fault_t window_fault(struct vm_fault *fault)
{
	struct split_host *host = fault->vma->vm_file->private_data;
	unsigned long window = fault->pgoff >> (SPLIT_WINDOW_BITS - PAGE_SHIFT);
	unsigned long at = fault->pgoff << PAGE_SHIFT & (SPLIT_WINDOW_MAX - 1);
	vm_fault_t result = VM_FAULT_SIGBUS;
	unsigned int i;

	mutex_lock(&host->lock);
	for (i = 0; window && !host->gone && i < host->nranges; i++)
		if (host->ranges[i].window == window && at < host->ranges[i].size)
			result = vmf_insert_pfn(fault->vma, fault->address,
						PHYS_PFN(host->ranges[i].bus + at));
	mutex_unlock(&host->lock);
	return result;
}

static const struct vm_operations_struct window_operations = { .fault = window_fault };

/* It is not for children, and nothing of it can be run. */
int split_map_window(struct file *file, struct vm_area_struct *vma)
{
	struct split_host *host = smp_load_acquire(&file->private_data);

	if (!host || !host->maps)
		return -ENODEV;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_flags & VM_EXEC)
		return -EINVAL;
	vm_flags_mod(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY,
		     VM_MAYEXEC);
	vma->vm_page_prot = pgprot_decrypted(pgprot_noncached(vma->vm_page_prot));
	vma->vm_ops = &window_operations;
	return 0;
}

/* With frame->lock held; the frame is running. */
long split_register_call(struct split_frame *frame, struct split_call *call)
{
	if (call->function == SPLIT_CALL_WINDOW)
		return window_call(frame, call);
	return call->function < SPLIT_CALL_IO_READ ? port_access(frame->host, call) :
	       io_access(frame, call);
}
