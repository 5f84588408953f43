//! A card that is nothing but the peer: what an export costs with no card and no driver.
//!
//! What is sent is heard by the peer within the call, and what the peer says to it lies in the
//! buffers that were provided when the call returns.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ring3_class::net::{
    Counters, Filter, FilterLimits, Info, Limits, Link, Mac, Nic, Offloads, Packet, Provided,
    Queue, QueueSettings,
};
use ring3_device::dma::{Arena, Dma, NoDevice, Region};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::wait::{Source, Waiter};
use ring3_device::{Deadline, Error};
use rustix::event::{EventfdFlags, eventfd};

use super::Peer;
use super::sink;

/// The card's address.
const MAC: Mac = Mac([2, 0, 0, 0, 9, 1]);
/// The peer's.
const PEER: Mac = Mac([2, 0, 0, 0, 9, 2]);
/// Bytes of the longest frame that is listened to; of longer ones the peer hears as much.
const LONGEST: usize = 2048;

/// The card.
pub struct Reflector {
    info: Info,
    dma: Dma,
    /// Of the one queue that may be open.
    open: Arc<Mutex<bool>>,
}

impl Reflector {
    /// With so many bytes of memory.
    pub fn new(arena: usize) -> Result<Self, Error> {
        let offloads = Offloads {
            tx_checksum: true,
            rx_checksum: true,
            tso4: true,
            tso6: true,
            ..Offloads::default()
        };
        let info = Info {
            model: "none: it answers itself".into(),
            mac: MAC,
            mtu: (68, 9000),
            max_queues: 1,
            max_depth: (256, 256),
            headroom: 0,
            max_pieces: 32,
            receives_pieces: false,
            max_segmented: 65535,
            counts_missed: false,
            offloads,
            filters: FilterLimits { unicast: u16::MAX, multicast: u16::MAX, vlan: false },
            shared: false,
        };
        let dma =
            Dma::new(Arena::new(Region::new(arena)?, 0x10_0000), Arc::new(NoDevice::default()));
        Ok(Self { info, dma, open: Arc::default() })
    }
}

/// A source for which nothing ever comes from outside: its interrupt is a descriptor that nobody
/// writes to.
fn waiter() -> Result<Waiter, Error> {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    let fd = fd.map_err(|error| Error::os("creating an eventfd", error))?;
    Ok(Waiter::new(Some(Arc::new(Irq::new(fd, IrqKind::Msi, 0, None))), Duration::ZERO))
}

impl Nic for Reflector {
    fn name(&self) -> String {
        "reflector".into()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn link(&self) -> Result<Link, Error> {
        Ok(Link { up: true, speed: None, full_duplex: Some(true) })
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        Ok(Box::new(Never(waiter()?)))
    }

    fn set_filter(&self, _: &Filter) -> Result<(), Error> {
        Ok(())
    }

    fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::default())
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.info.check_settings(count, settings)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if mem::replace(&mut *open, true) {
            return Err(Error::Busy("reflector: its queue is open: drop it first".into()));
        }
        let (rx, tx) = self.info.max_depth;
        let depth = (settings.rx_depth.min(rx), settings.tx_depth.min(tx));
        let queue = ReflectorQueue {
            limits: Limits::new(&self.info, settings, depth.1),
            depth,
            peer: Peer::new(PEER),
            empty: VecDeque::with_capacity(depth.0.into()),
            filled: VecDeque::with_capacity(depth.0.into()),
            sent: VecDeque::with_capacity(depth.1.into()),
            frame: vec![0; LONGEST],
            answer: None,
            waiter: waiter()?,
            wake_on_tx: false,
            counters: Counters::default(),
            open: self.open.clone(),
        };
        Ok(vec![Box::new(queue)])
    }
}

struct ReflectorQueue {
    limits: Limits,
    depth: (u16, u16),
    peer: Peer,
    empty: VecDeque<Packet>,
    filled: VecDeque<Packet>,
    sent: VecDeque<Packet>,
    frame: Vec<u8>,
    /// What is answered to all segments of TCP's that have come in a call.
    answer: Option<Vec<u8>>,
    waiter: Waiter,
    wake_on_tx: bool,
    counters: Counters,
    open: Arc<Mutex<bool>>,
}

impl ReflectorQueue {
    /// The peer hears the first `length` bytes of the frame; or, without, lets time pass.
    fn peer(&mut self, length: Option<usize>, now: Instant) -> Option<Instant> {
        let (empty, filled) = (&mut self.empty, &mut self.filled);
        let send = RefCell::new(|frame: &[u8]| {
            let Some(mut packet) = empty.pop_front() else { return false };
            let took = packet.fill(frame).is_ok();
            if took {
                filled.push_back(packet)
            } else {
                empty.push_back(packet)
            }
            took
        });
        let (mut send, mut reply) =
            (|frame: &[u8]| send.borrow_mut()(frame), |frame: &[u8]| send.borrow_mut()(frame));
        match length {
            Some(length) => {
                self.peer.take(&self.frame[..length], now, &mut send, &mut reply);
                None
            }
            None => self.peer.tick(now, &mut send),
        }
    }

    /// Answers what has come of TCP, if there is a buffer for that.
    fn acknowledge(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        match self.empty.pop_front() {
            None => self.answer = Some(answer),
            Some(mut packet) => match packet.fill(&answer) {
                Ok(()) => self.filled.push_back(packet),
                Err(_) => self.empty.push_back(packet),
            },
        }
    }

    fn is_pending(&self) -> bool {
        !self.filled.is_empty() || self.wake_on_tx && !self.sent.is_empty()
    }
}

impl Drop for ReflectorQueue {
    fn drop(&mut self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Queue for ReflectorQueue {
    fn depth(&self) -> (u16, u16) {
        self.depth
    }

    fn outstanding(&self) -> (u16, u16) {
        // Never more than the depths.
        ((self.empty.len() + self.filled.len()) as u16, self.sent.len() as u16)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        for (count, packet) in batch.iter_mut().enumerate() {
            if self.outstanding().0 >= self.depth.0 {
                return Provided { count, refused: None };
            }
            if let Err(refused) = self.limits.check_buffer(packet) {
                return Provided { count, refused: Some(refused) };
            }
            self.empty.push_back(mem::take(packet));
        }
        self.acknowledge();
        Provided { count: batch.len(), refused: None }
    }

    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let count = self.filled.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(self.filled.drain(..count)) {
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += u64::from(packet.len);
            *place = packet;
        }
        Ok(count)
    }

    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let (now, mut count) = (Instant::now(), 0);
        while count < batch.len() {
            let pieces = match self.limits.check(&batch[count..]) {
                Ok(pieces) => pieces,
                Err(refused) => {
                    self.acknowledge();
                    return Provided { count, refused: Some(refused) };
                }
            };
            if self.sent.len() + pieces > self.depth.1.into() {
                break;
            }
            let first = &batch[count];
            let length = (first.len as usize).min(LONGEST);
            // Within its buffer: that was checked.
            if first.read(0, &mut self.frame[..length]).is_ok() {
                match sink::answer(&self.frame[..length], PEER) {
                    None => drop(self.peer(Some(length), now)),
                    answer => self.answer = answer,
                }
            }
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += u64::from(first.len);
            self.sent.extend(batch[count..count + pieces].iter_mut().map(mem::take));
            count += pieces;
        }
        self.acknowledge();
        Provided { count, refused: None }
    }

    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let count = self.sent.len().min(batch.len());
        batch.iter_mut().zip(self.sent.drain(..count)).for_each(|(place, packet)| *place = packet);
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        self.wake_on_tx = wake;
    }
}

impl Source for ReflectorQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.is_pending()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let pending = self.is_pending();
        self.waiter.arm(|| pending)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        Ok(self.peer(None, now))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let pending = self.is_pending();
        self.waiter.wait(deadline, || pending)
    }
}

/// A link that does not change.
struct Never(Waiter);

impl Source for Never {
    fn irq(&self) -> Option<&Irq> {
        self.0.irq()
    }

    fn pending(&self) -> bool {
        false
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.0.arm(|| false)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.0.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.0.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        self.0.wait(deadline, || false)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::{Direct, Method, measure};
    use super::*;
    use crate::report::Measurement;

    #[test]
    fn each_load_goes_through_a_card_that_answers_itself() {
        let card = Reflector::new(4 << 20).unwrap();
        let mut user =
            Direct::open(&card, Ipv4Addr::new(10, 9, 2, 1), Ipv4Addr::new(10, 9, 2, 2)).unwrap();
        let method = Method {
            time: Duration::from_millis(20),
            instruction_ns: None,
            soaker_step: None,
            cpus: 1,
        };
        for (id, name) in ["udp-64-echo-qd1", "udp-64-in", "udp-64-out", "udp-64-echo-qd32"]
            .into_iter()
            .enumerate()
        {
            let load = name.parse().unwrap();
            let into = Measurement::new(1, name, "tap-null");
            let measured = measure(&mut user, &load, id as u32, &method, None, into).unwrap();
            assert!(measured.values["packets_s"] > 0.0, "{name}: {measured:?}");
        }
    }

    #[test]
    fn its_queue_is_opened_once_at_a_time() {
        let card = Reflector::new(1 << 20).unwrap();
        let queue = card.open_queues(1, &QueueSettings::default()).unwrap();
        assert!(matches!(card.open_queues(1, &QueueSettings::default()), Err(Error::Busy(_))));
        drop(queue);
        assert!(card.open_queues(1, &QueueSettings::default()).is_ok());
    }
}
