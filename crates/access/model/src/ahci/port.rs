//! A port: its registers, and what is plugged into it. [AHCI 3.3]

use std::time::Instant;

use ring3_spec::ahci::port::{
    Command, Interrupts, SataControl, SataError, SataStatus, TaskFileData,
};
use ring3_spec::ata::{ErrorBits, Signature, Status};

use super::shape::Shape;
use crate::ata::Drive;

/// PxSERR.DIAG.N: the link became ready or not. [AHCI 3.3.12]
pub(super) const DIAG_LINK: u32 = 1 << 16;
/// PxSERR.DIAG.X: a drive was exchanged.
pub(super) const DIAG_EXCHANGED: u32 = 1 << 26;
/// PxSSTS of a link at 6 Gbit/s, active.
pub(super) const LINKED: SataStatus = SataStatus(0x133);
/// PxTFD while nobody has spoken: STS is 7Fh, ERR is 0. [AHCI 3.3.8]
pub(super) const NOBODY: TaskFileData = TaskFileData(0x7f);
/// PxSIG while nobody has spoken. [AHCI 3.3.9]
pub(super) const NO_SIGNATURE: u32 = u32::MAX;

/// What is plugged in.
pub(super) enum Attached {
    Nothing,
    Disk(Box<Drive>),
    /// Something that says what it is and takes no command.
    Other(Signature),
}

/// Whether the drive answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    /// It is busy until it is reset.
    Hung,
    /// It is busy for ever.
    Dead,
}

pub(super) struct Port {
    pub(super) attached: Attached,
    /// The drive is in its place.
    pub(super) plugged: bool,
    pub(super) health: Health,
    pub(super) list: u64,
    pub(super) received: u64,
    pub(super) happened: Interrupts,
    pub(super) enabled: Interrupts,
    pub(super) command: Command,
    pub(super) task_file: TaskFileData,
    pub(super) signature: u32,
    pub(super) link: SataStatus,
    pub(super) link_control: SataControl,
    /// How often it has had a link to a drive, since the model was made.
    pub(super) links: u64,
    pub(super) errors: SataError,
    pub(super) active: u32,
    pub(super) issue: u32,
    /// Queued commands that the drive has, whether or not the controller still knows them.
    pub(super) queued: u32,
    /// An error has stopped the port; it goes on when it is started anew. [AHCI 6.2.2]
    pub(super) stopped: bool,
    /// The slot of the last command that was taken.
    pub(super) last: u8,
    /// The drive has been reset and has not said its signature yet; since when it may.
    pub(super) greeting: Option<Instant>,
    /// Since when the link is held in reset.
    pub(super) reset_since: Option<Instant>,
    /// A frame has set the drive's software reset bit.
    pub(super) soft_reset: bool,
    /// What the link shows by a fault of the controller, whatever is plugged in.
    pub(super) blocked: Option<SataStatus>,
}

impl Port {
    pub(super) fn new(attached: Attached) -> Self {
        Self {
            attached,
            plugged: true,
            health: Health::Well,
            list: 0,
            received: 0,
            happened: Interrupts(0),
            enabled: Interrupts(0),
            command: Command(0).with_spin_up(1).with_power_on(1),
            task_file: NOBODY,
            signature: NO_SIGNATURE,
            link: SataStatus(0),
            link_control: SataControl(0),
            links: 0,
            errors: SataError(0),
            active: 0,
            issue: 0,
            queued: 0,
            stopped: false,
            last: 0,
            greeting: None,
            reset_since: None,
            soft_reset: false,
            blocked: None,
        }
    }

    /// The ports of a controller of `shape`.
    pub(super) fn all(shape: &Shape) -> Vec<Self> {
        let attached = |port: u8| match port {
            _ if port < shape.disks => {
                Attached::Disk(Box::new(Drive::new(shape.drive.clone(), port.into())))
            }
            _ if shape.multiplier && port + 1 == shape.ports => {
                Attached::Other(Signature::PortMultiplier)
            }
            _ if shape.cdrom && port == shape.disks => Attached::Other(Signature::Atapi),
            _ => Attached::Nothing,
        };
        (0..shape.ports).map(|port| Self::new(attached(port))).collect()
    }

    /// The registers after a reset of the controller; list and frames stay where they are. [AHCI
    /// 10.4.3]
    pub(super) fn forget(&mut self) {
        let attached = std::mem::replace(&mut self.attached, Attached::Nothing);
        let (plugged, health, links) = (self.plugged, self.health, self.links);
        *self = Self {
            plugged,
            health,
            links,
            list: self.list,
            received: self.received,
            ..Self::new(attached)
        };
    }

    /// Its disk, whether or not that is in its place.
    pub(super) fn disk(&mut self) -> Option<&mut Drive> {
        match &mut self.attached {
            Attached::Disk(drive) => Some(drive),
            _ => None,
        }
    }

    pub(super) fn drive(&mut self) -> Option<&mut Drive> {
        match &mut self.attached {
            Attached::Disk(drive) if self.plugged => Some(drive),
            _ => None,
        }
    }

    /// What a drive in this port calls itself.
    pub(super) fn is(&self) -> Option<Signature> {
        match &self.attached {
            Attached::Disk(_) if self.plugged => Some(Signature::Ata),
            Attached::Other(signature) if self.plugged => Some(*signature),
            _ => None,
        }
    }

    /// PxIS. [AHCI 3.3.5]
    pub(super) fn interrupts(&self) -> Interrupts {
        let errors = self.errors.0;
        self.happened
            .with_phy_change(u32::from(errors & DIAG_LINK != 0))
            .with_connect_change(u32::from(errors & DIAG_EXCHANGED != 0))
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.detection() == SataStatus::LINKED
    }

    pub(super) fn is_busy(&self) -> bool {
        let status = self.task_file.status();
        status.busy() != 0 || status.data_request() != 0
    }

    pub(super) fn set_status(&mut self, status: Status, error: ErrorBits) {
        self.task_file =
            TaskFileData(0).with_status_bits(status.0.into()).with_error_bits(error.0.into());
    }

    /// The slot whose command is sent next: in turn from the last one on. [AHCI 5.3.2]
    pub(super) fn next_slot(&self) -> Option<u8> {
        if self.command.running() == 0
            || self.stopped
            || self.is_busy()
            || !self.is_linked()
            || self.issue == 0
        {
            return None;
        }
        let from = (u32::from(self.last) + 1) % 32;
        Some(((self.issue.rotate_right(from).trailing_zeros() + from) % 32) as u8)
    }
}
