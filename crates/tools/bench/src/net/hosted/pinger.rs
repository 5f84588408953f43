//! Whoever asks: a card of ring3's in this process, polled, that keeps so many packets under way.

use std::mem;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ring3_class::net::{Mac, Nic, Packet, Queue, sum};

use super::super::filled;
use super::super::frame::{HEADERS, Host, answer_arp, udp};
use super::{HostedLoad, Kind};
use crate::Error;

/// Packets of a batch, and under way.
const BATCH: usize = 32;
/// Buffers to send of.
const OWN: usize = 4 * BATCH;
/// Looks at an empty ring after which the clock is read.
const LOOK: u32 = 2048;
/// An answer that has not come within is lost.
const LOST: Duration = Duration::from_millis(200);
/// How long nobody may answer in the beginning: links come up, addresses are asked for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The services that are asked. [RFC 862, 863]
const ECHO: u16 = 7;
const DISCARD: u16 = 9;
/// A port of ours.
const PORT: u16 = 4007;

/// See the module.
pub struct Pinger<'a> {
    nic: &'a dyn Nic,
    queue: Box<dyn Queue>,
    me: Host,
    to: Host,
    batch: Box<[Packet]>,
    back: Box<[Packet]>,
    own: Vec<Packet>,
    /// Looks at an empty ring so far, and nanoseconds of one while nobody else wants the processor.
    looks: u64,
    step: f64,
}

impl<'a> Pinger<'a> {
    /// Opens a queue of `nic`, for nobody yet.
    pub fn open(nic: &'a dyn Nic) -> Result<Self, Error> {
        let (queue, own) = filled::open(nic, OWN, 0)?;
        let nobody = Host { mac: Mac::BROADCAST, ip: Ipv4Addr::UNSPECIFIED };
        let me = Host { mac: nic.info().mac, ip: Ipv4Addr::UNSPECIFIED };
        Ok(Self {
            nic,
            queue,
            me,
            to: nobody,
            batch: filled::places(BATCH),
            back: filled::places(BATCH),
            own,
            looks: 0,
            step: 0.0,
        })
    }

    /// Is the host `me` from now on, and asks the card `to`; returns when that has answered once.
    pub fn point(&mut self, me: Ipv4Addr, to: (Mac, Ipv4Addr)) -> Result<(), Error> {
        (self.me.ip, self.to) = (me, Host { mac: to.0, ip: to.1 });
        let (frame, start) = (self.echo_request(56), Instant::now());
        while start.elapsed() < PATIENCE {
            if self.ask(&frame)?.is_some() {
                return self.calibrate();
            }
        }
        Err(Error::Invalid(format!(
            "{} does not answer echo requests within {} s",
            to.1,
            PATIENCE.as_secs()
        )))
    }

    /// Learns how long a look takes at a ring to which nothing comes.
    fn calibrate(&mut self) -> Result<(), Error> {
        // What is still under way, and what is done behind it, is over then.
        self.receive(BATCH, 0, Instant::now())?;
        let (start, before) = (Instant::now(), self.looks);
        self.receive(BATCH, 0, start)?;
        self.step = start.elapsed().as_nanos() as f64 / (self.looks - before).max(1) as f64;
        Ok(())
    }

    /// How long nobody has wanted the processor, by the looks since there were so many.
    pub(super) fn idle_since(&self, looks: u64) -> Duration {
        Duration::from_nanos(((self.looks - looks) as f64 * self.step) as u64)
    }

    /// Sends echo requests with so many bytes one after the other; nanoseconds until each was
    /// answered, and how long nobody wanted the processor meanwhile. Who is not answered has no
    /// time.
    pub fn ping(&mut self, bytes: usize, samples: usize) -> Result<(Vec<u64>, Duration), Error> {
        let (frame, mut times) = (self.echo_request(bytes), Vec::with_capacity(samples));
        // The first find caches and rings as nobody after them does.
        for _ in 0..samples.min(64) {
            self.ask(&frame)?;
        }
        let mut idle = Duration::ZERO;
        for _ in 0..samples {
            let before = self.looks;
            if let Some(time) = self.ask(&frame)? {
                times.push(time.as_nanos() as u64);
                idle += self.idle_since(before);
            }
        }
        Ok((times, idle))
    }

    /// Keeps a batch of datagrams under way for `time`; how many were echoed or taken, how long it
    /// took, and how long nobody wanted the processor.
    pub fn stream(
        &mut self,
        load: &HostedLoad,
        time: Duration,
    ) -> Result<(u64, Duration, Duration), Error> {
        let place = |host, port| (host, port);
        let of = |port| udp(place(self.me, PORT), place(self.to, port), &vec![0x55; load.bytes]);
        let (echo, discard) = (of(ECHO), of(DISCARD));
        let (mut packets, mut warm) = (0, true);
        let (mut start, mut looks) = (Instant::now(), self.looks);
        loop {
            let answers = match load.kind {
                Kind::In => {
                    self.send(&discard, BATCH - 1)?;
                    self.send(&echo, 1)?;
                    1
                }
                _ => {
                    self.send(&echo, BATCH)?;
                    BATCH
                }
            };
            if self.receive(answers, ECHO, Instant::now())? < answers {
                return Err(Error::Invalid(format!(
                    "{load}: {} has lost a datagram of a batch of {BATCH}",
                    self.to.ip
                )));
            }
            packets += BATCH as u64;
            if start.elapsed() >= if warm { time / 4 } else { time } {
                if !warm {
                    return Ok((packets, start.elapsed(), self.idle_since(looks)));
                }
                (packets, warm, start, looks) = (0, false, Instant::now(), self.looks);
            }
        }
    }

    /// Sends an echo request and waits for the answer; `None` if it is lost.
    fn ask(&mut self, frame: &[u8]) -> Result<Option<Duration>, Error> {
        let start = Instant::now();
        self.send(frame, 1)?;
        let came = self.receive(1, 0, start)?;
        let time = start.elapsed();
        Ok((came == 1).then_some(time))
    }

    /// Sends `frame` so many times, with one write to the doorbell.
    fn send(&mut self, frame: &[u8], count: usize) -> Result<(), Error> {
        self.send_each(count, |packet| packet.fill(frame))
    }

    /// Sends so many frames that `fill` makes, with one write to the doorbell.
    pub(super) fn send_each(
        &mut self,
        count: usize,
        mut fill: impl FnMut(&mut Packet) -> Result<(), ring3_class::Error>,
    ) -> Result<(), Error> {
        let failed = |source| Error::Device { name: self.nic.name(), source };
        let back = self.queue.tx_return(&mut self.back).map_err(failed)?;
        self.own.extend(self.back[..back].iter_mut().map(mem::take));
        let from = self
            .own
            .len()
            .checked_sub(count)
            .ok_or_else(|| Error::Invalid(format!("{}: it sends nothing", self.nic.name())))?;
        for packet in &mut self.own[from..] {
            fill(packet).map_err(failed)?;
        }
        let sent = self.queue.tx_provide(&mut self.own[from..]).count;
        self.own.truncate(from);
        if sent < count {
            return Err(Error::Invalid(format!(
                "{}: it does not take {count} packets",
                self.nic.name()
            )));
        }
        Ok(())
    }

    /// Takes answers until there are `wanted`, or nothing has come for a while since `start`; how
    /// many came. Of datagrams, they are those from `port`; of ICMP, it is 0.
    fn receive(&mut self, wanted: usize, port: u16, start: Instant) -> Result<usize, Error> {
        let (mut came, mut looks) = (0, 0_u32);
        loop {
            let count = self
                .queue
                .rx_return(&mut self.batch)
                .map_err(|source| Error::Device { name: self.nic.name(), source })?;
            for at in 0..count {
                came += usize::from(self.look(at, port)?);
            }
            // There is room: they are what it has returned.
            let _ = self.queue.rx_provide(&mut self.batch[..count]);
            looks = looks.wrapping_add(1);
            self.looks += u64::from(count == 0);
            if came >= wanted || looks % LOOK == 0 && start.elapsed() > LOST {
                return Ok(came);
            }
            // QEMU looks at its devices at this hint.
            std::hint::spin_loop();
        }
    }

    /// Both ends, as they are now.
    pub(super) fn ends(&self) -> (Host, Host) {
        (self.me, self.to)
    }

    /// Looks once for what has come, and gives the first bytes of each frame of at least `LEN` to
    /// `look`; how many frames there were. Who asks for our address is told it.
    pub(super) fn heads<const LEN: usize>(
        &mut self,
        mut look: impl FnMut(&[u8; LEN]),
    ) -> Result<usize, Error> {
        let count = self
            .queue
            .rx_return(&mut self.batch)
            .map_err(|source| Error::Device { name: self.nic.name(), source })?;
        for at in 0..count {
            let mut head = [0; LEN];
            if self.batch[at].len as usize >= LEN && self.batch[at].read(0, &mut head).is_ok() {
                look(&head);
            }
            self.look(at, 0)?;
        }
        // There is room: they are what it has returned.
        let _ = self.queue.rx_provide(&mut self.batch[..count]);
        self.looks += u64::from(count == 0);
        if count == 0 {
            std::hint::spin_loop();
        }
        Ok(count)
    }

    /// Looks at an empty ring so far.
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether a packet of the batch is an answer. Who asks for our address is told it.
    fn look(&mut self, at: usize, port: u16) -> Result<bool, Error> {
        let mut head = [0; HEADERS];
        if (self.batch[at].len as usize) < HEADERS || self.batch[at].read(0, &mut head).is_err() {
            return Ok(false);
        }
        if head[12..14] == [8, 0] {
            let is_ours =
                head[30..34] == self.me.ip.octets() && head[26..30] == self.to.ip.octets();
            let is_answer = match port {
                0 => head[23] == 1 && head[34] == 0,
                port => head[23] == 17 && head[34..36] == port.to_be_bytes(),
            };
            return Ok(is_ours && is_answer);
        }
        if head[38..42] == self.me.ip.octets()
            && let Some(answer) = answer_arp(&head, self.me.mac)
        {
            self.send(&answer, 1)?;
        }
        Ok(false)
    }

    fn echo_request(&self, bytes: usize) -> Vec<u8> {
        let mut request = vec![0x55; 8 + bytes];
        request[..8].copy_from_slice(&[8, 0, 0, 0, 0, 7, 0, 1]);
        let check = !sum(&request);
        request[2..4].copy_from_slice(&check.to_be_bytes());
        // A datagram has the same headers before it, but for the protocol.
        let mut frame = udp((self.me, 0), (self.to, 0), &request[8..]);
        frame[34..42].copy_from_slice(&request[..8]);
        (frame[23], frame[24], frame[25]) = (1, 0, 0);
        let check = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ring3_class::net::Cable;

    use ring3_class::net::QueueSettings;

    use super::*;

    /// Whoever turns frames around at the other end of a cable in memory, until `stop`.
    fn reflect(end: &dyn Nic, stop: &AtomicBool) {
        let mut queue = end.open_queues(1, &QueueSettings::default()).unwrap().remove(0);
        let buffer = || Packet::new(end.dma().arena().alloc(2048, 64).unwrap(), 0);
        assert_eq!(
            queue.rx_provide(&mut (0..128).map(|_| buffer()).collect::<Vec<_>>()).count,
            128
        );
        while !stop.load(Ordering::Relaxed) {
            let mut batch: [Packet; 32] = std::array::from_fn(|_| Packet::default());
            let count = queue.rx_return(&mut batch).unwrap();
            for packet in &mut batch[..count] {
                let mut frame = vec![0; packet.len as usize];
                packet.read(0, &mut frame).unwrap();
                let is_echo = frame[23] == 1 || frame[36..38] == ECHO.to_be_bytes();
                let ends = [
                    &frame[6..12],
                    &frame[..6],
                    &frame[12..26],
                    &frame[30..34],
                    &frame[26..30],
                    &frame[36..38],
                    &frame[34..36],
                ];
                let mut back = [&ends.concat(), &frame[38..]].concat();
                if frame[23] == 1 {
                    back[34..38].copy_from_slice(&[0, 0, 0, 0]);
                }
                if is_echo {
                    let mut answer = buffer();
                    answer.fill(&back).unwrap();
                    assert_eq!(queue.tx_provide(&mut [answer]).count, 1);
                    assert_eq!(queue.tx_return(&mut [Packet::default()]).unwrap(), 1);
                }
                assert_eq!(queue.rx_provide(std::slice::from_mut(packet)).count, 1);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_load_goes_there_and_back() {
        let (_cable, here, there) = Cable::new(4 << 20).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| reflect(&there, &stop));
            let mut pinger = Pinger::open(&here).unwrap();
            pinger
                .point(Ipv4Addr::new(10, 9, 0, 2), (there.info().mac, Ipv4Addr::new(10, 9, 0, 1)))
                .unwrap();
            let (times, _) = pinger.ping(1472, 20).unwrap();
            assert_eq!(times.len(), 20);
            for kind in [Kind::Echo, Kind::In] {
                let (packets, elapsed, _) = pinger
                    .stream(&HostedLoad { kind, bytes: 1472 }, Duration::from_millis(20))
                    .unwrap();
                assert!(packets >= 32 && elapsed >= Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
