//! Where the data of a command lies: physical region pages. [NVMe 4.3.1]

use ring3_spec::nvme::{Status, Submission};

use crate::Bus;

/// How entries are read.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    /// CC.MPS in bytes.
    pub(super) page: u64,
    /// The last entry of a page of them is never a page of data.
    pub(super) chained: bool,
}

impl From<u64> for Pages {
    fn from(page: u64) -> Self {
        Self { page, chained: false }
    }
}

/// Calls `each` with the device address, the offset in the data and the length of every piece of
/// the `len` bytes of `command`, in order, until it fails.
pub(super) fn for_each(
    bus: &Bus,
    command: &Submission,
    Pages { page, chained }: Pages,
    len: usize,
    mut each: impl FnMut(u64, usize, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    let (prp1, prp2) = (command.prp1(), command.prp2());
    if !prp1.is_multiple_of(4) {
        return Err(Status::INVALID_PRP_OFFSET);
    }
    let first = len.min((page - prp1 % page) as usize);
    each(prp1, 0, first)?;
    if first == len {
        return Ok(());
    }
    if len - first <= page as usize {
        // The second entry is a page itself. [NVMe 4.1.1, PRP2]
        return each(aligned(prp2, page)?, first, len - first);
    }
    if !prp2.is_multiple_of(8) {
        return Err(Status::INVALID_PRP_OFFSET);
    }
    let (mut entry, mut done) = (prp2, first);
    while done < len {
        let value = bus.load(entry).map_err(|_| Status::DATA_TRANSFER)?;
        let left = len - done;
        if (entry + 8).is_multiple_of(page) && (left > page as usize || chained) {
            // The last entry of a page of the list leads to the next one, unless it is the last of
            // all. [NVMe 4.3.1]
            entry = aligned(value, page)?;
            continue;
        }
        let piece = left.min(page as usize);
        each(aligned(value, page)?, done, piece)?;
        done += piece;
        entry = entry.wrapping_add(8);
    }
    Ok(())
}

fn aligned(address: u64, page: u64) -> Result<u64, Status> {
    if address.is_multiple_of(page) { Ok(address) } else { Err(Status::INVALID_PRP_OFFSET) }
}

/// Takes `bytes` from the host, as an admin command does.
pub(super) fn take(
    bus: &Bus,
    command: &Submission,
    page: u64,
    bytes: &mut [u8],
) -> Result<(), Status> {
    for_each(bus, command, page.into(), bytes.len(), |iova, at, len| {
        bus.read(iova, &mut bytes[at..at + len]).map_err(|_| Status::DATA_TRANSFER)
    })
}

/// Gives `bytes` to the host, as an admin command does.
pub(super) fn give(bus: &Bus, command: &Submission, page: u64, bytes: &[u8]) -> Result<(), Status> {
    for_each(bus, command, page.into(), bytes.len(), |iova, at, len| {
        bus.write(iova, &bytes[at..at + len]).map_err(|_| Status::DATA_TRANSFER)
    })
}
