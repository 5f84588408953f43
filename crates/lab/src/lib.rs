//! Guests under QEMU: packages, initramfs, devices, snapshots, results.
