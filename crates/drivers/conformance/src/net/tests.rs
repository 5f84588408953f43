//! The suite passes cards that are right, and names what is wrong with one that is not.

use std::mem;
use std::sync::Mutex;
use std::time::Instant;

use super::*;
use ring3_class::net::{
    Cable, Checksum, Counters, End, Filter, Info, Link, Packet, Provided, Queue, QueueSettings,
};
use ring3_class::{Error, Saved};
use ring3_device::Deadline;
use ring3_device::dma::Dma;
use ring3_device::irq::Irq;
use ring3_device::wait::Source;

#[test]
fn two_cards_in_memory_conform() {
    let (cable, card, other) = Cable::new(4 << 20).unwrap();
    let options = Options { packets: 320, silence: Duration::from_millis(2), ..Options::default() };
    let report = run(&card, &mut Peer::new(&other, Some(&cable)).unwrap(), &options);
    assert!(report.passed(), "{report}");
    // What a cable does not do: cutting.
    assert_eq!(report.skipped(), 1, "{report}");
}

#[test]
fn every_check_has_its_own_sentence() {
    let mut names: Vec<_> = checks().map(|check| check.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), checks().count());
}

/// What is wrong with a card.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    LosesAPacket,
    SendsTwice,
    Reorders,
    CutsABuffer,
    LetsEverythingThrough,
    ForgetsABuffer,
    TakesNonsense,
    SaysEveryChecksumIsRight,
    ForgetsTags,
    NeverCountsMissed,
    OpensTwice,
    HidesTheLink,
    WaitsTooShort,
    ResumesAnything,
    SendsAsItself,
}

struct Faulty {
    card: End,
    fault: Fault,
}

impl Nic for Faulty {
    fn name(&self) -> String {
        format!("{:?}", self.fault)
    }
    fn info(&self) -> &Info {
        self.card.info()
    }
    fn dma(&self) -> &Dma {
        self.card.dma()
    }
    fn link(&self) -> Result<Link, Error> {
        let link = self.card.link()?;
        Ok(Link { up: link.up || self.fault == Fault::HidesTheLink, ..link })
    }
    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        self.card.link_watch()
    }
    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        let promiscuous = filter.promiscuous || self.fault == Fault::LetsEverythingThrough;
        self.card.set_filter(&Filter { promiscuous, ..filter.clone() })
    }
    fn counters(&self) -> Result<Counters, Error> {
        let counters = self.card.counters()?;
        Ok(if self.fault == Fault::NeverCountsMissed {
            Counters { rx_missed: 0, ..counters }
        } else {
            counters
        })
    }
    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        match self.card.open_queues(count, settings) {
            Err(Error::Busy(_)) if self.fault == Fault::OpensTwice => Ok(Vec::new()),
            opened => self.around(opened?),
        }
    }
    fn resume_queues(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        match self.card.resume_queues(saved) {
            Err(_) if self.fault == Fault::ResumesAnything => Ok(Vec::new()),
            resumed => self.around(resumed?),
        }
    }
}

impl Faulty {
    fn around(&self, queues: Vec<Box<dyn Queue>>) -> Result<Vec<Box<dyn Queue>>, Error> {
        let around =
            |inner| Box::new(FaultyQueue { inner, fault: self.fault, seen: 0 }) as Box<dyn Queue>;
        Ok(queues.into_iter().map(around).collect())
    }
}

/// A card in memory that counts late: what a check with long buffers has lost is seen in a later
/// one.
struct Late {
    card: End,
    /// Looks at the counters since there were long buffers, and the first of them.
    looks: Mutex<Option<(u32, Instant)>>,
}

impl Nic for Late {
    fn name(&self) -> String {
        "late".into()
    }
    fn info(&self) -> &Info {
        self.card.info()
    }
    fn dma(&self) -> &Dma {
        self.card.dma()
    }
    fn link(&self) -> Result<Link, Error> {
        self.card.link()
    }
    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        self.card.link_watch()
    }
    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.card.set_filter(filter)
    }
    fn counters(&self) -> Result<Counters, Error> {
        let counters = self.card.counters()?;
        let mut state = self.looks.lock().unwrap();
        let Some((looks, first)) = *state else { return Ok(counters) };
        let first = if looks == 0 { Instant::now() } else { first };
        *state = Some((looks + 1, first));
        let counted = looks >= 2 || first.elapsed() >= Duration::from_millis(200);
        Ok(Counters { rx_missed: counters.rx_missed + u64::from(counted), ..counters })
    }
    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        let mut state = self.looks.lock().unwrap();
        if settings.rx_room == 4096 && state.is_none() {
            *state = Some((0, Instant::now()));
        }
        self.card.open_queues(count, settings)
    }
    fn resume_queues(&self, saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.card.resume_queues(saved)
    }
}

#[test]
fn what_an_earlier_check_has_lost_may_be_counted_late() {
    let (cable, card, other) = Cable::new(4 << 20).unwrap();
    let card = Late { card, looks: Mutex::new(None) };
    let options = Options { packets: 64, silence: Duration::from_millis(2), ..Options::default() };
    let report = run(&card, &mut Peer::new(&other, Some(&cable)).unwrap(), &options);
    assert!(report.passed(), "{report}");
    assert!(card.looks.lock().unwrap().is_some(), "no check had long buffers");
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    fault: Fault,
    seen: u32,
}

impl Queue for FaultyQueue {
    fn depth(&self) -> (u16, u16) {
        self.inner.depth()
    }
    fn outstanding(&self) -> (u16, u16) {
        self.inner.outstanding()
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        self.inner.rx_provide(batch)
    }
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let count = self.inner.rx_return(batch)?;
        for packet in &mut batch[..count] {
            self.seen += 1;
            match self.fault {
                Fault::SaysEveryChecksumIsRight => {
                    packet.meta = packet.meta.with_checksum(Checksum::Valid)
                }
                Fault::ForgetsTags => packet.meta = packet.meta.with_vlan(None),
                Fault::CutsABuffer if packet.len > 1000 => packet.len -= 1,
                _ => {}
            }
        }
        Ok(count)
    }
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        self.seen += 1;
        if self.fault == Fault::Reorders && batch.len() > 2 {
            batch.swap(0, 1);
        }
        if self.fault == Fault::LosesAPacket && self.seen.is_multiple_of(7) {
            batch
                .iter()
                .for_each(|packet| packet.write(0, &[2, 0, 0, 0, 0, 7]).unwrap_or_default());
        }
        if self.fault == Fault::SendsAsItself {
            batch
                .iter()
                .filter(|packet| packet.len >= 14)
                .for_each(|packet| packet.write(6, &[2, 0, 0, 0, 0, 1]).unwrap_or_default());
        }
        match self.inner.tx_provide(batch) {
            Provided { count: 0, refused: Some(_) } if self.fault == Fault::TakesNonsense => {
                Provided { count: 1, refused: None }
            }
            provided => provided,
        }
    }
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let count = self.inner.tx_return(batch)?;
        if self.fault == Fault::SendsTwice && count > 0 {
            let again = mem::take(&mut batch[count - 1]);
            let _ = self.inner.tx_provide(&mut [again]);
            return Ok(count - 1);
        }
        if self.fault == Fault::ForgetsABuffer
            && let Some(packet) = batch.first_mut().filter(|_| count > 0)
        {
            mem::take(packet).abandon();
        }
        Ok(count)
    }
    fn wake_on_tx(&mut self, wake: bool) {
        self.inner.wake_on_tx(wake);
    }
    fn detach(&mut self) -> Result<Saved, Error> {
        self.inner.detach()
    }
}

impl Source for FaultyQueue {
    fn irq(&self) -> Option<&Irq> {
        self.inner.irq()
    }
    fn pending(&self) -> bool {
        self.inner.pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        self.inner.arm()
    }
    fn disarm(&mut self) -> Result<(), Error> {
        self.inner.disarm()
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.inner.tick(now)
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let early = self.fault == Fault::WaitsTooShort;
        self.inner.wait(if early { Deadline::after(Duration::ZERO) } else { deadline })
    }
}

#[test]
fn a_card_with_a_fault_is_found_out() {
    let faults = [
        (Fault::LosesAPacket, "frames of 60 to 1,514"),
        (Fault::SendsTwice, "frames of 60 to 1,514"),
        (Fault::Reorders, "packets that are sent come out in order"),
        (Fault::CutsABuffer, "frames of 60 to 1,514"),
        (Fault::LetsEverythingThrough, "for the card and for everybody"),
        (Fault::ForgetsABuffer, "every buffer comes back"),
        (Fault::TakesNonsense, "that make no sense are refused"),
        (Fault::SaysEveryChecksumIsRight, "never"),
        (Fault::ForgetsTags, "a tag on the wire"),
        (Fault::NeverCountsMissed, "lost and counted"),
        (Fault::OpensTwice, "queues are opened once"),
        (Fault::HidesTheLink, "a link that goes"),
        (Fault::WaitsTooShort, "a wait ends"),
        (Fault::ResumesAnything, "is resumed once"),
        (Fault::SendsAsItself, "what is sent from another address"),
    ];
    let options = Options {
        packets: 64,
        patience: Duration::from_millis(20),
        silence: Duration::from_millis(2),
        ..Options::default()
    };
    for (fault, sentence) in faults {
        let (cable, card, other) = Cable::new(4 << 20).unwrap();
        let report =
            run(&Faulty { card, fault }, &mut Peer::new(&other, Some(&cable)).unwrap(), &options);
        assert!(
            report.failures().any(|finding| finding.name.contains(sentence)),
            "{fault:?}\n{report}"
        );
    }
}
