//! The way of a frame that comes: filters, packet buffer, descriptors. [82574 7.1]

use ring3_spec::e1000::interrupt::Causes;
use ring3_spec::e1000::receive::{self, Extended, Legacy, error, status};
use ring3_spec::e1000::{FCS_BYTES, MAX_FRAME, SHORTEST_FRAME, general, statistics as stats};

use super::controller::{E1000Model, Late};
use super::descriptor::{Place, Ring};
use super::{FAULT_RECEIVE, filter, offload};
use crate::fault::{Action, Event};
use crate::{Blocked, Bus, Timing};

/// Longest frame without RCTL.LPE, a tag and the FCS included. [82574 10.2.5]
const LONGEST: usize = 1522;
const RING: Ring = Ring::receive(0);

impl E1000Model {
    /// A frame comes, without its FCS.
    pub(super) fn arrive(&mut self, bus: &Bus, frame: Vec<u8>) {
        let control = self.registers.get(receive::CONTROL);
        if !self.linked || control.enable() == 0 || self.is_in_reset() {
            return;
        }
        self.registers.count(stats::TOTAL_RECEIVED);
        let longest = if control.long_packets() != 0 { MAX_FRAME } else { LONGEST };
        if frame.len() + FCS_BYTES < SHORTEST_FRAME {
            return self.registers.count(stats::UNDERSIZE);
        }
        if frame.len() + FCS_BYTES > longest {
            return self.registers.count(stats::OVERSIZE);
        }
        let Some(exact) = filter::passes(&self.registers, &frame) else { return };
        self.count_received(&frame);
        let room = self.registers.get(general::PACKET_BUFFER).receive_kib() as usize * 1024;
        let used: usize = self.buffered.iter().map(|(frame, _)| frame.len()).sum();
        if used + frame.len() > room {
            self.registers.count(stats::MISSED);
            return self.cause(bus, Causes::NONE.with_overrun(1));
        }
        self.buffered.push_back((frame, exact));
        self.store(bus, false);
    }

    fn count_received(&mut self, frame: &[u8]) {
        self.registers.count(stats::RECEIVED);
        let bytes = (frame.len() + FCS_BYTES) as u64;
        self.registers.count_bytes(stats::RECEIVED_BYTES_LOW, stats::RECEIVED_BYTES_HIGH, bytes);
        if frame[..6] == [0xff; 6] {
            self.registers.count(stats::RECEIVED_BROADCAST);
        } else if frame[0] & 1 != 0 {
            self.registers.count(stats::RECEIVED_MULTICAST);
        }
    }

    /// Moves frames from the packet buffer to memory, as long as there are descriptors. The first
    /// has met its fault if it is `excused`.
    pub(super) fn store(&mut self, bus: &Bus, mut excused: bool) {
        let control = self.registers.get(receive::CONTROL);
        if control.enable() == 0 || self.receiver_failed || self.is_in_reset() {
            return;
        }
        let Some(bytes) = control.buffer_bytes() else {
            return self.record_violation("RCTL.BSIZE has a reserved value [82574 10.2.5]".into());
        };
        while let Some((frame, _)) = self.buffered.front() {
            let fcs = if control.strip_fcs() == 0 { FCS_BYTES } else { 0 };
            let needed = (frame.len() + fcs).div_ceil(bytes) as u32;
            if RING.place(&self.registers).is_none_or(|place| place.available() < needed) {
                return self.registers.count(stats::NO_BUFFER);
            }
            let Some((frame, exact)) = self.buffered.pop_front() else { return };
            let event = Event::Command { queue: 1, opcode: FAULT_RECEIVE, blocks: None };
            let fault = if std::mem::take(&mut excused) { None } else { self.faults.check(&event) };
            match fault {
                Some(Action::Delay(time)) => {
                    self.hold(bus, Late::Frame(frame, exact), Timing::After(time))
                }
                Some(Action::Hang) => self.receiver_failed = true,
                _ if !self.apply_fault(bus, fault) => {}
                // A card that cannot reach its memory cannot go on. [82574 7.8]
                _ if self.fill(bus, frame, bytes, (exact, fault)).is_err() => {
                    self.receiver_failed = true
                }
                _ => self.announce(bus, fault),
            }
            if self.receiver_failed || bus.is_removed() {
                return;
            }
        }
    }

    fn announce(&mut self, bus: &Bus, fault: Option<Action>) {
        let threshold = self.registers.get(receive::CONTROL).low_threshold().min(2) + 1;
        let few = RING
            .place(&self.registers)
            .is_some_and(|place| place.available() < place.size >> threshold);
        let causes =
            Causes::NONE.with_received(1).with_receive_queues(1).with_receive_low(few.into());
        self.cause_with(bus, causes, fault);
    }

    /// Writes a frame and its descriptors.
    fn fill(
        &mut self,
        bus: &Bus,
        mut frame: Vec<u8>,
        bytes: usize,
        (exact, fault): (bool, Option<Action>),
    ) -> Result<(), Blocked> {
        let (what, tag) = self.describe(&mut frame, exact);
        if self.registers.get(receive::CONTROL).strip_fcs() == 0 {
            frame.extend(offload::fcs(&frame));
        }
        if fault == Some(Action::Corrupt) {
            frame[0] = !frame[0];
        }
        let count = frame.len().div_ceil(bytes);
        for (number, part) in frame.chunks(bytes).enumerate() {
            let Some(place) = RING.place(&self.registers) else { return Ok(()) };
            let buffer = bus.load(place.iova())?;
            bus.write(buffer, part)?;
            let last = number + 1 == count;
            let status = if last { what | status::DONE | status::END } else { status::DONE };
            let length = match fault {
                Some(Action::WrongLength(bits)) => part.len() as u64 ^ u64::from(bits),
                _ => part.len() as u64,
            };
            self.write_back(
                bus,
                place,
                Extended(0).with_status(status).with_length(length).with_vlan(tag.into()),
                fault,
            )?;
            RING.advance(&mut self.registers, place);
        }
        Ok(())
    }

    /// Status and error bits of a frame, and its tag, which is taken out of it.
    fn describe(&self, frame: &mut Vec<u8>, exact: bool) -> (u64, u16) {
        let mut what = if exact { 0 } else { status::INEXACT };
        let mut tag = 0;
        if self.registers.get(general::CONTROL).vlan() != 0
            && let Some(found) = filter::tag(&self.registers, frame)
        {
            filter::strip(frame);
            what |= status::VLAN;
            tag = found;
        }
        let (checked, wanted) = (offload::check(frame), self.registers.get(receive::CHECKSUM));
        let ip = checked.ip.filter(|_| wanted.ip() != 0);
        let transport = checked.transport.filter(|_| wanted.transport() != 0);
        if let Some(good) = ip {
            what |= status::IP | if good { 0 } else { error::IP };
        }
        if let Some((protocol, good)) = transport {
            what |= status::TCP | if good { 0 } else { error::TRANSPORT };
            what |= if protocol == offload::UDP { status::UDP } else { 0 };
        }
        (if ip.is_none() && transport.is_none() { what | status::UNCHECKED } else { what }, tag)
    }

    /// Writes a descriptor back in the form that RFCTL asks for. [82574 7.1.3, 7.1.4]
    fn write_back(
        &self,
        bus: &Bus,
        place: Place,
        extended: Extended,
        fault: Option<Action>,
    ) -> Result<(), Blocked> {
        let iova = place.iova();
        let word = match fault {
            Some(Action::Drop) => return Ok(()),
            Some(Action::Garbage) => u64::MAX,
            _ if self.registers.get(receive::FILTER_CONTROL).extended() != 0 => {
                bus.store(iova, 0)?;
                extended.0
            }
            _ => {
                let legacy = Legacy(0).with_length(extended.length()).with_vlan(extended.vlan());
                legacy.with_status(extended.status()).with_errors(extended.status() >> 24).0
            }
        };
        bus.store(iova + 8, word)
    }
}
