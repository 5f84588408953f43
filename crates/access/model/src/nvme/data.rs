//! Where the data of a command lies: physical region pages, or a scatter gather list. [NVMe 4.3,
//! 4.4]

use ring3_spec::nvme::{Status, Submission};

use super::prp::{self, Pages};
use crate::Bus;

/// Bytes of an SGL descriptor. [NVMe 4.4]
const DESCRIPTOR: u64 = 16;
/// SGL descriptor types, with subtype 0: an address. [NVMe 4.4, SGL Identifier]
const DATA_BLOCK: u8 = 0x00;
const SEGMENT: u8 = 0x20;
const LAST_SEGMENT: u8 = 0x30;
/// Segments of one list; a list that leads back to itself has more.
const MOST_SEGMENTS: usize = 64;

/// Calls `each` with the device address, the offset in the data and the length of every piece of
/// the `len` bytes of `command`, in order, until it fails.
pub(super) fn for_each(
    bus: &Bus,
    command: &Submission,
    pages: Pages,
    len: usize,
    each: impl FnMut(u64, usize, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    if command.flags() & Submission::SGL_FLAG == 0 {
        return prp::for_each(bus, command, pages, len, each);
    }
    by_list(bus, [command.0[3], command.0[4]], len, each)
}

/// The same of the list that begins with the `descriptor` of a command.
fn by_list(
    bus: &Bus,
    mut descriptor: [u64; 2],
    len: usize,
    mut each: impl FnMut(u64, usize, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut done = 0;
    for _ in 0..MOST_SEGMENTS {
        let [at, bytes] = [descriptor[0], u64::from(descriptor[1] as u32)];
        match identifier(descriptor) {
            DATA_BLOCK => {
                block(descriptor, &mut done, len, &mut each)?;
                return whole(done, len);
            }
            kind @ (SEGMENT | LAST_SEGMENT) => {
                if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR) || !at.is_multiple_of(8) {
                    return Err(Status::SGL_SEGMENT.with_do_not_retry());
                }
                let load = |entry: u64| -> Result<[u64; 2], Status> {
                    let word = |at| bus.load(at).map_err(|_| Status::DATA_TRANSFER);
                    Ok([word(entry)?, word(entry + 8)?])
                };
                // The last descriptor of a segment leads to the next one, but in the last of them.
                let blocks = bytes / DESCRIPTOR - u64::from(kind == SEGMENT);
                for number in 0..blocks {
                    block(load(at + number * DESCRIPTOR)?, &mut done, len, &mut each)?;
                }
                if kind == LAST_SEGMENT {
                    return whole(done, len);
                }
                descriptor = load(at + blocks * DESCRIPTOR)?;
                if identifier(descriptor) == DATA_BLOCK {
                    return Err(Status::SGL_SEGMENT.with_do_not_retry());
                }
            }
            _ => return Err(Status::SGL_TYPE.with_do_not_retry()),
        }
    }
    Err(Status::SGL_SEGMENT.with_do_not_retry())
}

fn identifier(descriptor: [u64; 2]) -> u8 {
    (descriptor[1] >> 56) as u8
}

/// One data block.
fn block(
    descriptor: [u64; 2],
    done: &mut usize,
    len: usize,
    each: &mut impl FnMut(u64, usize, usize) -> Result<(), Status>,
) -> Result<(), Status> {
    if identifier(descriptor) != DATA_BLOCK {
        return Err(Status::SGL_TYPE.with_do_not_retry());
    }
    let bytes = descriptor[1] as u32 as usize;
    if bytes > len - *done {
        return Err(Status::SGL_LENGTH.with_do_not_retry());
    }
    if bytes > 0 {
        each(descriptor[0], *done, bytes)?;
    }
    *done += bytes;
    Ok(())
}

fn whole(done: usize, len: usize) -> Result<(), Status> {
    if done == len { Ok(()) } else { Err(Status::SGL_LENGTH.with_do_not_retry()) }
}
