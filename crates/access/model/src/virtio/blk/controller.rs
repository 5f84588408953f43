//! The disk as a function: its configuration, its registers, and its state.

use std::time::Instant;

use ring3_spec::virtio::{self as spec, blk};

use super::super::function::{Asked, Function};
use super::handle::Lie;
use super::process::Taken;
use super::shape::Shape;
use crate::fault::{Action, Event, FaultPlan};
use crate::held::Held;
use crate::medium::Medium;
use crate::violations::Violations;
use crate::{Bus, Identity, Model};

/// PCI class: a SCSI controller, which is what QEMU says. [PCI appendix D]
const CLASS: u32 = 0x01_00_00;
/// Most sectors of a discard or of a write of zeroes.
const MOST_SECTORS: u32 = 1 << 16;

/// A virtio disk.
pub struct VirtioBlkModel {
    pub(super) function: Function,
    pub(super) shape: Shape,
    pub(super) faults: FaultPlan,
    pub(super) medium: Medium,
    pub(super) held: Held<Taken>,
    pub(super) counters: Counters,
    pub(super) violations: Violations,
    /// Whether the cache holds writes back. [virtio 5.2.6.2]
    pub(super) writeback: bool,
    /// What it says wrongly from now on.
    /// What it is called since it is another one.
    pub(super) name: Option<String>,
    pub(super) lie: Option<Lie>,
    /// When the reset that is under way is done.
    reset_due: Option<Instant>,
}

/// What the host did, for tests of a driver's economy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Notifications of queues.
    pub doorbells: u64,
    /// Requests that were taken.
    pub requests: u64,
    /// How often it was started.
    pub starts: u64,
}

impl VirtioBlkModel {
    /// A disk after power-on, with an empty medium.
    pub fn new(shape: Shape, faults: FaultPlan) -> Self {
        let optional = [
            (shape.read_only, blk::RO),
            (shape.cache, blk::FLUSH | blk::CONFIG_WCE),
            (shape.indirect, spec::INDIRECT_DESC),
            (shape.packed, spec::RING_PACKED),
            (shape.events, spec::EVENT_IDX),
            (shape.ordered, spec::ORDER_PLATFORM),
        ];
        let own = blk::SEG_MAX
            | blk::BLK_SIZE
            | blk::TOPOLOGY
            | blk::MQ
            | blk::DISCARD
            | blk::WRITE_ZEROES;
        let offered =
            optional.iter().filter(|(has, _)| *has).fold(own, |all, (_, feature)| all | feature);
        Self {
            function: Function::new(shape.places, offered, shape.queues.into())
                .with_entries(shape.entries),
            medium: Medium::new(shape.bytes, shape.block_shift, shape.cache),
            writeback: shape.cache,
            shape,
            faults,
            held: Held::default(),
            counters: Counters::default(),
            violations: Violations::default(),
            name: None,
            lie: None,
            reset_due: None,
        }
    }

    /// The disk's configuration. [virtio 5.2.4]
    fn config(&self) -> [u8; blk::CONFIG_LEN as usize] {
        let mut bytes = [0; blk::CONFIG_LEN as usize];
        let mut put =
            |at: u64, value: &[u8]| bytes[at as usize..][..value.len()].copy_from_slice(value);
        put(
            blk::CONFIG_CAPACITY.offset(),
            &(self.shape.bytes / u64::from(blk::SECTOR)).to_le_bytes(),
        );
        put(blk::CONFIG_SEG_MAX.offset(), &self.shape.segments.to_le_bytes());
        put(blk::CONFIG_BLK_SIZE.offset(), &(1u32 << self.shape.block_shift).to_le_bytes());
        put(blk::CONFIG_WRITEBACK.offset(), &[self.writeback.into()]);
        put(blk::CONFIG_QUEUES.offset(), &self.shape.queues.to_le_bytes());
        put(blk::CONFIG_MAX_DISCARD.offset(), &MOST_SECTORS.to_le_bytes());
        put(
            blk::CONFIG_DISCARD_ALIGNMENT.offset(),
            &(1u32 << (self.shape.block_shift - 9)).to_le_bytes(),
        );
        put(blk::CONFIG_MAX_WRITE_ZEROES.offset(), &MOST_SECTORS.to_le_bytes());
        bytes
    }

    /// Back to the state after a reset; the medium and what goes wrong stay.
    pub(super) fn restart(&mut self) {
        self.function.restart();
        if self.lie == Some(Lie::ShortQueue) {
            self.function
                .queues
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|queue| queue.size = 2);
        }
        self.held.clear();
        self.reset_due = None;
        self.writeback = self.shape.cache;
    }

    /// A reset by the driver.
    fn asked_to_reset(&mut self, bus: &Bus) {
        if self.faults.check(&Event::Enable) == Some(Action::StuckReady) {
            return;
        }
        if self.shape.ready.is_zero() {
            return self.restart();
        }
        let due = Instant::now() + self.shape.ready;
        self.reset_due.get_or_insert(due);
        bus.wake_at(due);
    }
}

impl Model for VirtioBlkModel {
    fn doorbell_bar(&self) -> Option<u8> {
        Some(self.function.notify_bar())
    }

    fn identity(&self) -> Identity {
        self.function.identity(blk::DEVICE, CLASS, self.shape.vectors)
    }

    fn capabilities(&self) -> Vec<Vec<u8>> {
        self.function.capabilities(blk::CONFIG_LEN)
    }

    fn read(&mut self, _: &Bus, bar: u8, offset: u64, width: usize) -> u64 {
        let config = self.config();
        self.function.read((bar, offset), width, &config)
    }

    fn write(&mut self, bus: &Bus, bar: u8, offset: u64, width: usize, value: u64) {
        let ran = self.function.runs();
        match self.function.write((bar, offset), width, value) {
            Asked::Reset => self.asked_to_reset(bus),
            Asked::Notified(queue) => {
                self.counters.doorbells += 1;
                if !self.function.runs() {
                    self.violations.add(format!(
                        "queue {queue} is notified of a disk that does not go [virtio 3.1.1]"
                    ));
                }
                self.work(bus, queue);
            }
            Asked::Configured(at, value) if at == blk::CONFIG_WRITEBACK.offset() => {
                self.writeback = value != 0
            }
            Asked::Configured(..) | Asked::Nothing => {}
        }
        self.counters.starts += u64::from(!ran && self.function.runs());
    }

    fn reset(&mut self, _: &Bus) {
        self.restart();
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        if self.reset_due.is_some_and(|due| due <= now) {
            self.restart();
        }
        self.release_due(bus, now);
        if let Some(due) = self.held.next_due().into_iter().chain(self.reset_due).min() {
            bus.wake_at(due);
        }
    }
}
