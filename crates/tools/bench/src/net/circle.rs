//! Packets that go round: as many as a window has are under way, and one that comes back is sent
//! again.

use std::path::Path;
use std::time::{Duration, Instant};

use ring3_class::net::Mac;

use super::wire::{End, Wire};
use crate::Error;

/// Packets under way: most of the descriptors of a receiving card.
const WINDOW: u32 = 192;
/// So many are sent one after the other.
const BURST: u32 = 32;
/// A window of which nothing has come back for so long is lost, or was never received.
const STALL: Duration = Duration::from_millis(200);
/// How often the thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(20);
/// Packets that are taken before somebody looks what is due.
const BATCH: u32 = 64;
/// Bytes of a packet without its check sequence.
const BYTES: usize = 60;
/// For local experiments. [IEEE 802 9.2.3]
const KIND: [u8; 2] = [0x88, 0xb5];

/// The cable of a card whose address is `to`, with its sockets in `folder`.
pub fn circle(folder: &Path, to: Mac) -> Result<Wire, Error> {
    let mut frame = vec![0; BYTES];
    frame[..6].copy_from_slice(&to.0);
    frame[6..14].copy_from_slice(&[2, 0, 0, 9, 0, 1, KIND[0], KIND[1]]);
    Wire::new(folder, "circle", move |end| serve(end, &frame))
}

fn serve(end: &End, frame: &[u8]) {
    let (mut credit, mut heard, mut came) = (WINDOW, Instant::now(), vec![0; 2048]);
    while !end.is_over() {
        for _ in 0..BATCH {
            let Some(length) = end.receive(&mut came) else { break };
            // Anything else is what a guest's kernel sends by itself.
            if came[..length].get(12..14) == Some(&KIND) {
                (credit, heard) = (credit + 1, Instant::now());
            }
        }
        if heard.elapsed() >= STALL {
            (credit, heard) = (WINDOW, Instant::now());
        }
        // In bursts, as a busy cable has them.
        if credit < BURST {
            end.wait(LOOK);
            continue;
        }
        while credit > 0 && end.send(frame) {
            credit -= 1;
        }
        end.wait(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_window_is_under_way_and_each_that_comes_back_is_sent_again() {
        let folder = tempfile::tempdir().unwrap();
        let circle = circle(folder.path(), Mac([2; 6])).unwrap();
        let card = UnixDatagram::bind(circle.theirs()).unwrap();
        card.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut frame = [0; 100];
        for _ in 0..1000 {
            let length = card.recv(&mut frame).unwrap();
            assert_eq!((length, &frame[..6], &frame[12..14]), (BYTES, &[2; 6][..], &KIND[..]));
            card.send_to(&frame[..length], circle.ours()).unwrap();
        }
    }
}
