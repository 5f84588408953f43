//! The device models of an installed QEMU, driven over its qtest socket: no guest, no root.
