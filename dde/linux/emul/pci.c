// SPDX-License-Identifier: GPL-2.0-only
/*
 * A bus with one device: the kernel's own code finds it, sizes and places its base address registers and enables it, in a configuration space whose
 * registers of that kind exist here alone. What lies behind them belongs to the device layer, and so do COMMAND's decoding bits.
 */
#include <linux/init.h>
#include <linux/pci.h>

#include "dde.h"

#define SLOT PCI_DEVFN(1, 0)
#define COMMAND_OWNED (PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE)
#define BARS 6

/* Where the kernel may place registers: nothing of the machine is meant by these addresses. */
static struct resource memory = { .name = "ring3 memory", .start = 0xc0000000, .end = 0xdfffffff, .flags = IORESOURCE_MEM };
static struct resource ports = { .name = "ring3 ports", .start = 0x1000, .end = 0xffff, .flags = IORESOURCE_IO };
static struct resource numbers = { .name = "ring3 bus", .start = 0, .end = 0, .flags = IORESOURCE_BUS };

static struct bar {
	u32 value;
	u32 mask;
	u32 flags;
	u64 len;
} bars[BARS];
static u16 command;

struct dde_window dde_pci_window(unsigned int index)
{
	struct bar *bar = &bars[index];
	bool is_ports = bar->flags & PCI_BASE_ADDRESS_SPACE_IO;
	u64 start = bar->value & (is_ports ? PCI_BASE_ADDRESS_IO_MASK : PCI_BASE_ADDRESS_MEM_MASK);

	if (bar->flags & PCI_BASE_ADDRESS_MEM_TYPE_64 && !is_ports && index + 1 < BARS)
		start |= (u64)bars[index + 1].value << 32;
	return (struct dde_window){ .start = start, .len = bar->len, .ports = is_ports };
}

static void learn(void)
{
	for (unsigned int i = 0; i < BARS; i++) {
		struct ddekit_bar_info info;

		if (ddekit_bar_info(dde_device, i, &info) < 0)
			continue;
		bars[i].flags = ddekit_cfg_read(dde_device, PCI_BASE_ADDRESS_0 + 4 * i, 4) & (info.ports ? 3 : 15);
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
	ddekit_cfg_write(dde_device, PCI_COMMAND, 2, (value & ~COMMAND_OWNED) | (real & COMMAND_OWNED));
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

static int __init dde_pci_init(void)
{
	struct pci_host_bridge *bridge = pci_alloc_host_bridge(0);
	struct pci_dev *dev;
	int result;

	if (!bridge)
		return -ENOMEM;
	learn();
	pci_add_resource(&bridge->windows, &memory);
	pci_add_resource(&bridge->windows, &ports);
	pci_add_resource(&bridge->windows, &numbers);
	bridge->ops = &operations;
	bridge->map_irq = map_irq;
	result = pci_scan_root_bus_bridge(bridge);
	if (result < 0)
		return result;
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
