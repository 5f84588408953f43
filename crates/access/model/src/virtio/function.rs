//! What all virtio devices over PCI have: structures in BARs, status, features, queues. [virtio
//! 4.1.4]

use ring3_spec::register::Reg;
use ring3_spec::virtio::{self as spec, NO_VECTOR, common};

use super::queue::{MAX_SIZE, Queue};
use crate::{BarLayout, Blocked, Bus, Identity, MsixLayout};

/// Each structure has 4 KiB.
const PAGE: u64 = 0x1000;
/// The BAR of the interrupts' table.
const TABLE: u8 = 1;
/// Bytes between the places where two queues are notified.
const MULTIPLIER: u32 = 4;

/// Where the structures lie: BAR and offset of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    common: (u8, u64),
    isr: (u8, u64),
    config: (u8, u64),
    notify: (u8, u64),
}

impl Places {
    /// All in BAR 4, as QEMU has them.
    pub(super) const TOGETHER: Self =
        Self { common: (4, 0), isr: (4, PAGE), config: (4, 2 * PAGE), notify: (4, 3 * PAGE) };
    /// Each in another one, and none at its start.
    pub(super) const APART: Self =
        Self { common: (2, PAGE), isr: (5, PAGE), config: (0, 2 * PAGE), notify: (3, 3 * PAGE) };

    /// By the word of a user.
    pub(super) fn named(text: &str) -> Option<Self> {
        match text {
            "together" => Some(Self::TOGETHER),
            "apart" => Some(Self::APART),
            _ => None,
        }
    }

    /// The BAR that each of them lies in.
    fn bars(&self) -> impl Iterator<Item = u8> {
        let all = [self.common.0, self.isr.0, self.config.0, self.notify.0];
        (0..6).filter(move |bar| all.contains(bar))
    }

    /// Which structure an access is to, and where in it.
    fn locate(&self, bar: u8, offset: u64) -> Option<(u8, u64)> {
        let within = |(at, start): (u8, u64)| {
            (at == bar && (start..start + PAGE).contains(&offset)).then(|| offset - start)
        };
        let kinds = [
            (spec::TYPE_COMMON, self.common),
            (spec::TYPE_ISR, self.isr),
            (spec::TYPE_DEVICE, self.config),
            (spec::TYPE_NOTIFY, self.notify),
        ];
        kinds.into_iter().find_map(|(kind, place)| within(place).map(|offset| (kind, offset)))
    }
}

/// What a write of a driver asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    /// To be reset.
    Reset,
    /// To look at a queue.
    Notified(u16),
    /// A byte of its own configuration was written.
    Configured(u64, u8),
}

/// The part of a device that is the same for all.
pub(super) struct Function {
    pub(super) status: u8,
    pub(super) features: u64,
    pub(super) queues: Vec<Queue>,
    places: Places,
    pub(super) offered: u64,
    /// Most entries of a queue.
    entries: u16,
    device_select: u32,
    driver_select: u32,
    config_vector: u16,
    generation: u8,
    select: u16,
    isr: u8,
}

impl Function {
    /// With so many queues, and the features that it offers.
    pub(super) fn new(places: Places, offered: u64, queues: usize) -> Self {
        Self {
            status: 0,
            features: 0,
            queues: vec![Queue::default(); queues],
            places,
            offered: offered | spec::VERSION_1,
            entries: MAX_SIZE,
            device_select: 0,
            driver_select: 0,
            config_vector: NO_VECTOR,
            generation: 0,
            select: 0,
            isr: 0,
        }
    }

    /// The BAR where queues are notified.
    pub(super) fn notify_bar(&self) -> u8 {
        self.places.notify.0
    }

    /// The same with queues of at most `entries`.
    pub(super) fn with_entries(mut self, entries: u16) -> Self {
        self.entries = entries;
        self.queues.iter_mut().for_each(|queue| queue.size = entries);
        self
    }

    /// As after a reset.
    pub(super) fn restart(&mut self) {
        let fresh =
            Self::new(self.places, self.offered, self.queues.len()).with_entries(self.entries);
        *self = Self { generation: self.generation, ..fresh };
    }

    /// Whether it may use memory. [virtio 2.1.2]
    pub(super) fn runs(&self) -> bool {
        self.status & spec::DRIVER_OK != 0 && self.status & spec::NEEDS_RESET == 0
    }

    /// It cannot go on. [virtio 2.1.2]
    pub(super) fn need_reset(&mut self, bus: &Bus) {
        self.status |= spec::NEEDS_RESET;
        self.config_changed(bus);
    }

    /// Its configuration has changed. [virtio 2.5.1, 4.1.5.4]
    pub(super) fn config_changed(&mut self, bus: &Bus) {
        self.generation = self.generation.wrapping_add(1);
        self.isr |= 2;
        signal(bus, self.config_vector);
    }

    /// Lets the driver see what was done on a queue; with an interrupt, if it wants one and `tells`
    /// says so.
    pub(super) fn end(&mut self, bus: &Bus, queue: usize, tells: bool) -> Result<(), Blocked> {
        let Some(queue) = self.queues.get_mut(queue) else { return Ok(()) };
        let interrupt = queue.publish(bus)?;
        self.isr |= 1;
        if interrupt && tells {
            signal(bus, queue.vector);
        }
        Ok(())
    }

    /// What configuration space says of a device with PCI id `device` and `class`.
    pub(super) fn identity(&self, device: u16, class: u32, vectors: u16) -> Identity {
        let mut bars = vec![BarLayout { index: TABLE, len: PAGE, ports: false }];
        bars.extend(self.places.bars().map(|index| BarLayout {
            index,
            len: 4 * PAGE,
            ports: false,
        }));
        let msix =
            (vectors > 0).then_some(MsixLayout { vectors, bar: TABLE, table: 0, pba: 0x800 });
        Identity {
            vendor: spec::VENDOR,
            device,
            revision: 1,
            class,
            bars,
            pins: 0,
            msi: 0,
            msix,
            express: true,
            dma_bits: 64,
        }
    }

    /// What follows the header of each capability, of a device whose configuration has `config`
    /// bytes. [virtio 4.1.4]
    pub(super) fn capabilities(&self, config: u64) -> Vec<Vec<u8>> {
        let of = |kind: u8, (bar, offset): (u8, u64), len: u64, more: &[u8]| {
            let own = 16 + more.len() as u8;
            [
                &[own, kind, bar, 0, 0, 0][..],
                &(offset as u32).to_le_bytes(),
                &(len as u32).to_le_bytes(),
                more,
            ]
            .concat()
        };
        let Places { common, isr, config: own, notify } = self.places;
        vec![
            of(spec::TYPE_COMMON, common, common::LEN, &[]),
            of(spec::TYPE_ISR, isr, 1, &[]),
            of(spec::TYPE_DEVICE, own, config, &[]),
            of(spec::TYPE_NOTIFY, notify, PAGE, &MULTIPLIER.to_le_bytes()),
        ]
    }

    /// A read, of a device whose configuration is `config`.
    pub(super) fn read(&mut self, (bar, offset): (u8, u64), width: usize, config: &[u8]) -> u64 {
        match self.places.locate(bar, offset) {
            Some((spec::TYPE_ISR, _)) => std::mem::take(&mut self.isr).into(),
            Some((spec::TYPE_DEVICE, offset)) => {
                let from = (offset as usize).min(config.len());
                config[from..]
                    .iter()
                    .take(width)
                    .rev()
                    .fold(0, |value, &byte| value << 8 | u64::from(byte))
            }
            Some((spec::TYPE_COMMON, offset)) => self.read_common(offset),
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
            _ if at(offset, common::DEVICE_FEATURE) => half(self.offered, self.device_select),
            _ if at(offset, common::DRIVER_FEATURE) => half(self.features, self.driver_select),
            _ if at(offset, common::CONFIG_VECTOR) => self.config_vector.into(),
            _ if at(offset, common::NUM_QUEUES) => self.queues.len() as u64,
            _ if at(offset, common::DEVICE_STATUS) => self.status.into(),
            _ if at(offset, common::CONFIG_GENERATION) => self.generation.into(),
            _ if at(offset, common::QUEUE_SELECT) => self.select.into(),
            _ if at(offset, common::QUEUE_SIZE) => queue.map_or(0, |queue| queue.size.into()),
            _ if at(offset, common::QUEUE_VECTOR) => {
                queue.map_or(NO_VECTOR, |queue| queue.vector).into()
            }
            _ if at(offset, common::QUEUE_ENABLE) => {
                queue.is_some_and(|queue| queue.enabled).into()
            }
            _ if at(offset, common::QUEUE_NOTIFY_OFF) => self.select.into(),
            _ => queue.map_or(0, |queue| address(queue, offset)),
        }
    }

    /// A write; what it asks of the device.
    pub(super) fn write(&mut self, (bar, offset): (u8, u64), width: usize, value: u64) -> Asked {
        match self.places.locate(bar, offset) {
            Some((spec::TYPE_NOTIFY, _)) => Asked::Notified(value as u16),
            Some((spec::TYPE_DEVICE, offset)) => Asked::Configured(offset, value as u8),
            Some((spec::TYPE_COMMON, offset)) if at(offset, common::DEVICE_STATUS) => {
                self.set_status(value as u8)
            }
            Some((spec::TYPE_COMMON, offset)) => {
                self.write_common(offset, width, value);
                Asked::Nothing
            }
            _ => Asked::Nothing,
        }
    }

    fn write_common(&mut self, offset: u64, width: usize, value: u64) {
        match offset {
            _ if at(offset, common::DEVICE_FEATURE_SELECT) => self.device_select = value as u32,
            _ if at(offset, common::DRIVER_FEATURE_SELECT) => self.driver_select = value as u32,
            _ if at(offset, common::DRIVER_FEATURE) && self.driver_select < 2 => {
                let shift = 32 * self.driver_select;
                self.features =
                    self.features & !(0xffff_ffff << shift) | (value & 0xffff_ffff) << shift;
            }
            _ if at(offset, common::CONFIG_VECTOR) => self.config_vector = value as u16,
            _ if at(offset, common::QUEUE_SELECT) => self.select = value as u16,
            _ => self.write_queue(offset, width, value),
        }
    }

    fn write_queue(&mut self, offset: u64, width: usize, value: u64) {
        let (packed, events) =
            (self.features & spec::RING_PACKED != 0, self.features & spec::EVENT_IDX != 0);
        let entries = self.entries;
        let Some(queue) =
            self.queues.get_mut(usize::from(self.select)).filter(|queue| !queue.enabled)
        else {
            return;
        };
        let address = |before: u64, register: Reg<u64, _>| match (
            offset.wrapping_sub(register.offset()),
            width,
        ) {
            (0, 8) => Some(value),
            (0, 4) => Some(before & !0xffff_ffff | value),
            (4, 4) => Some(before & 0xffff_ffff | value << 32),
            _ => None,
        };
        let size = value as u16;
        if at(offset, common::QUEUE_SIZE)
            && (1..=entries).contains(&size)
            && (packed || size.is_power_of_two())
        {
            queue.size = size;
        } else if at(offset, common::QUEUE_VECTOR) {
            queue.vector = value as u16;
        } else if at(offset, common::QUEUE_ENABLE) {
            (queue.enabled, queue.packed, queue.events) = (value == 1, packed, events);
        } else if let Some(address) = address(queue.table, common::QUEUE_DESC) {
            queue.table = address;
        } else if let Some(address) = address(queue.driver, common::QUEUE_DRIVER) {
            queue.driver = address;
        } else if let Some(address) = address(queue.device, common::QUEUE_DEVICE) {
            queue.device = address;
        }
    }

    /// [virtio 2.1, 3.1.1]
    fn set_status(&mut self, value: u8) -> Asked {
        if value == spec::STATUS_RESET {
            return Asked::Reset;
        }
        let wanted = spec::VERSION_1 | self.offered & spec::ORDER_PLATFORM;
        let agreed = self.features & !self.offered == 0 && self.features & wanted == wanted;
        let refused = if agreed { 0 } else { spec::FEATURES_OK };
        self.status = self.status & spec::NEEDS_RESET | value & !refused;
        Asked::Nothing
    }
}

fn at<T, A>(offset: u64, register: Reg<T, A>) -> bool {
    offset == register.offset()
}

/// What a read at `offset` says of where `queue` is: as a whole, or of the upper halves.
fn address(queue: &Queue, offset: u64) -> u64 {
    let places = [
        (common::QUEUE_DESC, queue.table),
        (common::QUEUE_DRIVER, queue.driver),
        (common::QUEUE_DEVICE, queue.device),
    ];
    let half = places.into_iter().find_map(|(register, address)| {
        match offset.wrapping_sub(register.offset()) {
            0 => Some(address),
            4 => Some(address >> 32),
            _ => None,
        }
    });
    half.unwrap_or(0)
}

fn signal(bus: &Bus, vector: u16) {
    if vector != NO_VECTOR {
        bus.raise(vector);
    }
}
