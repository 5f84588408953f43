//! Forwarding: what a card receives it sends again, and what a packet costs its driver then, as
//! DPDK's testpmd does and counts it.

use std::str::FromStr;
use std::time::{Duration, Instant};

use ring3_class::net::{Filter, Nic, Packet, Queue, QueueSettings};
use strum::IntoStaticStr;

use crate::Error;

/// Packets of a batch.
const BATCH: usize = 32;
/// Descriptors of each direction, as testpmd has them.
const DEPTH: u16 = 256;
/// Bytes of a buffer from the packet's start on.
const ROOM: u32 = 2048;
/// The clock is read, and the card looked after, once in so many turns.
const LOOK: u32 = 256;

/// What is done to a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Forwarding {
    /// Nothing.
    Io,
    /// Its Ethernet addresses change places.
    MacSwap,
}

impl Forwarding {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Io, Self::MacSwap];

    /// Its name, which testpmd has, too.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl FromStr for Forwarding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| format!("{text:?} is neither io nor macswap"))
    }
}

/// What was forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forwarded {
    /// Packets that were received.
    pub received: u64,
    /// Packets that were handed to the card again; the others found no room, or were of several
    /// pieces.
    pub sent: u64,
    /// How long it was done.
    pub elapsed: Duration,
    /// What the processor's time stamp counter has counted in turns in which something came.
    pub ticks: u64,
}

/// Forwards what `nic` receives, first for `warm_up`, of which nothing is counted: a link that
/// comes, a sender that notices. Then for `time`, or until `stop` says so, without ever sleeping.
pub fn forward(
    nic: &dyn Nic,
    forwarding: Forwarding,
    [warm_up, time]: [Duration; 2],
    stop: &mut dyn FnMut() -> bool,
) -> Result<Forwarded, Error> {
    let failed = |source| Error::Device { name: nic.name(), source };
    let mut path = Path::open(nic).map_err(failed)?;
    // Who forwards takes what is for others, too.
    nic.set_filter(&Filter { promiscuous: true, ..Filter::own(nic.info().mac) }).map_err(failed)?;
    path.run(forwarding, warm_up, stop).map_err(failed)?;
    path.run(forwarding, time, stop).map_err(failed)
}

/// A queue, the batch that goes round, and empty buffers, by which what is received is replaced, so
/// that the card never has much fewer buffers while others are being sent. Buffers are replaced,
/// and those that were sent collected, many at a time, whatever a look finds.
struct Path {
    queue: Box<dyn Queue>,
    batch: Box<[Packet]>,
    spare: Box<[Packet]>,
    /// How many of `spare`, from its start on, are buffers. The last that came back is the next
    /// that is used.
    spares: usize,
    /// Buffers that the card has less than at the start.
    missing: usize,
}

impl Path {
    fn open(nic: &dyn Nic) -> Result<Self, ring3_device::Error> {
        let settings = QueueSettings {
            rx_depth: DEPTH,
            tx_depth: DEPTH,
            rx_room: ROOM,
            ..QueueSettings::default()
        };
        let mut queues = nic.open_queues(1, &settings)?;
        let mut queue = queues
            .pop()
            .ok_or_else(|| ring3_device::Error::Unsupported("a card without a queue".into()))?;
        let start = nic.info().headroom.next_multiple_of(64);
        let arena = nic.dma().arena();
        let (received, sent) = queue.depth();
        let buffers = |count: usize| {
            (0..count)
                .map(|_| Ok(Packet::new(arena.alloc((start + ROOM) as usize, 64)?, start)))
                .collect::<Result<Vec<_>, ring3_device::Error>>()
        };
        // What it does not take goes back to the arena.
        let _ = queue.rx_provide(&mut buffers(received.into())?);
        let mut spare = buffers(usize::from(sent) + BATCH)?;
        let spares = spare.len();
        // There is a place for every buffer.
        spare.resize_with(spares + usize::from(received), Packet::default);
        Ok(Self {
            queue,
            batch: (0..BATCH).map(|_| Packet::default()).collect(),
            spare: spare.into(),
            spares,
            missing: 0,
        })
    }

    fn run(
        &mut self,
        forwarding: Forwarding,
        time: Duration,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Forwarded, ring3_device::Error> {
        let (start, mut done) = (Instant::now(), Forwarded::default());
        for turn in 0_u32.. {
            if turn % LOOK == 0 {
                let now = Instant::now();
                if now.duration_since(start) >= time || stop() {
                    break;
                }
                self.queue.tick(now)?;
            }
            self.turn(forwarding, &mut done)?;
        }
        done.elapsed = start.elapsed();
        Ok(done)
    }

    /// One batch, if one has come.
    #[inline]
    fn turn(
        &mut self,
        forwarding: Forwarding,
        done: &mut Forwarded,
    ) -> Result<(), ring3_device::Error> {
        let begin = ticks();
        let count = self.queue.rx_return(&mut self.batch)?;
        if count > 0 {
            let batch = &mut self.batch[..count];
            if forwarding == Forwarding::MacSwap {
                batch.iter().try_for_each(Packet::swap_addresses)?;
            }
            let sent = self.queue.tx_provide(batch).count;
            if sent < count {
                // What was not sent is received into again.
                let _ = self.queue.rx_provide(&mut batch[sent..]);
            }
            self.missing += sent;
            if self.missing >= BATCH || sent < count {
                self.collect()?;
                self.replace();
            }
            (done.received, done.sent) = (done.received + count as u64, done.sent + sent as u64);
            done.ticks += ticks().wrapping_sub(begin);
        }
        Ok(())
    }

    /// Takes what was sent.
    #[inline]
    fn collect(&mut self) -> Result<(), ring3_device::Error> {
        loop {
            let end = self.spare.len().min(self.spares + BATCH);
            let back = self.queue.tx_return(&mut self.spare[self.spares..end])?;
            self.spares += back;
            if back < BATCH {
                return Ok(());
            }
        }
    }

    /// Hands empty buffers to the card for those that are missing, or as many as there are.
    #[inline]
    fn replace(&mut self) {
        let first = self.spares.saturating_sub(self.missing);
        let last = &mut self.spare[first..self.spares];
        let taken = self.queue.rx_provide(last).count;
        if taken < last.len() {
            last.rotate_left(taken);
        }
        (self.spares, self.missing) = (self.spares - taken, self.missing - taken);
    }
}

/// A counter of the processor that goes on at one pace: the time stamp counter, or on arm64 the
/// virtual one, which is slower.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(target_arch = "aarch64")]
    {
        let counted: u64;
        // SAFETY: Linux lets processes read this register.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) counted, options(nomem, nostack)) };
        counted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ring3_class::net::Cable;
    use ring3_device::Deadline;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const FRAME: [u8; 24] =
        [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3];

    /// What comes back to a neighbour of [`FRAME`], which is not for the card, and what was
    /// counted.
    fn forwarded(forwarding: Forwarding) -> (Vec<u8>, Forwarded) {
        let (_cable, card, peer) = Cable::new(8 << 20).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                forward(&card, forwarding, [Duration::ZERO, LONG], &mut || {
                    stop.load(Ordering::Relaxed)
                })
            });
            peer.set_filter(&Filter { promiscuous: true, ..Filter::own(peer.info().mac) }).unwrap();
            let mut queue = peer.open_queues(1, &QueueSettings::default()).unwrap().remove(0);
            let buffer = || Packet::new(peer.dma().arena().alloc(2048, 64).unwrap(), 0);
            assert_eq!(queue.rx_provide(&mut [buffer(), buffer()]).count, 2);
            let (mut batch, deadline) =
                ([Packet::default()], Deadline::after(Duration::from_secs(20)));
            while queue.rx_return(&mut batch).unwrap() == 0 && !deadline.expired() {
                let mut packet = [buffer()];
                packet[0].fill(&FRAME).unwrap();
                let _ = queue.tx_provide(&mut packet);
                std::thread::sleep(Duration::from_millis(5));
                let _ = queue.tx_return(&mut packet);
            }
            stop.store(true, Ordering::Relaxed);
            let mut bytes = vec![0; batch[0].len as usize];
            batch[0].read(0, &mut bytes).unwrap();
            (bytes, done.join().unwrap().unwrap())
        })
    }

    #[test]
    fn a_packet_for_anyone_goes_back_as_it_came() {
        let (bytes, done) = forwarded(Forwarding::Io);
        assert_eq!(bytes[..24], FRAME);
        assert!(done.received > 0 && done.received == done.sent && done.ticks > 0, "{done:?}");
    }

    #[test]
    fn its_addresses_change_places_if_that_is_wished() {
        assert_eq!(
            forwarded(Forwarding::MacSwap).0[..14],
            [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 3, 3]
        );
    }

    #[test]
    fn nothing_is_counted_of_the_warm_up() {
        let (_cable, card, peer) = Cable::new(8 << 20).unwrap();
        let mut queue = peer.open_queues(1, &QueueSettings::default()).unwrap().remove(0);
        let (mut turns, mut packet) =
            (0, [Packet::new(peer.dma().arena().alloc(2048, 64).unwrap(), 0)]);
        packet[0].fill(&FRAME).unwrap();
        // It comes in the first of three looks, and the warm-up ends with the second one.
        let mut stop = || {
            turns += 1;
            if turns == 1 {
                assert_eq!(queue.tx_provide(&mut packet).count, 1);
            }
            turns >= 2
        };
        let done = forward(&card, Forwarding::Io, [LONG, LONG], &mut stop).unwrap();
        assert_eq!((done.received, done.sent), (0, 0));
        assert_eq!(queue.tx_return(&mut packet).unwrap(), 1);
    }

    #[test]
    fn forwardings_are_known_by_their_names() {
        Forwarding::ALL.into_iter().for_each(|known| assert_eq!(known.name().parse(), Ok(known)));
        assert!("5tswap".parse::<Forwarding>().unwrap_err().contains("macswap"));
    }
}
