//! A virtio network card as a model: split virtqueues, merged buffers, checksums, cutting, filters by the control queue.
//!
//! # References
//! - `[virtio]` Virtual I/O Device (VIRTIO) Version 1.2, OASIS Committee Specification 01, 1 July 2022
//!
//! # Time
//! A notification is served inside of the write that it is. A frame that comes finds buffers or is lost, and counted.

mod card;
mod control;
mod frame;
mod handle;
mod queue;
mod registers;

pub use card::VirtioNetModel;
pub use handle::Misbehaviour;

use ring3_device::{Error, OpenOptions, Uri};

use super::options::Options;
use super::wire::{self, WireShape};
use super::{SimDevice, SimHandle};

/// A simulated virtio network card.
pub type SimVirtioNet = SimDevice<VirtioNetModel>;
/// The other side of it: its wire, and what goes wrong.
pub type VirtioNetHandle = SimHandle<VirtioNetModel>;

/// Opens `sim:virtio-net`.
///
/// Options, besides those of [every model](super), `delay=` apart: `wire=test` (a test's [handle](VirtioNetHandle); or `mirror`, or `cable/NAME`, as of [an e1000](super::e1000::open)).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimVirtioNet, Error> {
    let options = Options::of(uri, "virtio-net", &["wire"])?;
    let end = options.get("wire", "test, mirror or cable/NAME", WireShape::Test, wire::shape)?;
    if uri.options.contains_key("delay") {
        return Err(Error::Invalid(format!("{uri}: this model has no delay=: a notification is served at once")));
    }
    SimDevice::new(uri.to_string(), VirtioNetModel::new(&end), &options.platform(asked)?)
}
