// SPDX-License-Identifier: GPL-2.0-only
/*
 * A bus with one device: the kernel's own code finds it, sizes and places its base address
 * registers and enables it, in a configuration space whose registers of that kind exist here alone.
 * What lies behind them belongs to the device layer, and so do COMMAND's decoding bits.
 */
#include <linux/init.h>
#include <linux/pci.h>

#include "dde.h"

#define SLOT PCI_DEVFN(1, 0)
#define COMMAND_OWNED \
	(PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE)
#define BARS 6

/* Where the kernel may place registers: nothing of the machine is meant by these addresses. */
static struct resource memory = { .name = "ring3 memory", .start = 0xc0000000, .end = 0xdfffffff,
				  .flags = IORESOURCE_MEM };
static struct resource ports = { .name = "ring3 ports", .start = 0x100, .end = 0xffff,
				 .flags = IORESOURCE_IO };
static struct resource numbers = { .name = "ring3 bus", .start = 0, .end = 0,
				   .flags = IORESOURCE_BUS };

static struct bar {
	u32 value;
	u32 mask;
	u32 flags;
	u64 len;
	/* Where it lies whatever is written; 0 if that is what is written. */
	u64 fixed;
} bars[BARS];
static u16 command;

struct dde_window dde_pci_window(unsigned int index)
{
	struct bar *bar = &bars[index];
	bool is_ports = bar->flags & PCI_BASE_ADDRESS_SPACE_IO;
	u64 start = bar->value & (is_ports ? PCI_BASE_ADDRESS_IO_MASK : PCI_BASE_ADDRESS_MEM_MASK);

	if (bar->fixed)
		return (struct dde_window){ .start = bar->fixed, .len = bar->len, .ports = true };
	if (bar->flags & PCI_BASE_ADDRESS_MEM_TYPE_64 && !is_ports && index + 1 < BARS)
		start |= (u64)bars[index + 1].value << 32;
	return (struct dde_window){ .start = start, .len = bar->len, .ports = is_ports };
}

/*
 * A channel of IDE in compatibility mode answers at the ports of the first PCs, which the kernel
 * knows; its own registers say nothing. The device layer shows the ports in their place, and has
 * all four of each control block. [PCI-IDE 2.1]
 */
static bool is_compatible(unsigned int index)
{
	u32 class = ddekit_cfg_read(dde_device, PCI_CLASS_REVISION, 4) >> 8;

	return index < 4 && class >> 8 == PCI_CLASS_STORAGE_IDE && !(class & (index < 2 ? 1 : 4));
}

static void learn(void)
{
	static const u16 compatible[] = { 0x1f0, 0x3f4, 0x170, 0x374 };

	for (unsigned int i = 0; i < BARS; i++) {
		struct ddekit_bar_info info;

		if (ddekit_bar_info(dde_device, i, &info) < 0)
			continue;
		if (info.ports && is_compatible(i)) {
			bars[i] = (struct bar){ .len = info.len, .fixed = compatible[i] };
			continue;
		}
		bars[i].flags = ddekit_cfg_read(dde_device, PCI_BASE_ADDRESS_0 + 4 * i,
						4) & (info.ports ? 3 : 15);
		bars[i].len = info.len;
		bars[i].mask = (u32)~(roundup_pow_of_two(info.len) - 1);
		if (!info.ports && bars[i].flags & PCI_BASE_ADDRESS_MEM_TYPE_64 && i + 1 < BARS) {
			bars[i + 1].mask = ~0u;
			i++;
		}
	}
}

static u32 read_word(int where)
{
	u32 value;

	if (where >= PCI_BASE_ADDRESS_0 && where < PCI_BASE_ADDRESS_0 + 4 * BARS) {
		struct bar *bar = &bars[(where - PCI_BASE_ADDRESS_0) / 4];

		return (bar->value & bar->mask) | bar->flags;
	}
	if (where == PCI_ROM_ADDRESS)
		return 0;
	value = ddekit_cfg_read(dde_device, where, 4);
	if (where == PCI_COMMAND)
		value = (value & ~COMMAND_OWNED) | (command & COMMAND_OWNED);
	return value;
}

static int config_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	if (bus->number != 0 || devfn != SLOT) {
		*value = ~0u;
		return PCIBIOS_DEVICE_NOT_FOUND;
	}
	*value = read_word(where & ~3) >> 8 * (where & 3);
	if (size < 4)
		*value &= (1u << 8 * size) - 1;
	return PCIBIOS_SUCCESSFUL;
}

static void write_command(u16 value)
{
	u16 real = ddekit_cfg_read(dde_device, PCI_COMMAND, 2);

	if ((value ^ command) & PCI_COMMAND_MASTER)
		ddekit_dev_bus_master(dde_device, value & PCI_COMMAND_MASTER);
	command = value;
	ddekit_cfg_write(dde_device, PCI_COMMAND, 2,
			 (value & ~COMMAND_OWNED) | (real & COMMAND_OWNED));
}

static int config_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	if (bus->number != 0 || devfn != SLOT)
		return PCIBIOS_DEVICE_NOT_FOUND;
	if (where >= PCI_BASE_ADDRESS_0 && where < PCI_BASE_ADDRESS_0 + 4 * BARS)
		bars[(where - PCI_BASE_ADDRESS_0) / 4].value = value;
	else if (where == PCI_COMMAND)
		write_command(value);
	else if (where != PCI_ROM_ADDRESS && ddekit_cfg_write(dde_device, where, size, value) < 0)
		pr_debug("dde: configuration space at %#x is not the driver's\n", where);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops operations = { .read = config_read, .write = config_write };

static int map_irq(const struct pci_dev *dev, u8 slot, u8 pin)
{
	return pin ? DDE_IRQ_PIN : 0;
}

/* What lies where it must is taken before the kernel places the rest. */
static void claim_fixed(struct pci_dev *dev)
{
	for (unsigned int i = 0; i < PCI_STD_NUM_BARS; i++)
		if (dev->resource[i].flags & IORESOURCE_PCI_FIXED)
			pci_claim_resource(dev, i);
}

static int __init dde_pci_init(void)
{
	struct pci_host_bridge *bridge = pci_alloc_host_bridge(0);
	struct pci_dev *dev;
	int result;

	if (!bridge)
		return -ENOMEM;
	learn();
	/*
	 * Which quirks find out in the kernel, of processors; drivers that write and invalidate
	 * want to know.
	 */
	pci_cache_line_size = L1_CACHE_BYTES / 4;
	pci_add_resource(&bridge->windows, &memory);
	pci_add_resource(&bridge->windows, &ports);
	pci_add_resource(&bridge->windows, &numbers);
	bridge->ops = &operations;
	bridge->map_irq = map_irq;
	result = pci_scan_root_bus_bridge(bridge);
	if (result < 0)
		return result;
	list_for_each_entry(dev, &bridge->bus->devices, bus_list)
		claim_fixed(dev);
	pci_assign_unassigned_bus_resources(bridge->bus);
	pci_bus_add_devices(bridge->bus);
	dev = pci_get_slot(bridge->bus, SLOT);
	if (!dev)
		ddekit_panic("dde: %s is not on its bus", ddekit_dev_name(dde_device));
	pci_dev_put(dev);
	return 0;
}
subsys_initcall_sync(dde_pci_init);

void *pci_root_bus_fwnode(struct pci_bus *bus)
{
	return NULL;
}

int pcibios_enable_device(struct pci_dev *dev, int mask)
{
	return pci_enable_resources(dev, mask);
}

/* Text for people, as much as there is room for. */
static struct text {
	char bytes[768];
	int len;
} text;

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	text.len += vscnprintf(text.bytes + text.len, sizeof(text.bytes) - text.len, format, args);
	va_end(args);
}

/* The functions that one driver takes, or that it takes this one and has not been able to. */
static int describe(struct device_driver *driver, void *data)
{
	const struct pci_driver *found = to_pci_driver(driver);
	const struct pci_device_id *id = found->id_table;
	struct pci_dev *dev = data;

	if (!id)
		return 0;
	if (pci_match_id(id, dev)) {
		say("; the driver %s takes it, and has failed: what it said is above",
		    driver->name);
		return 0;
	}
	say("; the driver %s takes", driver->name);
	for (; (id->vendor || id->class_mask) && text.len < (int)sizeof(text.bytes) - 24; id++) {
		if (id->class_mask)
			say(" class %06x", id->class);
		else
			say(" %04x:%04x", id->vendor, id->device);
	}
	if (id->vendor || id->class_mask)
		say(" and others");
	return 0;
}

const char *dde_pci_misfit(void)
{
	struct pci_dev *dev = pci_get_domain_bus_and_slot(0, 0, SLOT);

	if (!dev)
		return "the device is not on its bus";
	say("the driver has not taken the device, %04x:%04x", dev->vendor, dev->device);
	bus_for_each_drv(&pci_bus_type, NULL, dev, describe);
	pci_dev_put(dev);
	return text.bytes;
}
