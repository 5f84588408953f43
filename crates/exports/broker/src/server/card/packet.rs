//! A packet between two owners: its first bytes as they were read once, the rest where it is.

use ring3_class::net::{Checksum, Meta};

/// Bytes that are copied at once.
const CHUNK: usize = 2048;

/// See the module.
pub struct ForwardedPacket<'a> {
    /// Its first bytes, without a tag: nobody changes them any more.
    pub head: &'a [u8],
    /// Bytes of all of it.
    pub len: usize,
    pub meta: Meta,
    /// Reads the rest, from that byte of the packet on; false if it cannot.
    pub rest: &'a dyn Fn(usize, &mut [u8]) -> bool,
}

impl ForwardedPacket<'_> {
    /// Copies bytes from `at` on to `write`, in pieces; false if some could not be read or written.
    pub fn copy(
        &self,
        mut at: usize,
        len: usize,
        mut write: impl FnMut(usize, &[u8]) -> bool,
    ) -> bool {
        let (mut chunk, end, start) = ([0; CHUNK], at + len, at);
        while at < end {
            let bytes =
                match self.head.get(at..end.min(self.head.len())).filter(|bytes| !bytes.is_empty())
                {
                    Some(bytes) => bytes,
                    None => {
                        let chunk = &mut chunk[..CHUNK.min(end - at)];
                        if !(self.rest)(at, chunk) {
                            return false;
                        }
                        chunk
                    }
                };
            if !write(at - start, bytes) {
                return false;
            }
            at += bytes.len();
        }
        true
    }
}

/// What is known of a packet whose headers move back by `by` bytes, or forward if it is less than
/// 0; `None` if they cannot.
pub fn moved(meta: Meta, by: i16) -> Option<Meta> {
    let checksum = match meta.checksum() {
        Checksum::Partial { start, offset } => {
            Checksum::Partial { start: start.checked_add_signed(by)?, offset }
        }
        other => other,
    };
    let segmentation = match meta.segmentation() {
        Some(mut cut) => {
            cut.headers = cut.headers.checked_add_signed(by)?;
            Some(cut)
        }
        None => None,
    };
    let network =
        if meta.network() == 0 { 0 } else { meta.network().checked_add_signed(by as i8)? };
    Some(meta.with_checksum(checksum).with_segmentation(segmentation).with_network(network))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_copied_of_its_head_and_its_rest() {
        let all: Vec<u8> = (0..5000u32).map(|at| at as u8).collect();
        let rest = |at: usize, bytes: &mut [u8]| {
            bytes.copy_from_slice(&all[at..at + bytes.len()]);
            at >= 100
        };
        let passing =
            ForwardedPacket { head: &all[..100], len: 5000, meta: Meta::default(), rest: &rest };
        for (at, len) in [(0, 5000), (0, 60), (50, 3000), (100, 1), (4999, 1), (7, 0)] {
            let mut copy = vec![0; len];
            assert!(passing.copy(at, len, |to, bytes| {
                copy[to..to + bytes.len()].copy_from_slice(bytes);
                true
            }));
            assert!(copy == all[at..at + len], "{at} {len}");
        }
        assert!(!passing.copy(0, 60, |_, _| false));
    }
}
