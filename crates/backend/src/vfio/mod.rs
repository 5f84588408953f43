//! Functions claimed through VFIO, confined by the IOMMU.
