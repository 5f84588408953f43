// SPDX-License-Identifier: GPL-2.0-only
/*
 * Registers: a pointer that ioremap() gives is one to mapped registers, or a number that says which
 * base address register and where, for those that are reached by calls. Ports are small numbers.
 */
#include <linux/io.h>
#include <linux/pci.h>

#include "dde.h"

#define BARS 6
/* No address of a process has the second bit set and the first not. */
#define COOKIE (1ul << 62)
#define COOKIE_BAR 40
#define PORTS 0x10000ul

static bool is_cookie(const volatile void __iomem *address)
{
	return ((unsigned long)address >> 62) == 1;
}

/* The base address register that an address is of, and where in it; -1 if there is none. */
static int find(resource_size_t address, bool is_ports, u64 *offset)
{
	for (unsigned int i = 0; i < BARS; i++) {
		struct dde_window window = dde_pci_window(i);

		if (window.len && window.ports == is_ports && address >= window.start &&
		    address - window.start < window.len) {
			*offset = address - window.start;
			return i;
		}
	}
	return -1;
}

void __iomem *ioremap(phys_addr_t address, size_t size)
{
	struct ddekit_bar *bar;
	u64 offset, mapped;
	void *base;
	int index = find(address, false, &offset);

	if (index < 0 || size > roundup_pow_of_two(dde_pci_window(index).len) - offset ||
	    ddekit_bar_open(dde_device, index, &bar) < 0)
		return NULL;
	base = ddekit_bar_map(bar, &mapped);
	if (base && offset + size <= mapped)
		return (void __iomem *)(base + offset);
	return (void __iomem *)(COOKIE | (unsigned long)index << COOKIE_BAR | offset);
}

void iounmap(volatile void __iomem *address)
{
}

/* lib/iomap.c tells ports from registers. */
void __iomem *__pci_ioport_map(struct pci_dev *dev, unsigned long port, unsigned int count)
{
	return ioport_map(port, count);
}

/*
 * The registers that an access by call is to. One that is not to the device's own is a bug of the
 * driver, or worse, and its end.
 */
static struct ddekit_bar *reach(const volatile void __iomem *address, unsigned int width,
				u64 *offset, const char *verb)
{
	unsigned long number = (unsigned long)address;
	bool is_port = number < PORTS;
	struct ddekit_bar *bar;
	int index = (number & ~COOKIE) >> COOKIE_BAR;

	*offset = number & ((1ul << COOKIE_BAR) - 1);
	if (is_port)
		index = find(number, true, offset);
	if (index < 0 || index >= BARS || *offset + width > dde_pci_window(index).len)
		ddekit_panic("dde: the driver %s %u bytes at %s %#lx, where its device has none",
			     verb, width, is_port ? "port" : "register",
			     is_port ? number : (unsigned long)*offset);
	return ddekit_bar_open(dde_device, index, &bar) < 0 ? NULL : bar;
}

static u64 call_read(const volatile void __iomem *address, unsigned int width)
{
	u64 offset;
	struct ddekit_bar *bar = reach(address, width, &offset, "reads");

	return bar ? ddekit_bar_read(bar, offset, width) : ~0ull;
}

static void call_write(volatile void __iomem *address, unsigned int width, u64 value)
{
	u64 offset;
	struct ddekit_bar *bar = reach(address, width, &offset, "writes");

	if (!bar)
		return;
	ddekit_bar_write(bar, offset, width, value);
	/*
	 * A write that is posted as a message arrives much later than one on a bus. Drivers
	 * acknowledge what came and then look into memory for more: between the look and the
	 * write's arrival more would come, and its interrupt be acknowledged, too. A read pushes it
	 * out; ports are not posted.
	 */
	if ((unsigned long)address >= PORTS)
		ddekit_cfg_read(dde_device, PCI_VENDOR_ID, 2);
}

static bool by_call(const volatile void __iomem *address)
{
	return is_cookie(address) || (unsigned long)address < PORTS;
}

/* A device that is made of bytes may interrupt whoever reads its registers, as a real one does. */
static void let_interrupt(void)
{
#ifdef DDEKIT_FUZZ
	if (system_state >= SYSTEM_SCHEDULING && !irqs_disabled() && !in_interrupt())
		ddekit_irq_deliver();
#endif
}

#define ACCESS(letter, type)                                                                    \
	type __raw_read##letter(const volatile void __iomem *address)                           \
	{                                                                                       \
		if (unlikely(by_call(address))) {                                               \
			type value = call_read(address, sizeof(type));                          \
											\
			let_interrupt();                                                        \
			return value;                                                           \
		}                                                                               \
		return *(const volatile type __force *)address;                                 \
	}                                                                                       \
	void __raw_write##letter(type value, volatile void __iomem *address)                    \
	{                                                                                       \
		if (unlikely(by_call(address)))                                                 \
			call_write(address, sizeof(type), value);                               \
		else                                                                            \
			*(volatile type __force *)address = value;                              \
	}
ACCESS(b, u8)
ACCESS(w, u16)
ACCESS(l, u32)
ACCESS(q, u64)

void memset_io(volatile void __iomem *address, int value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		__raw_writeb(value, address + i);
}

void memcpy_fromio(void *bytes, const volatile void __iomem *address, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((u8 *)bytes)[i] = __raw_readb(address + i);
}

void memcpy_toio(volatile void __iomem *address, const void *bytes, size_t size)
{
	for (size_t i = 0; i < size; i++)
		__raw_writeb(((const u8 *)bytes)[i], address + i);
}
