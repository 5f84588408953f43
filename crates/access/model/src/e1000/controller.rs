//! The card: its state, and its resets. [82574 4.6]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ring3_spec::e1000::general::{self, Control, NvmControl, PacketBuffer, Status};
use ring3_spec::e1000::interrupt::Causes;
use ring3_spec::e1000::nvm;
use ring3_spec::e1000::receive::{self, AddressHigh};

use super::interrupts::Moderation;
use super::nvm::{Phy, words};
use super::shape::{Nvm, Shape};
use super::store::Store;
use super::transmit::Sender;
use crate::fault::{Action, Event, FaultPlan};
use crate::held::{Held, Waiting};
use crate::violations::Violations;
use crate::wire::Wire;
use crate::{Bus, Timing};

/// KiB of the packet buffer that are the receiver's after a reset, and of the whole. [82574 10.2.2,
/// PBA]
const RECEIVE_KIB: u32 = 20;
const BUFFER_KIB: u32 = 40;
const QUEUES: usize = 2;

/// An 82574L and its end of a wire.
pub struct E1000Model {
    pub(super) shape: Shape,
    pub(super) faults: FaultPlan,
    pub(super) registers: Store,
    pub(super) phy: Phy,
    pub(super) nvm: [u16; nvm::CHECKED_WORDS as usize],
    pub(super) wire: Wire,
    /// STATUS.LU.
    pub(super) linked: bool,
    /// A fault has taken the link away until then.
    pub(super) link_back: Option<Instant>,
    /// The packet buffer: frames that have passed the filters, and whether an exact one.
    pub(super) buffered: VecDeque<(Vec<u8>, bool)>,
    /// Frames that were sent in loopback and have not come back yet.
    pub(super) looped: VecDeque<Vec<u8>>,
    pub(super) senders: [Sender; QUEUES],
    /// The receiver has met memory that it cannot reach.
    pub(super) receiver_failed: bool,
    pub(super) moderation: Moderation,
    pub(super) held: Held<Late>,
    /// When CTRL.RST clears.
    pub(super) reset_due: Option<Instant>,
    /// It was reset by somebody else, and the host has not reset it since: what it does meanwhile
    /// it cannot know better.
    pub(super) estranged: bool,
    pub(super) counters: Counters,
    pub(super) violations: Violations,
    /// Interrupts that a storm has still to send, and where.
    pub(super) storm: Option<(u16, u32)>,
    pub(super) powered_on: Instant,
}

/// What is done later.
pub(super) enum Late {
    /// A queue goes on sending.
    Send(u32),
    /// A frame comes.
    Frame(Vec<u8>, bool),
    /// Causes are set.
    Causes(Causes),
}

/// What the host did, for tests of a driver's economy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Registers read.
    pub reads: u64,
    /// Registers written.
    pub writes: u64,
    /// Writes to receive tails.
    pub receive_doorbells: u64,
    /// Writes to transmit tails.
    pub transmit_doorbells: u64,
    /// Interrupts that were sent, or would have been if they were not masked by their table.
    pub interrupts: u64,
    /// Resets that the host asked for.
    pub resets: u64,
    /// Of them those that came while firmware might have used the PHY: EXTCNF_CTRL.MDIO_SW was
    /// clear. [Linux, e1000_reset_hw_82571]
    pub unowned_resets: u64,
}

/// EEC of a card that has read its NVM, or not yet.
fn nvm_control(shape: &Shape, done: bool) -> NvmControl {
    let control = NvmControl(0).with_present(1).with_auto_read_done(done.into());
    match shape.nvm {
        Nvm::Flash => control.with_kind(NvmControl::FLASH).with_auto_update(1),
        _ => control,
    }
}

impl E1000Model {
    /// A card after power-on.
    pub fn new(shape: Shape, faults: FaultPlan) -> Self {
        let mut model = Self {
            phy: Phy::new(),
            nvm: words(&shape),
            wire: Wire::new(&shape.wire),
            shape,
            faults,
            registers: Store::new(),
            linked: false,
            link_back: None,
            buffered: VecDeque::new(),
            looped: VecDeque::new(),
            senders: Default::default(),
            receiver_failed: false,
            moderation: Moderation::default(),
            held: Held::default(),
            reset_due: None,
            estranged: false,
            counters: Counters::default(),
            violations: Violations::default(),
            storm: None,
            powered_on: Instant::now(),
        };
        model.set_defaults();
        model
    }

    /// The registers after a reset, with what the NVM says. [82574 4.6.1, 10.2]
    fn set_defaults(&mut self) {
        let mut mac = self.shape.mac;
        mac[5] ^= self.shape.port;
        let is_flash = self.shape.nvm == Nvm::Flash;
        let registers = &mut self.registers;
        registers.clear();
        registers.set(general::CONTROL, Control(0).with_full_duplex(1).with_speed(2));
        registers.set(general::NVM_CONTROL, nvm_control(&self.shape, !is_flash));
        registers.set(general::MANAGEMENT_CONTROL, general::CONFIGURED);
        let buffer = PacketBuffer(0)
            .with_receive_kib(RECEIVE_KIB)
            .with_transmit_kib(BUFFER_KIB - RECEIVE_KIB);
        registers.set(general::PACKET_BUFFER, buffer);
        registers
            .set(receive::address_low(0), u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]]));
        let high = u32::from_le_bytes([mac[4], mac[5], 0, 0]);
        registers.set(receive::address_high(0), AddressHigh(high).with_valid(1));
    }

    /// CTRL.RST: all but the PHY. [82574 4.6.2]
    pub(super) fn reset_by_host(&mut self, bus: &Bus) {
        self.counters.resets += 1;
        let owned = self.registers.get(general::EXTENDED_CONFIGURATION).software_owns();
        self.counters.unowned_resets += u64::from(owned == 0);
        let stuck = self.faults.check(&Event::Enable) == Some(Action::StuckReady);
        self.restart(bus);
        self.estranged = false;
        if stuck || !self.shape.ready.is_zero() {
            let control = self.registers.get(general::CONTROL).with_reset(1);
            self.registers.set(general::CONTROL, control);
            self.registers.set(general::NVM_CONTROL, nvm_control(&self.shape, false));
        }
        if !stuck && !self.shape.ready.is_zero() {
            let due = Instant::now() + self.shape.ready;
            self.reset_due = Some(due);
            bus.wake_at(due);
        }
    }

    pub(super) fn end_reset(&mut self) {
        self.reset_due = None;
        self.registers.set(general::CONTROL, self.registers.get(general::CONTROL).with_reset(0));
        let done = self.shape.nvm != Nvm::Flash;
        self.registers.set(general::NVM_CONTROL, nvm_control(&self.shape, done));
    }

    /// CTRL_EXT.EE_RST: the NVM is read as after power-on. [82574 10.2.2]
    pub(super) fn reread_nvm(&mut self) {
        self.registers.set(general::NVM_CONTROL, nvm_control(&self.shape, true));
    }

    pub(super) fn is_in_reset(&self) -> bool {
        self.registers.get(general::CONTROL).reset() != 0
    }

    /// Everything as after power-on, PHY, link and NVM aside.
    pub(super) fn restart(&mut self, bus: &Bus) {
        self.set_defaults();
        self.buffered.clear();
        self.senders = Default::default();
        self.receiver_failed = false;
        self.moderation = Moderation::default();
        self.held.clear();
        self.reset_due = None;
        self.storm = None;
        self.linked = false;
        bus.set_level(false);
    }

    /// A reset that the host did not ask this card for: of the function, of its bus.
    pub(super) fn restart_unasked(&mut self, bus: &Bus) {
        self.restart(bus);
        self.estranged = true;
    }

    /// The link is what both ends make of it. [82574 10.2.2, STATUS.LU]
    pub(super) fn update_link(&mut self, bus: &Bus) {
        let offered = self.shape.link && self.link_back.is_none() && self.phy.is_on();
        self.wire.offer(offered);
        let linked =
            offered && self.wire.is_up() && self.registers.get(general::CONTROL).link_up() != 0;
        if linked == std::mem::replace(&mut self.linked, linked) {
            return;
        }
        if !linked {
            self.phy.lose_link();
        }
        self.cause(bus, Causes::NONE.with_link(1));
        (0..QUEUES as u32).for_each(|queue| self.send(bus, queue));
    }

    pub(super) fn status(&self) -> Status {
        let master = self.registers.get(general::CONTROL).master_disable() == 0;
        let status = Status(0)
            .with_full_duplex(1)
            .with_speed(2)
            .with_port(self.shape.port.into())
            .with_master(master.into());
        if self.linked { status.with_link(1) } else { status }
    }

    pub(super) fn hold(&mut self, bus: &Bus, what: Late, timing: Timing) {
        let due = match timing {
            Timing::Held => None,
            Timing::Inline => Some(Instant::now()),
            Timing::After(delay) => Some(Instant::now() + delay),
        };
        if let Some(due) = due {
            bus.wake_at(due);
        }
        self.held.push(Waiting { what, due, after_next: false });
    }

    pub(super) fn take_link(&mut self, bus: &Bus, time: Duration) {
        let back = Instant::now() + time;
        self.link_back = Some(back);
        bus.wake_at(back);
        self.update_link(bus);
    }

    /// Does what was held.
    pub(super) fn do_late(&mut self, bus: &Bus, late: Late) {
        match late {
            Late::Send(queue) => {
                self.senders[queue as usize % QUEUES].paused = false;
                self.send(bus, queue);
            }
            Late::Frame(frame, exact) => {
                self.buffered.push_front((frame, exact));
                self.store(bus, true);
            }
            Late::Causes(causes) => self.cause(bus, causes),
        }
    }

    /// Applies a fault that is the same for sent and received frames; false if the frame needs no
    /// further processing.
    pub(super) fn apply_fault(&mut self, bus: &Bus, fault: Option<Action>) -> bool {
        match fault {
            Some(Action::StrayDma(iova)) => {
                let _ = bus.write(iova, &[0xbd; 64]);
            }
            Some(Action::Remove) => bus.remove(),
            Some(Action::FunctionReset) => self.restart_unasked(bus),
            Some(Action::LinkDown(time)) => self.take_link(bus, time),
            _ => {}
        }
        !matches!(fault, Some(Action::Remove | Action::FunctionReset | Action::LinkDown(_)))
    }

    pub(super) fn record_violation(&mut self, what: String) {
        if !self.estranged {
            self.violations.add(what);
        }
    }
}
