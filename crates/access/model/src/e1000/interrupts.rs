//! From causes to messages and the pin, not more often than allowed. [82574 7.4]

use std::time::{Duration, Instant};

use ring3_device::irq::IrqKind;
use ring3_spec::e1000::MSIX_VECTORS;
use ring3_spec::e1000::general;
use ring3_spec::e1000::interrupt::{self, Causes, Throttle, Vectors};

use super::controller::{E1000Model, Late};
use crate::fault::Action;
use crate::{Bus, Timing};

/// Causes that are told as OTHER with MSI-X. [82574 7.4.2]
const OTHERS: u32 = Causes::NONE.with_link(1).with_overrun(1).with_mdi(1).0;
const OTHER: u32 = Causes::NONE.with_other(1).0;
/// Interrupts that a storm sends at a time.
const STORM_BURST: u32 = 8192;

/// When each vector may interrupt again, and which want to.
#[derive(Default)]
pub(super) struct Moderation {
    next: [Option<Instant>; MSIX_VECTORS as usize],
    wanting: u8,
}

impl E1000Model {
    fn is_msix(bus: &Bus) -> bool {
        bus.interrupts.kind() == Some(IrqKind::MsiX)
    }

    fn active(&self) -> u32 {
        self.registers.get(interrupt::CAUSE).0 & self.registers.get(interrupt::MASK_SET).0
    }

    /// Sets causes.
    pub(super) fn cause(&mut self, bus: &Bus, causes: Causes) {
        let mut all = self.registers.get(interrupt::CAUSE).0 | causes.0;
        if Self::is_msix(bus) && all & OTHERS & self.registers.get(interrupt::MASK_SET).0 != 0 {
            all |= OTHER;
        }
        self.registers.set(interrupt::CAUSE, Causes(all));
        let fresh = if causes.0 & OTHERS != 0 { causes.0 | OTHER } else { causes.0 };
        self.raise_active(bus, fresh);
    }

    /// The same, as a fault of the frame wants it.
    pub(super) fn cause_with(&mut self, bus: &Bus, causes: Causes, fault: Option<Action>) {
        match fault {
            Some(Action::LoseInterrupt) => {
                let all = self.registers.get(interrupt::CAUSE).0 | causes.0;
                self.registers.set(interrupt::CAUSE, Causes(all));
            }
            Some(Action::LateInterrupt(delay)) => {
                self.hold(bus, Late::Causes(causes), Timing::After(delay))
            }
            Some(Action::Storm(count)) => {
                self.cause(bus, causes);
                self.storm = Some((0, count));
                bus.wake_at(Instant::now());
            }
            _ => self.cause(bus, causes),
        }
    }

    /// IMS: what was waiting under the mask comes now.
    pub(super) fn unmask(&mut self, bus: &Bus, causes: Causes) {
        let mask = self.registers.get(interrupt::MASK_SET).0 | causes.0;
        self.registers.set(interrupt::MASK_SET, Causes(mask));
        if Self::is_msix(bus) && self.registers.get(interrupt::CAUSE).0 & OTHERS & mask != 0 {
            let all = self.registers.get(interrupt::CAUSE).0 | OTHER;
            self.registers.set(interrupt::CAUSE, Causes(all));
        }
        self.raise_active(bus, causes.0);
    }

    /// IMC.
    pub(super) fn mask(&mut self, bus: &Bus, causes: Causes) {
        let mask = self.registers.get(interrupt::MASK_SET).0 & !causes.0;
        self.registers.set(interrupt::MASK_SET, Causes(mask));
        self.release_pin(bus);
    }

    /// ICR, read: with MSI-X it clears nothing. [82574 10.2.4]
    pub(super) fn read_causes(&mut self, bus: &Bus) -> u32 {
        let asserted = self.active() != 0;
        let causes = self.registers.get(interrupt::CAUSE).with_asserted(asserted.into());
        if !Self::is_msix(bus) {
            self.acknowledge(bus, Causes::ALL);
        }
        causes.0
    }

    /// ICR, written: ones clear.
    pub(super) fn acknowledge(&mut self, bus: &Bus, causes: Causes) {
        let left = self.registers.get(interrupt::CAUSE).0 & !causes.0;
        self.registers.set(interrupt::CAUSE, Causes(left));
        self.release_pin(bus);
    }

    fn release_pin(&self, bus: &Bus) {
        if self.active() == 0 {
            bus.set_level(false);
        }
    }

    /// Raises interrupts for those of `fresh` that are active.
    fn raise_active(&mut self, bus: &Bus, fresh: u32) {
        let active = self.active() & fresh;
        if active == 0 {
            return;
        }
        if !Self::is_msix(bus) {
            return self.want(bus, 0);
        }
        for vector in 0..MSIX_VECTORS {
            if active & self.causes_of(vector) != 0 {
                self.want(bus, vector);
            }
        }
    }

    /// IVAR, by vector.
    fn causes_of(&self, vector: u16) -> u32 {
        let vectors = self.registers.get(interrupt::VECTORS);
        let fields = [
            vectors.receive0(),
            vectors.receive1(),
            vectors.transmit0(),
            vectors.transmit1(),
            vectors.other(),
        ];
        let first = OTHER.trailing_zeros() - 4;
        let has = |(bit, field): (u32, u32)| {
            u32::from(field == Vectors::VALID | u32::from(vector)) << bit
        };
        (first..).zip(fields).map(has).fold(0, |all, bit| all | bit)
    }

    fn interval(&self, bus: &Bus, vector: u16) -> Duration {
        let register = if Self::is_msix(bus) {
            interrupt::vector_throttle(vector.into())
        } else {
            interrupt::THROTTLE
        };
        Duration::from_nanos(
            u64::from(self.registers.get(register).interval()) * Throttle::UNIT_NANOS,
        )
    }

    /// An interrupt now, or as soon as the last is long enough ago.
    fn want(&mut self, bus: &Bus, vector: u16) {
        match self.moderation.next[usize::from(vector)] {
            Some(next) if next > Instant::now() => {
                self.moderation.wanting |= 1 << vector;
                bus.wake_at(next);
            }
            _ => self.interrupt(bus, vector),
        }
    }

    fn interrupt(&mut self, bus: &Bus, vector: u16) {
        self.moderation.wanting &= !(1 << vector);
        let interval = self.interval(bus, vector);
        self.moderation.next[usize::from(vector)] =
            (!interval.is_zero()).then(|| Instant::now() + interval);
        self.counters.interrupts += 1;
        bus.raise(vector);
        if !Self::is_msix(bus) {
            return bus.set_level(true);
        }
        // What the message clears and masks by itself. [82574 7.4.5]
        let causes = self.causes_of(vector) & self.registers.get(interrupt::CAUSE).0;
        let clear = causes & self.registers.get(interrupt::AUTO_CLEAR).0;
        self.registers
            .set(interrupt::CAUSE, Causes(self.registers.get(interrupt::CAUSE).0 & !clear));
        if self.registers.get(general::CONTROL_EXTENDED).auto_mask() != 0 {
            let masked = causes & self.registers.get(interrupt::AUTO_MASK).0;
            self.registers.set(
                interrupt::MASK_SET,
                Causes(self.registers.get(interrupt::MASK_SET).0 & !masked),
            );
        }
    }

    /// The interrupts whose time has come; when the next has.
    pub(super) fn release_interrupts(&mut self, bus: &Bus, now: Instant) -> Option<Instant> {
        let mut next_due: Option<Instant> = None;
        for vector in (0..MSIX_VECTORS)
            .filter(|vector| self.moderation.wanting >> vector & 1 != 0)
            .collect::<Vec<_>>()
        {
            let causes = if Self::is_msix(bus) { self.causes_of(vector) } else { u32::MAX };
            match self.moderation.next[usize::from(vector)] {
                Some(next) if next > now => {
                    next_due = Some(next_due.map_or(next, |due| due.min(next)))
                }
                _ if self.active() & causes == 0 => self.moderation.wanting &= !(1 << vector),
                _ => self.interrupt(bus, vector),
            }
        }
        next_due
    }

    /// Sends the next interrupts of a storm.
    pub(super) fn raise_storm(&mut self, bus: &Bus) {
        let Some((vector, left)) = self.storm else { return };
        for _ in 0..left.min(STORM_BURST) {
            bus.raise(vector);
        }
        self.storm =
            left.checked_sub(STORM_BURST).filter(|left| *left > 0).map(|left| (vector, left));
        bus.set_level(self.storm.is_some() || self.active() != 0);
    }
}
