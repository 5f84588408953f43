//! A queue of a card that is ready: full of buffers to receive into, with others to send of.

use ring3_class::net::{Nic, Packet, Queue, QueueSettings};

use crate::Error;

/// Bytes of a buffer from the packet's start on.
pub const ROOM: u32 = 2048;

/// Opens a queue of `nic` and lets it receive. The packets are `own` buffers to send of, which have
/// `token`; that of the others is 0.
pub fn open(nic: &dyn Nic, own: usize, token: u32) -> Result<(Box<dyn Queue>, Vec<Packet>), Error> {
    let failed = |source| Error::Device { name: nic.name(), source };
    let settings = QueueSettings { rx_room: ROOM, ..QueueSettings::default() };
    let mut queues = nic.open_queues(1, &settings).map_err(failed)?;
    let mut queue =
        queues.pop().ok_or_else(|| Error::Invalid(format!("{}: it has no queue", nic.name())))?;
    let start = nic.info().headroom.next_multiple_of(64);
    let buffer = |token| -> Result<Packet, ring3_device::Error> {
        let memory = nic.dma().arena().alloc((start + ROOM) as usize, 64)?;
        Ok(Packet { token, ..Packet::new(memory, start) })
    };
    let buffers = |count, token| {
        (0..count).map(|_| buffer(token)).collect::<Result<Vec<_>, _>>().map_err(failed)
    };
    let (own, mut empty) = (buffers(own, token)?, buffers(queue.depth().0.into(), 0)?);
    // What it does not take goes back to the arena.
    let _ = queue.rx_provide(&mut empty);
    Ok((queue, own))
}

/// Places for a batch of packets.
pub fn places(count: usize) -> Box<[Packet]> {
    (0..count).map(|_| Packet::default()).collect()
}
