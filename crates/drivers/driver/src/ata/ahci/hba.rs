//! The controller's own registers: from a function to ports that may be used, and the reset of all
//! of them.

use std::sync::Mutex;
use std::time::Duration;

use ring3_device::dma::Dma;
use ring3_device::{Bar, Deadline, Device, Error, Registers, poll_until};
use ring3_quirks::Quirks;
use ring3_spec::ahci::registers::{
    self, CAPABILITIES, CAPABILITIES2, CONTROL, Capabilities, Control, HANDOFF, INTERRUPT_STATUS,
    PORTS, RESET_MILLIS,
};
use ring3_spec::ahci::{self, MAX_PORTS, port};

use super::super::quirks::{HBA_32_BIT, HBA_43_BIT, HBA_LINK_STUCK, HBA_ONE_PORT, HBA_PORTS_OFF};
use super::port::is_link_change;
use crate::lifetime::{StopFailed, lock, stop_function};

/// Firmware gives the controller up within this, unless it says that it is busy. [AHCI 10.6.3]
const HANDOFF_TIME: Duration = Duration::from_millis(25);
/// If it does, within this.
const HANDOFF_BUSY: Duration = Duration::from_secs(2);
/// PCS in the configuration space of Intel's controllers: a bit for each port that is switched on.
/// [ICH9 15.1.34]
const PORTS_ON: u64 = 0x92;
/// A port whose link got stuck is off for this long, and has this long afterwards. [Linux,
/// ahci_avn_hardreset]
const OFF_TIME: Duration = Duration::from_secs(1);
const ON_TIME: Duration = Duration::from_millis(30);
/// A drive that was noticed has a link within this; slow ones take about a second.
const LINK: Duration = Duration::from_secs(4);
/// The same where links get stuck, which is mended behind it.
const LINK_UNLESS_STUCK: Duration = Duration::from_secs(1);

/// A host bus adapter.
pub(super) struct Hba {
    registers: Registers,
    pub(super) capabilities: Capabilities,
    /// PI: a bit for each port that it says to have.
    implemented: u32,
    /// Those of them that are used.
    ports: u32,
    /// Ports that had nothing to notice before the reset.
    empty: u32,
    /// How it is otherwise than the specification.
    pub(super) quirks: Quirks,
    /// Held while PCS is changed, which has a bit of each port.
    switches: Mutex<()>,
}

impl Hba {
    /// Takes the controller `device`, which has `quirks`, from whoever had it, and stops whatever
    /// runs on it.
    pub(super) fn take_over(device: &dyn Device, quirks: Quirks) -> Result<Self, Error> {
        let registers = Self::registers(device)?;
        let capabilities = registers.read_alive(CAPABILITIES)?;
        let (implemented, ports) = (0, 0);
        let switches = Mutex::default();
        let mut hba =
            Self { registers, capabilities, implemented, ports, empty: 0, quirks, switches };
        hba.enable();
        hba.take_from_firmware();
        // Firmware writes these two once. They should survive a reset of the controller; those that
        // forget them are told again. [AHCI 3.1.1, 3.1.4; Linux, ahci_save_initial_config]
        hba.capabilities = hba.registers.read(CAPABILITIES);
        let most = hba.capabilities.ports_0based() + 1;
        hba.implemented = match hba.registers.read(PORTS) {
            // A reset of the function may have wiped what firmware wrote.
            0 => u32::MAX >> (32 - most),
            // All ones are 32 ports.
            ports => ports,
        };
        // Whoever has stopped it before may have switched its ports off by that.
        hba.switch_ports_on(device)?;
        hba.empty = hba.empty_ports();
        hba.reset(device)?;
        // More ports than CAP.NP says, or beyond the BAR: those that fit are used.
        let most = if hba.quirks.has(HBA_ONE_PORT) { 1 } else { most as usize };
        let usable = hba.in_bar(hba.implemented).take(most);
        hba.ports = usable.fold(0, |mask, index| mask | 1 << index);
        Ok(hba)
    }

    fn registers(device: &dyn Device) -> Result<Registers, Error> {
        Registers::new(device.bar(ahci::BAR)?, registers::LEN + u64::from(port::STRIDE))
    }

    /// The controller that another process has left, with the `capabilities` and the `ports` that
    /// it had; [`Error::Invalid`] if it has others.
    pub(super) fn resume(
        device: &dyn Device,
        quirks: Quirks,
        capabilities: u32,
        ports: u32,
    ) -> Result<Self, Error> {
        let registers = Self::registers(device)?;
        let capabilities_there = registers.read_alive(CAPABILITIES)?.0;
        // All ones are 32 ports.
        let implemented = registers.read(PORTS);
        let there = (capabilities_there, implemented & ports);
        let last = u64::from(32 - ports.leading_zeros());
        if there != (capabilities, ports)
            || registers::LEN + last * u64::from(port::STRIDE) > registers.bar().len()
        {
            let text = "the saved state is of another controller: give each its own, or open the \
                        device anew";
            return Err(Error::Invalid(text.into()));
        }
        let capabilities = Capabilities(capabilities);
        let switches = Mutex::default();
        Ok(Self { registers, capabilities, implemented, ports, empty: 0, quirks, switches })
    }

    /// Those of `ports` that the BAR has room for.
    fn in_bar(&self, ports: u32) -> impl Iterator<Item = u8> + use<> {
        let len = self.registers.bar().len();
        let fits = move |index: &u8| {
            registers::LEN + u64::from(u32::from(*index) + 1) * u64::from(port::STRIDE) <= len
        };
        (0..MAX_PORTS).filter(move |index| ports >> index & 1 == 1).filter(fits)
    }

    /// A bit for each port at which a drive would have been noticed, and was not: powered up, its
    /// link neither held in reset nor switched off. [AHCI 3.3.7, 3.3.10, 3.3.11]
    fn empty_ports(&self) -> u32 {
        let is_empty = |&index: &u8| {
            let (command, control) = (
                self.registers.read(port::command(index)),
                self.registers.read(port::sata_control(index)),
            );
            command.spin_up() == 1
                && control.detection() == 0
                && self.registers.read(port::sata_status(index)).detection() == 0
        };
        self.in_bar(self.registers.read(PORTS))
            .filter(is_empty)
            .fold(0, |mask, index| mask | 1 << index)
    }

    /// Whether nothing was to be noticed at port `index` before the controller was reset.
    pub(super) fn was_empty(&self, index: u8) -> bool {
        self.empty >> index & 1 == 1
    }

    /// A bit for each port that there is.
    pub(super) fn port_mask(&self) -> u32 {
        self.ports
    }

    /// Asks firmware that still uses the controller to let go. [AHCI 10.6.3]
    fn take_from_firmware(&self) {
        if self.registers.read(CAPABILITIES2).handoff() == 0 {
            return;
        }
        self.registers.write(HANDOFF, self.registers.read(HANDOFF).with_system(1));
        let free = |limit| {
            poll_until(
                Deadline::after(limit),
                "firmware to give the controller up (BOHC.BOS)",
                || Ok((self.registers.read(HANDOFF).firmware() == 0).then_some(())),
            )
        };
        if free(HANDOFF_TIME).is_err()
            && self.registers.read(HANDOFF).firmware_busy() == 1
            && free(HANDOFF_BUSY).is_err()
        {
            tracing::warn!(
                "firmware does not give the controller up (BOHC.BOS); it is reset nevertheless"
            );
        }
    }

    /// Lets the registers mean what the specification says. [AHCI 10.1.2 step 1]
    fn enable(&self) {
        self.registers.write(CONTROL, Control(0).with_enabled(1));
    }

    /// Fails if the controller does not drive port `index`, which was made ready: it is gone, or
    /// was reset by somebody else: the function or its bus by the administrator or the platform, or
    /// all of it by a loss of power.
    pub(super) fn running(&self, index: u8) -> Result<(), Error> {
        // AE stays set where there is nothing but AHCI (CAP.SAM). A port receives from its
        // beginning to its end, stopped or not; every reset of the controller ends that. [AHCI
        // 3.1.2, 3.3.7, 10.4.3]
        if self.registers.read_alive(CONTROL)?.enabled() == 0
            || self.registers.read_alive(port::command(index))?.receive() == 0
        {
            return Err(Error::Fatal(
                "it was reset behind the driver's back (GHC.AE or PxCMD.FRE is 0)".into(),
            ));
        }
        Ok(())
    }

    /// Whether the drive at port `index`, which was made ready, may have lost its power since then,
    /// and with it its volatile cache.
    pub(super) fn may_have_lost_power(&self, index: u8) -> bool {
        self.running(index).is_err()
            || self.registers.read_alive(port::interrupt_status(index)).map_or(true, is_link_change)
    }

    /// Resets the controller `device` and all ports. When this succeeds, it starts no transfer.
    /// [AHCI 10.4.3]
    pub(super) fn reset(&self, device: &dyn Device) -> Result<(), Error> {
        self.enable();
        self.registers.write(CONTROL, Control(0).with_enabled(1).with_reset(1));
        poll_until(
            Deadline::after(Duration::from_millis(RESET_MILLIS)),
            "the controller's reset (GHC.HR)",
            || {
                let control = self.registers.read(CONTROL);
                // Bits 30 to 3 are reserved zeroes, so that all ones is nobody.
                if control.0 == u32::MAX {
                    Err(Error::Gone)
                } else {
                    Ok((control.reset() == 0).then_some(()))
                }
            },
        )?;
        self.enable();
        self.restore();
        self.switch_ports_on(device)
    }

    /// Tells a controller that forgets it in a reset what firmware has told it.
    fn restore(&self) {
        if self.registers.read(CAPABILITIES) != self.capabilities {
            self.registers.write(CAPABILITIES, self.capabilities);
        }
        if self.registers.read(PORTS) != self.implemented {
            self.registers.write(PORTS, self.implemented);
        }
    }

    /// Switches the ports on that a reset of the controller may have switched off.
    fn switch_ports_on(&self, device: &dyn Device) -> Result<(), Error> {
        if !self.quirks.has(HBA_LINK_STUCK) && !self.quirks.has(HBA_PORTS_OFF) {
            return Ok(());
        }
        let ports = self.implemented & 0xffff;
        let _held = lock(&self.switches);
        let before = device.config_read(PORTS_ON, 2);
        if before & ports != ports {
            device.config_write(PORTS_ON, 2, before | ports)?;
            std::thread::sleep(ON_TIME);
        }
        Ok(())
    }

    /// Frees the link of port `index` if it may be stuck: the port is off for a while. What its
    /// link is afterwards, a reset of it tells. False if links of the controller do not get stuck.
    pub(super) fn free_link(&self, device: &dyn Device, index: u8) -> Result<bool, Error> {
        let port = 1u32.checked_shl(index.into()).unwrap_or(0) & 0xffff;
        if !self.quirks.has(HBA_LINK_STUCK) || port == 0 {
            return Ok(false);
        }
        tracing::warn!(
            "{} port {index}: its link is stuck: the port is switched off and on",
            device.name()
        );
        let switch = |on: bool| {
            let _held = lock(&self.switches);
            let others = device.config_read(PORTS_ON, 2) & !port;
            device.config_write(PORTS_ON, 2, if on { others | port } else { others })
        };
        switch(false)?;
        std::thread::sleep(OFF_TIME);
        switch(true)?;
        std::thread::sleep(ON_TIME);
        Ok(true)
    }

    /// The end of a wait for a link that starts now.
    pub(super) fn link_deadline(&self) -> Deadline {
        Deadline::after(if self.quirks.has(HBA_LINK_STUCK) { LINK_UNLESS_STUCK } else { LINK })
    }

    /// Lets interrupts of all ports out, or none.
    pub(super) fn set_interrupts(&self, on: bool) {
        self.registers.write(INTERRUPT_STATUS, u32::MAX);
        self.registers.write(CONTROL, Control(0).with_enabled(1).with_interrupts(on.into()));
    }

    /// The numbers of the ports that there are.
    pub(super) fn ports(&self) -> impl Iterator<Item = u8> + use<> {
        let ports = self.ports;
        (0..MAX_PORTS).filter(move |index| ports >> index & 1 == 1)
    }

    /// Command slots of each port.
    pub(super) fn slots(&self) -> u8 {
        self.capabilities.slots_0based() as u8 + 1
    }

    /// Where the addresses that it can reach end.
    pub(super) fn limit(&self) -> u64 {
        if self.capabilities.wide() == 0 || self.quirks.has(HBA_32_BIT) {
            1 << 32
        } else if self.quirks.has(HBA_43_BIT) {
            1 << 43
        } else {
            u64::MAX
        }
    }

    /// Another handle to the registers.
    pub(super) fn bar(&self) -> Bar {
        self.registers.bar().clone()
    }
}

/// Confines a controller that reaches addresses below `limit` to them; fails if not all of the
/// arena lies there.
pub(super) fn confine(name: &str, dma: &Dma, limit: u64) -> Result<(), Error> {
    if dma.confine(limit) {
        return Ok(());
    }
    let bits = limit.ilog2();
    let text = format!(
        "{name} reaches only addresses of {bits} bits (CAP.S64A or a quirk) and its memory lies \
        above them: open it with below=4G"
    );
    Err(Error::Unsupported(text))
}

/// Stops the device: resets the controller, and if it does not obey, takes its bus mastering away
/// and resets the function. When this succeeds, nothing that was started before can write to
/// memory. Bus mastering may be off afterwards.
pub(super) fn stop(device: &dyn Device, hba: &Hba) -> Result<(), StopFailed> {
    let Err(error) = hba.reset(device) else { return Ok(()) };
    stop_function(device, error)?;
    // A function that was reset is no AHCI controller before it is told so.
    hba.reset(device).map_err(|error| StopFailed { error, quiesced: true })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ring3_device::dma::{Arena, Region, StaticIommu};

    use super::*;

    #[test]
    fn memory_that_a_controller_of_32_bits_cannot_reach_is_an_error_that_says_what_to_do() {
        let dma = |iova| {
            Dma::new(
                Arena::new(Region::new(1 << 20).unwrap(), iova),
                Arc::new(StaticIommu::identity(0..=u64::MAX)),
            )
        };
        assert!(confine("it", &dma((1 << 32) - (4 << 20)), 1 << 32).is_ok());
        let error = confine("it", &dma(1 << 32), 1 << 32).unwrap_err();
        assert!(error.to_string().contains("below=4G"), "{error}");
        assert!(confine("it", &dma(1 << 32), u64::MAX).is_ok());
    }
}
