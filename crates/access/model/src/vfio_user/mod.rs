//! A device that a driver in another process uses, by the vfio-user protocol.
//!
//! # Shape
//! [`VfioUserServer`] listens on a UNIX socket and serves one client at a time; `session` answers
//! its requests. [`Channel`] is one end of a connection and carries messages; the backend
//! `vfio-user:` holds the other.
//!
//! # Life
//! The device outlives its clients. When one goes, however it goes, the function is as after
//! power-on before the next is accepted: bus mastering off, interrupts untied, reset, memory
//! unmapped. Media are kept.
//!
//! # Trust
//! A client may send anything. What makes no sense is refused with an errno, and a log line says
//! why; a stream whose messages cannot be told apart any more is closed. A client's memory is
//! mapped only if it cannot shrink: a mapping without a file behind it would kill this process.
//!
//! # References
//! - `[vfio-user]` vfio-user Protocol Specification 0.9.2

mod channel;
mod memory;
mod server;
mod session;

use std::os::fd::OwnedFd;

use ring3_device::Device;
use ring3_device::irq::IrqKind;

pub use channel::{Body, Channel};
pub use server::{Running, Stop, VfioUserServer, serve_client};

/// A device as its platform sees it: what VFIO and a machine monitor do around a function for
/// whoever drives it.
pub trait VfioUserDevice: Device {
    /// Writes configuration space as firmware and a kernel do: BARs, MSI, MSI-X and all of COMMAND
    /// take it.
    fn platform_write(&self, offset: u64, width: usize, value: u32);
    /// Delivers vectors `first` and on of `kind` to `signals`, eventfds; one without is held back.
    /// Other kinds are switched off.
    fn tie(&self, kind: IrqKind, first: u16, signals: Vec<Option<OwnedFd>>);
    /// Delivers nothing any more.
    fn untie(&self);
    /// Holds a vector back, or lets it through with what came meanwhile.
    fn set_mask(&self, vector: u16, masked: bool);
    /// As after power-on, media kept. When it returns, nothing that was started before can reach
    /// memory.
    fn restore(&self);
}
