//! What the host sees of the controller: configuration, registers, and the time that it asked for.
//! [NVMe 3.1.4]

use std::time::{Duration, Instant};

use ring3_spec::nvme::CLASS;
use ring3_spec::nvme::registers::{self, Aqa, Cap, Cc, Crto};
use ring3_spec::register::{Reg, Value};

use super::controller::{NvmeModel, PAGE, PAGE_MAX_SHIFT};
use crate::{BarLayout, Bus, Identity, Model, MsixLayout};

/// A time in units of 500 ms.
fn units_of_500ms(time: Duration) -> u64 {
    time.as_millis() as u64 / 500
}

impl NvmeModel {
    fn cap(&self) -> Cap {
        Cap(0)
            .with_max_queue_entries_0based(u64::from(self.shape.entries - 1))
            .with_contiguous_queues(1)
            .with_timeout_500ms(units_of_500ms(self.shape.timeout))
            .with_ready_modes(if self.shape.ready_timeout.is_zero() {
                0
            } else {
                Cap::READY_WITH_MEDIA
            })
            .with_doorbell_stride(self.shape.stride.into())
            .with_command_sets(
                Cap::CSS_NVM | if self.has_command_sets() { Cap::CSS_IO_SETS } else { 0 },
            )
            .with_page_min(self.shape.mpsmin.into())
            .with_page_max(PAGE_MAX_SHIFT.into())
    }

    fn bar_layout(&self) -> (u64, Option<MsixLayout>) {
        let doorbells_end = registers::doorbells_end(self.shape.queues + 1, self.shape.stride);
        let table = doorbells_end.next_multiple_of(PAGE);
        let len = (table + 2 * PAGE).next_power_of_two();
        let vectors = self.shape.vectors;
        let msix = MsixLayout { vectors, bar: 0, table: table as u32, pba: (table + PAGE) as u32 };
        (len, (vectors > 0).then_some(msix))
    }
}

impl Model for NvmeModel {
    fn doorbell_bar(&self) -> Option<u8> {
        Some(0)
    }

    fn identity(&self) -> Identity {
        let (len, msix) = self.bar_layout();
        Identity {
            vendor: self.shape.id.0,
            device: self.shape.id.1,
            revision: 0,
            class: CLASS,
            bars: vec![BarLayout { index: 0, len, ports: false }],
            pins: 1,
            msi: 1,
            msix,
            express: true,
            dma_bits: 52,
        }
    }

    fn read(&mut self, _: &Bus, _: u8, offset: u64, width: usize) -> u64 {
        // Registers are whole dwords; a 64-bit register is read in halves or as one. [NVMe 3.1.4]
        if offset == registers::CSTS.offset() && self.is_silent() {
            return u64::MAX;
        }
        let registers: [(u64, u64); 10] = [
            wide(registers::CAP, self.cap()),
            narrow(registers::VS, self.shape.version),
            narrow(
                registers::CRTO,
                Crto(0).with_with_media_500ms(units_of_500ms(self.shape.ready_timeout) as u32),
            ),
            narrow(registers::INTMS, self.interrupt_mask),
            narrow(registers::INTMC, self.interrupt_mask),
            narrow(registers::CC, self.cc),
            narrow(registers::CSTS, self.csts),
            narrow(registers::AQA, self.aqa),
            wide(registers::ASQ, self.asq),
            wide(registers::ACQ, self.acq),
        ];
        let has_upper_half = |at: u64| {
            [registers::CAP.offset(), registers::ASQ.offset(), registers::ACQ.offset()]
                .contains(&at)
        };
        for (at, value) in registers {
            if offset == at {
                return if width == 4 { value & 0xffff_ffff } else { value };
            }
            if has_upper_half(at) && offset == at + 4 {
                return value >> 32;
            }
        }
        0
    }

    #[inline]
    fn write(&mut self, bus: &Bus, _: u8, offset: u64, width: usize, value: u64) {
        if offset >= u64::from(registers::DOORBELLS) {
            return self.doorbell(bus, offset, value as u32);
        }
        let low = value as u32;
        let half = |old: u64, high: bool| match (width, high) {
            (8, _) => value,
            (_, false) => old & !0xffff_ffff | u64::from(low),
            (_, true) => old & 0xffff_ffff | u64::from(low) << 32,
        };
        let is = |register: u64| offset == register;
        if is(registers::INTMS.offset()) {
            self.set_interrupt_mask(bus, self.interrupt_mask | low);
        } else if is(registers::INTMC.offset()) {
            self.set_interrupt_mask(bus, self.interrupt_mask & !low);
        } else if is(registers::CC.offset()) {
            self.configure(bus, Cc(low));
        } else if is(registers::AQA.offset()) {
            self.aqa = Aqa(low);
        } else if is(registers::ASQ.offset()) {
            self.asq = half(self.asq, false);
        } else if is(registers::ASQ.offset() + 4) {
            self.asq = half(self.asq, true);
        } else if is(registers::ACQ.offset()) {
            self.acq = half(self.acq, false);
        } else if is(registers::ACQ.offset() + 4) {
            self.acq = half(self.acq, true);
        }
    }

    fn reset(&mut self, bus: &Bus) {
        self.restart(bus);
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        if self.ready_due.is_some_and(|due| due <= now) {
            self.follow_enable();
        }
        self.release_due(bus, now);
        self.power.tick(bus, now, &self.shape.sleeps);
        self.raise_storm(bus);
        let storm = self.storm.map(|_| now + Duration::from_micros(100));
        if let Some(next) = [self.ready_due, self.held.next_due(), storm, self.power.due]
            .into_iter()
            .flatten()
            .min()
        {
            bus.wake_at(next);
        }
    }
}

fn narrow<T: Value<Raw = u32>, A>(register: Reg<T, A>, value: T) -> (u64, u64) {
    (register.offset(), value.into_raw().into())
}

fn wide<T: Value<Raw = u64>, A>(register: Reg<T, A>, value: T) -> (u64, u64) {
    (register.offset(), value.into_raw())
}
