//! The ways to reach a device: VFIO, a QEMU over qtest, and models in this process.
