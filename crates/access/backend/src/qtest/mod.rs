//! The device models of an installed QEMU, driven over its qtest socket: no guest, no root.
//!
//! `qtest:nvme` starts a QEMU whose machine is empty but for that device and whose processor halts
//! at the first instruction. The driver's registers are lines on a socket, its DMA memory is the
//! machine's memory (one memfd, mapped on both sides), and its interrupts are eventfds that QEMU
//! signals. The driver is the one that runs on hardware.
//!
//! # Shape
//! [`Qtest`] is the device; `model` turns its name into QEMU's command line (`disk` what stands
//! behind it), `find` looks for QEMU, `host` is the machine and `machine` its process, `wire` the
//! socket (`inbox` what comes in, `stream` for data ports); `board` sets the machine's PCI
//! functions up (`function`, `legacy`) and resets them; `interrupts` are the pins (`intx`) and the
//! messages (`ivshmem`).
//!
//! # Options
//! For every device: `arena`, `below` (see [`OpenOptions`](crate::OpenOptions)), `msi=off`,
//! `msix=off`, `trace=EVENT` (QEMU reports it each time on its error output, see
//! [`Qtest::stderr_text`]; several with colons, `*` for any letters), `monitor=PATH` (QEMU's
//! monitor protocol listens at that socket). For every disk controller what its disks are: `size`
//! (1G), `file=PATH`, `null=on`, `bad=BLOCK` (a medium error there; `bad=8:write:16:read` in one
//! direction), `rate` (bytes a second) and `commands` (a second); with `rate=1` a disk hangs,
//! NVMe's from the second command on.
//!
//! For `nvme`: `namespaces` (1), `block`, `meta`, `protection` and `zoned` (lists with colons:
//! `block=512:4096`), `queues` (8). For `ich9-ahci`, `piix3-ide`, `piix4-ide` and `cmd646-ide`:
//! `disks` (1; an AHCI port each, or master and slave of the first and then of the second channel),
//! `cdrom=on` (an ATAPI drive in the place after them), `rotation` (1: does not rotate), `physical`
//! (bytes of a physical block). For controllers of USB and SCSI: `disks` (1). For sound cards:
//! `wav=PATH`, where what is played is written at `rate` (44100). Any other option is a property of
//! QEMU's device (`mdts=2`, `mac=...`), and any other target is a device of QEMU by its name there.
//!
//! # IDE
//! The PIIX functions are in compatibility mode: their ports appear as BARs 0 to 3, and interrupts
//! 14 and 15 as vectors 0 and 1 of the pin, which signal once and are masked until they are
//! unmasked, as every pin. A reset resets the machine. The CMD646 is in native mode and sits in a
//! machine whose interrupts cannot be seen (`host`): it is polled, and a reset only stops it.
//!
//! # Removal
//! A QEMU that ends, or that does not answer for ten seconds, is a device that is gone.

mod bar;
mod board;
mod device;
mod disk;
mod find;
mod function;
mod host;
mod inbox;
mod interrupts;
mod intx;
mod ivshmem;
mod legacy;
mod machine;
mod model;
mod stream;
mod wire;

pub use device::{Qtest, open};
