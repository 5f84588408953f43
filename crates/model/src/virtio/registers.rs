//! The structures in the BAR: common configuration, notifications, interrupt status, the card's configuration. [virtio 4.1.4]

use ring3_spec::register::Reg;
use ring3_spec::virtio::{self as spec, common, net};

use super::card::VirtioNetModel;
use super::handle::Misbehaviour;
use super::queue::MAX_SIZE;
use crate::Bus;

/// The BAR of the structures; each has 4 KiB.
pub(super) const BAR: u8 = 4;
pub(super) const BAR_LEN: u64 = 0x4000;
const ISR: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const NOTIFY: u64 = 0x3000;
/// Bytes between the places where two queues are notified.
const MULTIPLIER: u32 = 4;

/// What follows the header of each capability. [virtio 4.1.4]
pub(super) fn capabilities() -> Vec<Vec<u8>> {
    let of = |kind: u8, offset: u64, len: u32, more: &[u8]| {
        let own = 16 + more.len() as u8;
        [&[own, kind, BAR, 0, 0, 0][..], &(offset as u32).to_le_bytes(), &len.to_le_bytes(), more].concat()
    };
    vec![
        of(spec::TYPE_COMMON, 0, common::LEN as u32, &[]),
        of(spec::TYPE_ISR, ISR, 1, &[]),
        of(spec::TYPE_DEVICE, DEVICE, net::CONFIG_LEN as u32, &[]),
        of(spec::TYPE_NOTIFY, NOTIFY, 0x1000, &MULTIPLIER.to_le_bytes()),
    ]
}

fn at<T, A>(offset: u64, register: Reg<T, A>) -> bool {
    offset == register.offset()
}

impl VirtioNetModel {
    pub(super) fn read_register(&mut self, offset: u64, width: usize) -> u64 {
        match offset {
            ISR => std::mem::take(&mut self.isr).into(),
            DEVICE..NOTIFY => {
                let config = self.config();
                let from = ((offset - DEVICE) as usize).min(config.len());
                config[from..].iter().take(width).rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
            }
            0..ISR => self.read_common(offset),
            _ => 0,
        }
    }

    fn read_common(&self, offset: u64) -> u64 {
        let queue = self.queues.get(usize::from(self.select));
        let half = |features: u64, select: u32| match select {
            0 => features & 0xffff_ffff,
            1 => features >> 32,
            _ => 0,
        };
        match offset {
            _ if at(offset, common::DEVICE_FEATURE) => half(self.offered(), self.device_select),
            _ if at(offset, common::DRIVER_FEATURE) => half(self.features, self.driver_select),
            _ if at(offset, common::CONFIG_VECTOR) => self.config_vector.into(),
            _ if at(offset, common::NUM_QUEUES) => self.queues.len() as u64,
            _ if at(offset, common::DEVICE_STATUS) => self.status.into(),
            _ if at(offset, common::CONFIG_GENERATION) => self.generation.into(),
            _ if at(offset, common::QUEUE_SELECT) => self.select.into(),
            _ if at(offset, common::QUEUE_SIZE) => queue.map_or(0, |queue| queue.size.into()),
            _ if at(offset, common::QUEUE_VECTOR) => queue.map_or(spec::NO_VECTOR, |queue| queue.vector).into(),
            _ if at(offset, common::QUEUE_ENABLE) => queue.is_some_and(|queue| queue.enabled).into(),
            _ if at(offset, common::QUEUE_NOTIFY_OFF) => self.select.into(),
            _ => 0,
        }
    }

    pub(super) fn write_register(&mut self, bus: &Bus, offset: u64, width: usize, value: u64) {
        match offset {
            NOTIFY.. => self.notified(bus, value as u16),
            0..ISR => self.write_common(bus, offset, width, value),
            _ => {}
        }
    }

    fn write_common(&mut self, bus: &Bus, offset: u64, width: usize, value: u64) {
        if at(offset, common::DEVICE_STATUS) {
            return self.set_status(bus, value as u8);
        }
        match offset {
            _ if at(offset, common::DEVICE_FEATURE_SELECT) => self.device_select = value as u32,
            _ if at(offset, common::DRIVER_FEATURE_SELECT) => self.driver_select = value as u32,
            _ if at(offset, common::DRIVER_FEATURE) && self.driver_select < 2 => {
                let shift = 32 * self.driver_select;
                self.features = self.features & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift;
            }
            _ if at(offset, common::CONFIG_VECTOR) => self.config_vector = value as u16,
            _ if at(offset, common::QUEUE_SELECT) => self.select = value as u16,
            _ => self.write_queue(offset, width, value),
        }
    }

    fn write_queue(&mut self, offset: u64, width: usize, value: u64) {
        let Some(queue) = self.queues.get_mut(usize::from(self.select)).filter(|queue| !queue.enabled) else { return };
        let address = |before: u64, register: Reg<u64, _>| match (offset.wrapping_sub(register.offset()), width) {
            (0, 8) => Some(value),
            (0, 4) => Some(before & !0xffff_ffff | value),
            (4, 4) => Some(before & 0xffff_ffff | value << 32),
            _ => None,
        };
        if at(offset, common::QUEUE_SIZE) && (value as u16).is_power_of_two() && value as u16 <= MAX_SIZE {
            queue.size = value as u16;
        } else if at(offset, common::QUEUE_VECTOR) {
            queue.vector = value as u16;
        } else if at(offset, common::QUEUE_ENABLE) {
            queue.enabled = value == 1;
        } else if let Some(address) = address(queue.table, common::QUEUE_DESC) {
            queue.table = address;
        } else if let Some(address) = address(queue.driver, common::QUEUE_DRIVER) {
            queue.driver = address;
        } else if let Some(address) = address(queue.device, common::QUEUE_DEVICE) {
            queue.device = address;
        }
    }

    /// [virtio 2.1, 3.1.1]
    fn set_status(&mut self, bus: &Bus, value: u8) {
        if value == spec::STATUS_RESET {
            if self.misbehaviour != Some(Misbehaviour::NeverResets) {
                self.restart(bus);
            }
            return;
        }
        let agreed = self.features & !self.offered() == 0 && self.features & spec::VERSION_1 != 0;
        let refused = if agreed { 0 } else { spec::FEATURES_OK };
        self.status = self.status & spec::NEEDS_RESET | value & !refused;
    }
}
