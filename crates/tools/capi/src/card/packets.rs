//! The queue of an opened card: packets in batches.

use std::ffi::{c_int, c_void};
use std::mem;

use ring3_class::Error;
use ring3_class::dma::DmaBuffer;
use ring3_class::net::{Checksum, Nic, Packet, Queue, QueueSettings};

use super::Card;
use super::opened::{OpenedCard, not_opened};
use crate::dma::Held;
use crate::error::{fail, failed, hand_out, take_back};
use crate::waiting::{self, Sleep};

/// The way through an opened card in both directions, for one thread at a time.
///
/// Its buffers have numbers. A buffer is the card's, the program's, or free.
pub struct CardQueue {
    /// Dropped first: it stops the card.
    queue: Box<dyn Queue>,
    /// The buffers by their numbers; `None` while the card has them.
    buffers: Vec<Option<DmaBuffer>>,
    /// Numbers of buffers that nobody has.
    free: Vec<u32>,
    /// Numbers of buffers that the program has.
    is_programs: Vec<bool>,
    batch: Vec<Packet>,
    start: u32,
    /// Buffers that the card shall have for reception.
    rx_depth: u16,
    sleep: Sleep,
    _device: Option<Held>,
}

/// A packet, or a piece of one, in a buffer of the queue's that the program has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CardPacket {
    /// Its first byte, from the Ethernet header on.
    pub data: *mut c_void,
    /// Its bytes, without the check sequence at the end of a frame.
    pub len: u32,
    /// Most bytes from `data` on.
    pub room: u32,
    /// The buffer's number. It is the library's: do not change it.
    pub buffer: u32,
    /// Received: the card has found the checksum of TCP or UDP right. Nothing of one to be sent.
    pub checked: bool,
    /// The next packet of the batch, or the first of the next batch, is another piece of the same.
    pub more: bool,
}

/// Packets that move at once.
const BATCH: usize = 64;
/// Bytes of an Ethernet header with a tag.
const HEADER: u32 = 18;
/// Where packets begin in their buffers at least: their data are aligned for every processor.
const START: u32 = 64;

/// Opens the queue of an opened card for packets of up to `mtu` bytes without their Ethernet header
/// (0 for 1500), with up to `depth` buffers for each direction (0 for 256). The card receives from
/// now on. -EBUSY while it is open already.
///
/// # Safety
/// `queue` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_open(
    card: &Card,
    mtu: u32,
    depth: u16,
    queue: *mut *mut CardQueue,
) -> c_int {
    let Some(opened) = card.opened() else { return not_opened() };
    // SAFETY: the caller's.
    unsafe { hand_out(CardQueue::open(opened, mtu, depth), queue) }
}

/// Ends the queue and gives its buffers back, those that the program has, too.
///
/// # Safety
/// `queue` was opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_close(queue: *mut CardQueue) {
    // SAFETY: the caller's.
    unsafe { take_back(queue) };
}

/// Takes up to `room` packets that were received, and returns how many. Each is the program's until
/// it is released or sent; the card has as many buffers less meanwhile. -ENODEV and -EIO say that
/// the driver has given the card up; after other errors the queue goes on.
///
/// # Safety
/// `packets` points to `room` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_receive(
    queue: &mut CardQueue,
    packets: *mut CardPacket,
    room: usize,
) -> c_int {
    let most = room.min(BATCH);
    let count = match queue.queue.rx_return(&mut queue.batch[..most]) {
        Ok(count) => count,
        Err(error) => return failed(&error),
    };
    for nth in 0..count {
        let packet = queue.take_in(nth);
        // SAFETY: the caller's; `nth` is below `room`.
        unsafe { packets.add(nth).write(packet) };
    }
    queue.refill();
    count as c_int
}

/// Takes up to `count` free buffers for packets that the program writes, and returns of how many;
/// fewer if so many are on their way. `room` of each says how long its packet may be.
///
/// # Safety
/// `packets` points to `count` places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_alloc(
    queue: &mut CardQueue,
    packets: *mut CardPacket,
    count: usize,
) -> c_int {
    if let Err(error) = queue.take_sent() {
        return failed(&error);
    }
    let mut given = 0;
    while given < count.min(c_int::MAX as usize)
        && let Some(number) = queue.free.pop()
    {
        let packet = queue.lend(number, queue.start, 0);
        // SAFETY: the caller's; `given` is below `count`.
        unsafe { packets.add(given).write(packet) };
        given += 1;
    }
    given as c_int
}

/// Hands the first of `count` packets to the card, as many as there is room for, and returns how
/// many: their buffers are the card's, and free when they were sent. Those that were received can
/// be sent as they are. A packet that makes no sense ends the call before it; if it is the first,
/// it is -EINVAL, or -EMSGSIZE if it is longer than the card takes. One write to a register.
///
/// # Safety
/// `packets` points to `count` packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_send(
    queue: &mut CardQueue,
    packets: *const CardPacket,
    count: usize,
) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's.
    let packets = unsafe { std::slice::from_raw_parts(packets, count) };
    let mut sent = 0;
    for part in packets.chunks(BATCH) {
        match queue.send(part) {
            Ok(taken) => {
                sent += taken;
                if taken < part.len() {
                    break;
                }
            }
            Err(refused) if sent == 0 => return refused,
            Err(_) => break,
        }
    }
    sent as c_int
}

/// Gives buffers that the program has back to the queue, unsent.
///
/// # Safety
/// `packets` points to `count` packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_release(
    queue: &mut CardQueue,
    packets: *const CardPacket,
    count: usize,
) {
    if count == 0 {
        return;
    }
    // SAFETY: the caller's.
    for packet in unsafe { std::slice::from_raw_parts(packets, count) } {
        if queue.is_programs(packet.buffer) {
            queue.is_programs[packet.buffer as usize] = false;
            queue.free.push(packet.buffer);
        }
    }
    queue.refill();
}

/// Waits until there is something to receive, `timeout_ms` at most, by polling and then by
/// interrupt: 1, or 0 at the end of that time.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_queue_wait(queue: &mut CardQueue, timeout_ms: u32) -> c_int {
    waiting::wait(&mut *queue.queue, timeout_ms)
}

/// A descriptor for poll and epoll, readable when there may be something to receive, if
/// ring3_card_queue_arm was called before the sleep; -ENOENT of a queue that is polled. It is the
/// queue's: do not close or read it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_queue_fd(queue: &CardQueue) -> c_int {
    waiting::descriptor(&*queue.queue)
}

/// Prepares a sleep in the program's own loop, after it has received: 1 if it may sleep on the
/// descriptor, `timeout_ms` at most (-1: without an end), and then receives and calls this again; 0
/// if it must not, because there is something to receive, or because the queue has no interrupt.
///
/// # Safety
/// `timeout_ms` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_queue_arm(
    queue: &mut CardQueue,
    timeout_ms: *mut c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { queue.sleep.arm(&mut *queue.queue, true, timeout_ms) }
}

/// Whether buffers that come back from being sent wake the program, too: for one that waits until
/// ring3_card_queue_alloc has some.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_queue_wake_on_sent(queue: &mut CardQueue, wake: bool) {
    queue.queue.wake_on_tx(wake);
}

impl CardQueue {
    fn open(opened: &OpenedCard, mtu: u32, depth: u16) -> Result<Self, Error> {
        let made = Self::of(&*opened.nic, mtu, depth)?;
        Ok(Self { _device: Some(opened.device.clone()), ..made })
    }

    fn of(nic: &dyn Nic, mtu: u32, depth: u16) -> Result<Self, Error> {
        let (info, usual) = (nic.info(), QueueSettings::default());
        let mtu = if mtu == 0 { usual.mtu } else { mtu };
        let depth = if depth == 0 { usual.rx_depth } else { depth };
        // Packets that the card puts together are longer, and come in pieces.
        let room = mtu.saturating_add(HEADER).max(usual.rx_room).next_multiple_of(64);
        let settings = QueueSettings {
            rx_depth: depth.min(info.max_depth.0),
            tx_depth: depth.min(info.max_depth.1),
            mtu,
            rx_room: room,
        };
        let mut queues = nic.open_queues(1, &settings)?;
        let queue = queues.pop().ok_or_else(|| Error::Fatal("the card has no queue".into()))?;
        let (rx_depth, tx_depth) = queue.depth();
        let start = info.headroom.next_multiple_of(START).max(START);
        // What the card holds, and a batch each way in the program's hands.
        let count = usize::from(rx_depth) + usize::from(tx_depth) + 2 * BATCH;
        let arena = nic.dma().arena();
        let buffers = (0..count).map(|_| arena.alloc((start + room) as usize, 64).map(Some));
        let mut made = Self {
            queue,
            buffers: buffers.collect::<Result<_, _>>()?,
            free: (0..count as u32).rev().collect(),
            is_programs: vec![false; count],
            batch: (0..BATCH).map(|_| Packet::default()).collect(),
            start,
            rx_depth,
            sleep: Sleep::default(),
            _device: None,
        };
        made.refill();
        Ok(made)
    }

    fn is_programs(&self, number: u32) -> bool {
        self.is_programs.get(number as usize).copied().unwrap_or(false)
    }

    /// Buffer `number`, whose packet begins at `start`, as the program gets it.
    fn lend(&mut self, number: u32, start: u32, len: u32) -> CardPacket {
        let Some(Some(buffer)) = self.buffers.get(number as usize) else {
            let data = std::ptr::null_mut();
            let buffer = u32::MAX;
            return CardPacket { data, len: 0, room: 0, buffer, checked: false, more: false };
        };
        let room = (buffer.len() as u32).saturating_sub(start);
        let data = buffer.as_ptr().wrapping_add(start as usize).cast();
        self.is_programs[number as usize] = true;
        CardPacket { data, len, room, buffer: number, checked: false, more: false }
    }

    /// The packet at place `nth` of the batch becomes the program's.
    fn take_in(&mut self, nth: usize) -> CardPacket {
        let Packet { buffer, token, start, len, meta } = mem::take(&mut self.batch[nth]);
        if let Some(place) = self.buffers.get_mut(token as usize) {
            *place = buffer;
        }
        let checked = matches!(meta.checksum(), Checksum::Valid | Checksum::Partial { .. });
        CardPacket { checked, more: meta.more(), ..self.lend(token, start, len) }
    }

    /// Buffers of packets that were sent are free again.
    fn take_sent(&mut self) -> Result<(), Error> {
        loop {
            let count = self.queue.tx_return(&mut self.batch)?;
            for packet in &mut self.batch[..count] {
                let Packet { buffer, token, .. } = mem::take(packet);
                if let Some(place) = self.buffers.get_mut(token as usize) {
                    *place = buffer;
                    self.free.push(token);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// Gives the card free buffers to receive into, in batches: as many as it shall have.
    fn refill(&mut self) {
        loop {
            let missing = self.rx_depth.saturating_sub(self.queue.outstanding().0);
            // Half a batch at once: a doorbell for each buffer would cost more than the buffer.
            if usize::from(missing) < (BATCH / 2).min(usize::from(self.rx_depth)) {
                return;
            }
            let mut made = 0;
            while made < usize::from(missing).min(BATCH)
                && let Some(number) = self.free.pop()
            {
                let buffer = self.buffers[number as usize].take();
                let packet = &mut self.batch[made];
                (packet.buffer, packet.token, packet.start) = (buffer, number, self.start);
                (packet.len, packet.meta) = (0, Default::default());
                made += 1;
            }
            let taken = self.queue.rx_provide(&mut self.batch[..made]).count;
            for packet in &mut self.batch[taken..made] {
                let Packet { buffer, token, .. } = mem::take(packet);
                self.buffers[token as usize] = buffer;
                self.free.push(token);
            }
            if taken < BATCH {
                return;
            }
        }
    }

    /// How many of `packets`, no more than a batch, the card has taken; what is wrong with the
    /// first.
    fn send(&mut self, packets: &[CardPacket]) -> Result<usize, c_int> {
        let mut made = 0;
        for packet in packets {
            if !self.is_programs(packet.buffer) {
                break;
            }
            let number = packet.buffer as usize;
            let Some(buffer) = &self.buffers[number] else { break };
            let offset = (packet.data as usize).wrapping_sub(buffer.as_ptr() as usize);
            if offset >= buffer.len() || packet.len as usize > buffer.len() - offset {
                break;
            }
            let place = &mut self.batch[made];
            (place.buffer, place.token) = (self.buffers[number].take(), packet.buffer);
            (place.start, place.len) = (offset as u32, packet.len);
            place.meta = Default::default();
            place.meta.set_more(packet.more);
            made += 1;
        }
        if made == 0 {
            let text = "the packet is in no buffer that the program has of this queue";
            return Err(fail(libc::EINVAL, text.into()));
        }
        let mut provided = self.queue.tx_provide(&mut self.batch[..made]);
        if provided.count < made && provided.refused.is_none() {
            // The queue is full: what was sent makes room.
            let kept = self.put_back(provided.count, made);
            self.take_sent().map_err(|error| failed(&error))?;
            let first = provided.count;
            self.fetch(&packets[first..first + kept], first);
            let more = self.queue.tx_provide(&mut self.batch[first..made]);
            provided.count += more.count;
            provided.refused = more.refused;
        }
        self.put_back(provided.count, made);
        for packet in &packets[..provided.count] {
            self.is_programs[packet.buffer as usize] = false;
        }
        match provided.refused {
            Some(refused) if provided.count == 0 => {
                let errno = match refused {
                    ring3_class::net::Refused::TooLong => libc::EMSGSIZE,
                    _ => libc::EINVAL,
                };
                Err(fail(errno, format!("the packet is not sent: {refused}")))
            }
            _ => Ok(provided.count),
        }
    }

    /// Places `from..to` of the batch, which the card has not taken, are the program's as before;
    /// how many.
    fn put_back(&mut self, from: usize, to: usize) -> usize {
        for packet in &mut self.batch[from..to] {
            let Packet { buffer, token, .. } = mem::take(packet);
            self.buffers[token as usize] = buffer;
        }
        to - from
    }

    /// Puts `packets`, which were looked at before, into the batch from place `first` on.
    fn fetch(&mut self, packets: &[CardPacket], first: usize) {
        for (packet, place) in packets.iter().zip(&mut self.batch[first..]) {
            let Some(buffer) = self.buffers[packet.buffer as usize].take() else { continue };
            place.start = (packet.data as usize - buffer.as_ptr() as usize) as u32;
            (place.buffer, place.token, place.len) = (Some(buffer), packet.buffer, packet.len);
            place.meta = Default::default();
            place.meta.set_more(packet.more);
        }
    }
}

#[cfg(test)]
mod tests;
