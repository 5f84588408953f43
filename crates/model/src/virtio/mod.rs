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
use super::{SimDevice, SimHandle};

/// A simulated virtio network card.
pub type SimVirtioNet = SimDevice<VirtioNetModel>;
/// The other side of it: its wire, and what goes wrong.
pub type VirtioNetHandle = SimHandle<VirtioNetModel>;

/// Opens `sim:virtio-net`. It knows the options of [every model](super), `delay=` apart, and at the other end of its wire is who has its [handle](VirtioNetHandle), or nobody.
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimVirtioNet, Error> {
    let options = Options::of(uri, "virtio-net", &[])?;
    if uri.options.contains_key("delay") {
        return Err(Error::Invalid(format!("{uri}: this model has no delay=: a notification is served at once")));
    }
    SimDevice::new(uri.to_string(), VirtioNetModel::new(), &options.platform(asked)?)
}
