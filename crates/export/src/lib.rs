//! The kernel's face of a driver: a block device by ublk.
