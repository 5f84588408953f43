//! Faults of real controllers, which drivers must know. [Linux, drivers/ata/ahci.c]

use ring3_spec::ahci::port::SataStatus;

use super::controller::AhciModel;
use crate::Bus;

/// PCS in the configuration space of Intel's controllers: a bit for each port that is switched on.
/// [ICH9 15.1.34]
const PORTS_ON: u64 = 0x92;
/// PxSSTS.DET: a drive is noticed, and nothing can be said to it.
const STUCK: SataStatus = SataStatus(1);

/// One such fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// A reset wipes which ports there are (PI), until that is written once.
    ForgetsPorts,
    /// A reset wipes that it has queued commands (CAP.SNCQ), until CAP is written once.
    ForgetsCapabilities,
    /// A reset switches all ports off (PCS).
    PortsOff,
    /// After a reset, no link comes up before its port was switched off and on (PCS).
    LinkStuck,
    /// Messages are never sent.
    BrokenMsi,
}

/// All of them by their names.
pub(super) const QUIRKS: [(&str, Quirk); 5] = [
    ("forgets-ports", Quirk::ForgetsPorts),
    ("forgets-capabilities", Quirk::ForgetsCapabilities),
    ("ports-off", Quirk::PortsOff),
    ("link-stuck", Quirk::LinkStuck),
    ("broken-msi", Quirk::BrokenMsi),
];

/// What resets do to a controller with faults, and to its ports.
#[derive(Clone, Copy)]
pub(super) struct PortSwitches {
    /// PI, as it reads.
    pub(super) implemented: u32,
    /// CAP reads with all that the controller has.
    pub(super) is_capable: bool,
    /// PCS.
    on: u16,
    /// Ports whose links do not come up.
    stuck: u16,
}

impl PortSwitches {
    /// As firmware leaves them: all `ports` are there and on.
    pub(super) fn all(ports: u8) -> Self {
        let implemented = u32::MAX >> (32 - ports);
        Self { implemented, is_capable: true, on: implemented as u16, stuck: 0 }
    }

    /// What the link of port `p` shows instead of its drive.
    pub(super) fn blocked(self, p: usize) -> Option<SataStatus> {
        let is_in = |mask: u16| mask.checked_shr(p as u32).is_some_and(|bits| bits & 1 == 1);
        match () {
            () if is_in(self.stuck) => Some(STUCK),
            () if p < 16 && !is_in(self.on) => Some(SataStatus(0)),
            () => None,
        }
    }
}

impl AhciModel {
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.shape.quirks.contains(&quirk)
    }

    /// What a reset does.
    pub(super) fn forget_firmware(&mut self) {
        self.switches.is_capable &= !self.has(Quirk::ForgetsCapabilities);
        if self.has(Quirk::ForgetsPorts) {
            self.switches.implemented = 0;
        }
        if self.has(Quirk::PortsOff) {
            self.switches.on = 0;
        }
        if self.has(Quirk::LinkStuck) {
            self.switches.stuck = u16::MAX;
        }
    }

    /// The link of port `p` gets stuck.
    pub(super) fn stick_link(&mut self, bus: &Bus, p: usize) {
        let Some(port) = self.ports.get_mut(p).filter(|_| p < 16) else { return };
        self.switches.stuck |= 1 << p;
        port.blocked = self.switches.blocked(p);
        port.disconnect();
        port.connect();
        self.held.retain(|job| job.port != p);
        self.update(bus);
    }

    /// PI is written, which only one that forgets it heeds, once.
    pub(super) fn write_ports(&mut self, value: u32) {
        if self.switches.implemented == 0 {
            self.switches.implemented = value;
        }
    }

    /// PCS; `None` if it has none, or another register is meant.
    pub(super) fn ports_on(&self, offset: u64, width: usize) -> Option<u32> {
        let has_it = self.has(Quirk::PortsOff) || self.has(Quirk::LinkStuck);
        (has_it && (offset, width) == (PORTS_ON, 2)).then_some(self.switches.on.into())
    }

    /// PCS is written: links of ports that are switched on come up, those of others go.
    pub(super) fn switch_ports(&mut self, bus: &Bus, on: u16) {
        let changed = self.switches.on ^ on;
        self.switches.stuck &= !(on & changed);
        self.switches.on = on;
        for p in 0..self.ports.len().min(16) {
            if changed >> p & 1 == 1 {
                self.ports[p].blocked = self.switches.blocked(p);
                self.ports[p].connect_after(self.shape.ready);
                self.send_signature(bus, p);
            }
        }
        self.update(bus);
    }
}
