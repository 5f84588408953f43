//! PCI functions as sysfs shows them: list, bind, unbind, IOMMU groups, and what stands in the way.
