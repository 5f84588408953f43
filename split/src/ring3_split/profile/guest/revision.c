// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Gives a PCI device another revision in the kernel's eyes, for drivers that go by it and an
// emulated device that has but one.
//
//     insmod revision.ko device=0000:01:00.0 revision=16

#include <linux/module.h>
#include <linux/pci.h>

static char *device = "";
module_param(device, charp, 0);
MODULE_PARM_DESC(device, "its address: DOMAIN:BUS:SLOT.FUNCTION");

static int revision;
module_param(revision, int, 0);
MODULE_PARM_DESC(revision, "the revision that drivers see from now on");

static int __init revision_init(void)
{
	unsigned int domain, bus, slot, function;
	struct pci_dev *found;

	if (sscanf(device, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	found = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!found)
		return -ENODEV;
	found->revision = revision;
	pci_dev_put(found);
	return 0;
}

static void __exit revision_exit(void)
{
}

module_init(revision_init);
module_exit(revision_exit);
MODULE_DESCRIPTION("another revision for a PCI device");
MODULE_LICENSE("Dual MIT/GPL");
