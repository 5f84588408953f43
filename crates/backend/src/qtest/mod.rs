//! The device models of an installed QEMU, driven over its qtest socket: no guest, no root.
//!
//! `qtest:nvme` starts a QEMU whose machine is empty but for that device and whose processor halts at the first instruction. The
//! driver's registers are lines on a socket, its DMA memory is the machine's memory (one memfd, mapped on both sides), and
//! its interrupts are eventfds that QEMU signals. The driver is the one that runs on hardware.
//!
//! # Shape
//! [`Qtest`] is the device; `model` turns its name into QEMU's command line, `find` looks for QEMU, `machine` is the process,
//! `wire` the socket (`inbox` what comes in); `board` sets the machine's PCI functions up (`function`) and resets them; `interrupts` are the pin (`intx`) and
//! the messages (`ivshmem`).
//!
//! # Options
//! For every device: `arena`, `below` (see [`OpenOptions`](crate::OpenOptions)), `msi=off`, `msix=off`. For `nvme`: `size` (1G), `namespaces` (1), `block`
//! and `meta` (lists with colons: `block=512:4096`), `queues` (8), `file=PATH`, `null=on`. Any other is a property of QEMU's
//! device (`mdts=2`, `mac=...`), and any other target is a device of QEMU by its name there.
//!
//! # Removal
//! A QEMU that ends, or that does not answer for ten seconds, is a device that is gone.

mod bar;
mod board;
mod device;
mod eventfd;
mod find;
mod function;
mod inbox;
mod interrupts;
mod intx;
mod ivshmem;
mod machine;
mod model;
mod wire;

pub use bar::QtestBar;
pub use device::{Qtest, open};
