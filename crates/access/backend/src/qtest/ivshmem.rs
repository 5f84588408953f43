//! The server side of QEMU's inter-VM doorbell, by which MSI and MSI-X become eventfds.
//!
//! The doorbell device has a register; a 32-bit write of `peer << 16 | vector` to it signals the
//! eventfd that the server announced for that peer and vector. Interrupt messages are such writes:
//! their address is the register, their data the number. We are peer 0, because the data of an MSI
//! has 16 bits, and QEMU is peer 1.
//!
//! # References
//! - `[IVSHMEM]` QEMU documentation, "Device Specification for Inter-VM shared memory device",
//!   `docs/specs/ivshmem-spec.rst`

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::Region;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::eventfd;

/// Where the doorbell register is in BAR 0. [IVSHMEM, Registers]
pub(super) const DOORBELL: u64 = 12;
const PROTOCOL_VERSION: i64 = 0;
const OUR_PEER: i64 = 0;
const QEMU_PEER: i64 = 1;
const SHARED_MEMORY: i64 = -1;

/// Our side of the doorbell: a counter per vector.
pub(super) struct Doorbell {
    events: Arc<Vec<OwnedFd>>,
    /// QEMU keeps its end as long as it lives; closing ours would only tell it that the server
    /// died.
    _server: OwnedFd,
}

impl Doorbell {
    /// Says on `server`, a connected stream, all that QEMU waits for at start: its id, `vectors`
    /// eventfds of ours, and a page to share.
    ///
    /// The messages fit into the socket's buffer, so QEMU finds them when it starts and the server
    /// has nothing to do afterwards.
    pub(super) fn new(server: OwnedFd, vectors: u16) -> Result<Self, Error> {
        let events: Vec<_> = (0..vectors).map(|_| eventfd::new()).collect::<Result<_, _>>()?;
        // The specification wants shared memory beside the doorbell. Nobody looks at it.
        let page = Region::new(4096)?;
        send(&server, PROTOCOL_VERSION, None)?;
        send(&server, QEMU_PEER, None)?;
        for event in &events {
            send(&server, OUR_PEER, Some(event.as_fd()))?;
        }
        send(&server, SHARED_MEMORY, page.fd())?;
        Ok(Self { events: Arc::new(events), _server: server })
    }

    /// The counters, by vector.
    pub(super) fn events(&self) -> &Arc<Vec<OwnedFd>> {
        &self.events
    }
}

/// Sends one message: 8 bytes, little endian, with at most one descriptor. [IVSHMEM, Client-Server
/// protocol]
fn send(server: &OwnedFd, message: i64, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: &[BorrowedFd<'_>] = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = message.to_le_bytes();
    rustix::net::sendmsg(
        server,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )
    .map_err(|error| Error::os("announcing interrupt vectors to QEMU", error))?;
    Ok(())
}
