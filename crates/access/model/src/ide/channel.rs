//! A channel: two places for drives, their registers, and the bus master. [ATA-6 7]

use std::time::Instant;

use ring3_spec::ata::{ErrorBits, Signature, Status, TaskFile, device};
use ring3_spec::ide::{BusMasterCommand, BusMasterStatus, DeviceControl};

use super::shape::Shape;
use crate::ata::{Drive, Plan, is_ext};
use crate::fault::Action;

/// What nobody's status looks like: the lines are pulled up, and bit 7 down. [ATA-6 9.16]
pub(super) const FLOATING: u8 = 0x7f;
pub(super) const READY: Status = Status(0x50);
pub(super) const BUSY: Status = Status(0xd0);
/// DRDY, DSC and DRQ.
pub(super) const REQUEST: Status = Status(0x58);

/// What is in a place.
pub(super) enum Attached {
    Nothing,
    Disk(Box<Drive>),
    /// A drive with the packet interface, that takes no command.
    Packet,
}

/// Whether a drive answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    /// It is busy until it is reset.
    Hung,
    /// It is busy for ever.
    Dead,
}

/// A register that is written twice for 48-bit commands: what it holds, and what it held before.
/// [ATA-6 6.20]
#[derive(Clone, Copy, Default)]
pub(super) struct Twice(pub(super) u8, pub(super) u8);

impl Twice {
    pub(super) fn write(&mut self, value: u8) {
        *self = Self(value, self.0);
    }

    pub(super) fn read(self, high: bool) -> u8 {
        if high { self.1 } else { self.0 }
    }
}

/// A place for a drive, with the drive's registers.
pub(super) struct Unit {
    pub(super) attached: Attached,
    /// The drive is in its place.
    pub(super) plugged: bool,
    /// It was not found behind the last reset.
    pub(super) missing: bool,
    pub(super) health: Health,
    pub(super) status: Status,
    pub(super) error: ErrorBits,
    pub(super) features: Twice,
    pub(super) count: Twice,
    /// Address, lowest first.
    pub(super) lba: [Twice; 3],
    /// It wants its interrupt.
    pub(super) interrupt: bool,
    /// It wants it once more when this one was taken.
    pub(super) again: bool,
    /// It was reset and has not said its signature yet; since when it may.
    pub(super) greeting: Option<Instant>,
}

impl Unit {
    fn new(attached: Attached) -> Self {
        Self {
            attached,
            plugged: true,
            missing: false,
            health: Health::Well,
            status: Status(0),
            error: ErrorBits(0),
            features: Twice::default(),
            count: Twice::default(),
            lba: [Twice::default(); 3],
            interrupt: false,
            again: false,
            greeting: None,
        }
    }

    /// What is there, if anything is.
    pub(super) fn is(&self) -> Option<Signature> {
        match self.attached {
            Attached::Disk(_) if self.plugged && !self.missing => Some(Signature::Ata),
            Attached::Packet if self.plugged && !self.missing => Some(Signature::Atapi),
            _ => None,
        }
    }

    pub(super) fn drive(&mut self) -> Option<&mut Drive> {
        match &mut self.attached {
            Attached::Disk(drive) if self.plugged && !self.missing => Some(drive),
            _ => None,
        }
    }

    /// Whether it must be left alone.
    pub(super) fn is_occupied(&self) -> bool {
        self.is().is_some() && (self.status.busy() != 0 || self.status.data_request() != 0)
    }

    /// What its registers say when `command` is written, `select` being the device register.
    pub(super) fn task(&self, command: u8, select: u8) -> TaskFile {
        let ext = is_ext(command);
        let both = |twice: Twice| u16::from_le_bytes([twice.0, if ext { twice.1 } else { 0 }]);
        let [low, mid, high] = self.lba;
        let bytes = if ext {
            [low.0, mid.0, high.0, low.1, mid.1, high.1, 0, 0]
        } else {
            [low.0, mid.0, high.0, select & 0xf, 0, 0, 0, 0]
        };
        TaskFile {
            command,
            features: both(self.features),
            count: both(self.count),
            lba: u64::from_le_bytes(bytes),
            device: select & !device::SLAVE,
            ext,
        }
    }

    pub(super) fn set_lba(&mut self, lba: u64) {
        let [a, b, c, d, e, f, ..] = lba.to_le_bytes();
        self.lba = [Twice(a, d), Twice(b, e), Twice(c, f)];
    }
}

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The drive works, and has not begun to move data.
    Working,
    /// The processor moves data.
    Pio,
    /// The drive waits for the bus master.
    Dma,
}

/// The command that a channel is at.
pub(super) struct Job {
    pub(super) unit: usize,
    pub(super) task: TaskFile,
    pub(super) plan: Option<Plan>,
    pub(super) phase: Phase,
    pub(super) fault: Option<Action>,
    /// Bytes of its data that have moved.
    pub(super) done: usize,
    /// The data of one interrupt of PIO, and how many of them have moved.
    pub(super) buffer: Vec<u8>,
    pub(super) at: usize,
}

/// What the bus master does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Stopped,
    /// Started, and waits for the drive.
    Armed,
    /// It has done a transfer, and must be stopped before the next.
    Spent,
}

pub(super) struct Channel {
    pub(super) units: [Unit; 2],
    /// Device register, which both drives share.
    pub(super) device: u8,
    pub(super) control: DeviceControl,
    pub(super) job: Option<Job>,
    /// The selected drive's interrupt reaches the chip.
    pub(super) line: bool,
    /// The chip has seen it rise (CMD's chips keep that).
    pub(super) latched: bool,
    pub(super) reset_since: Option<Instant>,
    pub(super) master_command: BusMasterCommand,
    pub(super) master_status: BusMasterStatus,
    pub(super) table: u32,
    pub(super) engine: Engine,
}

impl Channel {
    /// The channels of a controller of `shape`.
    pub(super) fn all(shape: &Shape) -> [Self; 2] {
        let attached = |place: u8| match place {
            _ if place < shape.disks => {
                Attached::Disk(Box::new(Drive::new(shape.drive.clone(), place.into())))
            }
            _ if shape.cdrom && place == shape.disks => Attached::Packet,
            _ => Attached::Nothing,
        };
        [0, 2].map(|first| Self::new([first, first + 1].map(|place| Unit::new(attached(place)))))
    }

    fn new(units: [Unit; 2]) -> Self {
        Self {
            units,
            device: 0,
            control: DeviceControl(0),
            job: None,
            line: false,
            latched: false,
            reset_since: None,
            master_command: BusMasterCommand(0),
            master_status: BusMasterStatus(0),
            table: 0,
            engine: Engine::Stopped,
        }
    }

    /// Everything as after power-on, but for the drives and their health.
    pub(super) fn forget(&mut self) {
        let units =
            std::mem::replace(&mut self.units, [(); 2].map(|()| Unit::new(Attached::Nothing)));
        let units = units.map(|unit| {
            let health = if unit.health == Health::Dead { Health::Dead } else { Health::Well };
            Unit { plugged: unit.plugged, health, ..Unit::new(unit.attached) }
        });
        *self = Self::new(units);
    }

    /// The place that is selected: 0 master, 1 slave.
    pub(super) fn selected(&self) -> usize {
        usize::from(self.device & device::SLAVE != 0)
    }
}
