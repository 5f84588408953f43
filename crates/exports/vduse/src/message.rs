//! What the kernel asks of a device's server.

use crate::uapi;

/// A request of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub(crate) id: u32,
    /// What it asks for.
    pub request: Request,
}

/// What the kernel asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// How far a virtqueue is.
    State {
        /// Which.
        queue: u32,
    },
    /// The driver has written the status; 0 is a reset. [virtio 2.1]
    Status(u8),
    /// What was mapped from the first to the last address is so no more, or otherwise.
    Iotlb {
        /// The first.
        start: u64,
        /// The last.
        last: u64,
    },
    /// What a newer kernel asks for: it is answered that it failed.
    Unknown(u32),
}

impl Message {
    pub(crate) fn of(raw: &uapi::Message) -> Self {
        let body = &raw.body;
        let long = |at: usize| u64::from(body[at]) | u64::from(body[at + 1]) << 32;
        let request = match raw.first {
            uapi::GET_VQ_STATE => Request::State { queue: body[0] },
            uapi::SET_STATUS => Request::Status(body[0] as u8),
            uapi::UPDATE_IOTLB => Request::Iotlb { start: long(0), last: long(2) },
            other => Request::Unknown(other),
        };
        Self { id: raw.second, request }
    }
}
