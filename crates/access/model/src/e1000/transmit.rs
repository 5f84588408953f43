//! The way of a frame that goes: descriptors, checksums, segments, the wire. [82574 7.2, 7.3]

use ring3_spec::e1000::interrupt::Causes;
use ring3_spec::e1000::transmit::{self, Context, ContextPlaces, Data, Legacy, command};
use ring3_spec::e1000::{
    FCS_BYTES, MAX_FRAME, SHORTEST_FRAME, general, receive, statistics as stats,
};

use super::controller::{E1000Model, Late};
use super::descriptor::{Place, Ring};
use super::{FAULT_SEND, filter, offload};
use crate::fault::{Action, Event};
use crate::{Bus, Timing};

/// Most bytes that one send may gather: a large send with its headers.
const MOST: usize = transmit::MAX_SEND + 256;

/// One transmit queue.
#[derive(Default)]
pub(super) struct Sender {
    context: Option<(ContextPlaces, Context)>,
    /// What was gathered of a frame, and what its first descriptor asks for.
    frame: Vec<u8>,
    first: Option<Data>,
    /// It does nothing until a reset.
    pub(super) hung: bool,
    /// It does nothing until it is released.
    pub(super) paused: bool,
    /// The frame at hand has met its fault.
    excused: bool,
}

impl E1000Model {
    fn may_send(&self, queue: usize) -> bool {
        let (enabled, sender) =
            (self.registers.get(transmit::CONTROL).enable() != 0, &self.senders[queue]);
        enabled
            && self.linked
            && !sender.hung
            && !sender.paused
            && !self.is_in_reset()
            && self.wire.has_room()
    }

    /// The tail has moved.
    pub(super) fn kick(&mut self, bus: &Bus, queue: u32) {
        match self.shape.timing {
            Timing::Inline => self.send(bus, queue),
            timing => {
                self.senders[queue as usize].paused = true;
                self.hold(bus, Late::Send(queue), timing);
            }
        }
    }

    /// Sends what there is, as long as the wire takes it.
    pub(super) fn send(&mut self, bus: &Bus, queue: u32) {
        let ring = Ring::transmit(queue);
        let (mut causes, mut unlucky) = (Causes::NONE, None);
        while self.may_send(queue as usize)
            && !bus.is_removed()
            && let Some(place) = ring.place(&self.registers).filter(|place| place.available() > 0)
        {
            let (Ok(address), Ok(word)) = (bus.load(place.iova()), bus.load(place.iova() + 8))
            else {
                // A card that cannot reach its memory cannot go on. [82574 7.8]
                self.senders[queue as usize].hung = true;
                break;
            };
            let fault = self.meet(bus, queue, word);
            if self.senders[queue as usize].paused
                || self.senders[queue as usize].hung
                || !self.apply_fault(bus, fault)
            {
                break;
            }
            if !self.take(bus, queue as usize, (address, word), fault) {
                self.senders[queue as usize].hung = true;
                break;
            }
            ring.advance(&mut self.registers, place);
            causes = causes.with_transmit_empty((place.available() == 1).into());
            if Data(word).command() & command::REPORT != 0 && fault != Some(Action::Drop) {
                self.report(bus, place, word, fault);
                causes = causes.with_sent(1).with_transmit_queues(1 << queue);
            }
            unlucky = unlucky.or(fault);
        }
        self.wire.flush();
        if causes != Causes::NONE {
            self.cause_with(bus, causes, unlucky);
        }
        while let Some(frame) = self.looped.pop_front().or_else(|| self.wire.take_mirrored()) {
            self.arrive(bus, frame);
        }
    }

    /// What goes wrong with the frame that ends here.
    fn meet(&mut self, bus: &Bus, queue: u32, word: u64) -> Option<Action> {
        if Data(word).command() & command::END == 0 || is_context(word) {
            return None;
        }
        if std::mem::take(&mut self.senders[queue as usize].excused) {
            return None;
        }
        let event = Event::Command { queue: queue as u16 + 1, opcode: FAULT_SEND, blocks: None };
        let fault = self.faults.check(&event);
        let sender = &mut self.senders[queue as usize];
        match fault {
            Some(Action::Hang) => sender.hung = true,
            Some(Action::Delay(time)) => {
                (sender.paused, sender.excused) = (true, true);
                self.hold(bus, Late::Send(queue), Timing::After(time));
            }
            _ => {}
        }
        fault
    }

    /// Does what a descriptor says; false if the card cannot.
    fn take(
        &mut self,
        bus: &Bus,
        queue: usize,
        (address, word): (u64, u64),
        fault: Option<Action>,
    ) -> bool {
        let data = Data(word);
        let extended = data.command() & command::EXTENDED != 0;
        if is_context(word) {
            let busy = !self.senders[queue].frame.is_empty();
            self.must(!busy, "a context descriptor in the middle of a frame [82574 7.2]");
            self.senders[queue].context = Some((ContextPlaces(address), Context(word)));
            return true;
        }
        if extended && data.kind() != Data::TYPE {
            self.must(false, "a transmit descriptor with a reserved DTYP [82574 7.2]");
            return false;
        }
        let length = if extended { data.length() } else { Legacy(word).length() } as usize;
        self.must(length > 0, "a transmit descriptor without bytes [82574 7.2]");
        let sender = &mut self.senders[queue];
        let start = sender.frame.len();
        if start + length > MOST {
            self.must(false, "a send of more bytes than there can be [82574 7.3]");
            return false;
        }
        sender.frame.resize(start + length, 0);
        if bus.read(address, &mut sender.frame[start..]).is_err() {
            return false;
        }
        sender.first.get_or_insert(data);
        if data.command() & command::END != 0 {
            self.finish(queue, word, fault);
        }
        true
    }

    /// The frame is complete.
    fn finish(&mut self, queue: usize, last: u64, fault: Option<Action>) {
        let sender = &mut self.senders[queue];
        let (mut frame, first) =
            (std::mem::take(&mut sender.frame), sender.first.take().unwrap_or(Data(last)));
        let context = sender.context;
        if fault == Some(Action::Corrupt) {
            frame[0] = !frame[0];
        }
        let tag = (first.command() & command::VLAN != 0).then(|| first.vlan() as u16);
        if first.command() & command::EXTENDED == 0 {
            let legacy = Legacy(last);
            if legacy.command() & command::CHECKSUM != 0 {
                let done = offload::insert(
                    &mut frame,
                    legacy.checksum_start() as usize,
                    legacy.checksum_offset() as usize,
                    0,
                );
                self.must(done, "a checksum outside of its frame [82574 7.2]");
            }
            return self.emit(frame, tag);
        }
        let (places, context) = context.unwrap_or_default();
        if first.command() & command::SEGMENTATION == 0 {
            self.insert(&mut frame, first, places);
            return self.emit(frame, tag);
        }
        let Some(frames) =
            offload::segment(&frame, places, context).filter(|_| context.segmentation() != 0)
        else {
            return self.must(false, "a large send that is not as its context says [82574 7.3]");
        };
        self.registers.count(stats::LARGE_SENDS);
        for mut frame in frames {
            self.insert(&mut frame, first, places);
            self.emit(frame, tag);
        }
    }

    /// The checksums that a data descriptor asks for.
    fn insert(&mut self, frame: &mut [u8], data: Data, places: ContextPlaces) {
        let mut done = true;
        if data.insert_ip() != 0 {
            done &= offload::insert(
                frame,
                places.ip_start() as usize,
                places.ip_offset() as usize,
                places.ip_end() as usize,
            );
        }
        if data.insert_transport() != 0 {
            let (start, offset) =
                (places.transport_start() as usize, places.transport_offset() as usize);
            done &= offload::insert(frame, start, offset, places.transport_end() as usize);
        }
        self.must(done, "a checksum outside of its frame [82574 7.2]");
    }

    /// Puts a frame on the wire.
    fn emit(&mut self, mut frame: Vec<u8>, tag: Option<u16>) {
        if let Some(tag) =
            tag.filter(|_| self.registers.get(general::CONTROL).vlan() != 0 && frame.len() >= 12)
        {
            filter::insert(&self.registers, &mut frame, tag);
        }
        let shortest = SHORTEST_FRAME - FCS_BYTES;
        if frame.len() < shortest && self.registers.get(transmit::CONTROL).pad() != 0 {
            frame.resize(shortest, 0);
        }
        if frame.len() < shortest || frame.len() + FCS_BYTES > MAX_FRAME {
            return self
                .must(false, "a frame that is too short or too long for the wire [802.3 3.2.7]");
        }
        self.registers.count(stats::SENT);
        self.registers.count(stats::TOTAL_SENT);
        let bytes = (frame.len() + FCS_BYTES) as u64;
        self.registers.count_bytes(stats::SENT_BYTES_LOW, stats::SENT_BYTES_HIGH, bytes);
        if frame[..6] == [0xff; 6] {
            self.registers.count(stats::SENT_BROADCAST);
        } else if frame[0] & 1 != 0 {
            self.registers.count(stats::SENT_MULTICAST);
        }
        if self.registers.get(receive::CONTROL).loopback() == 1 {
            return self.looped.push_back(frame);
        }
        self.wire.send(frame);
    }

    /// Says in the descriptor that it is done.
    fn report(&mut self, bus: &Bus, place: Place, word: u64, fault: Option<Action>) {
        let word =
            if fault == Some(Action::Garbage) { u64::MAX } else { Data(word).with_done(1).0 };
        // The descriptor was just read there.
        let _ = bus.store(place.iova() + 8, word);
    }

    fn must(&mut self, kept: bool, rule: &str) {
        if !kept {
            self.record_violation(rule.into());
        }
    }
}

fn is_context(word: u64) -> bool {
    Data(word).command() & command::EXTENDED != 0 && Data(word).kind() == 0
}
