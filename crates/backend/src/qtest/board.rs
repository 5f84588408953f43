//! What is on the machine's bus: the device under test and the doorbell that its messages ring.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::pci;

use super::bar::QtestBar;
use super::function::{Function, Range, Windows, open_config_window};
use super::interrupts::{Interrupts, Lines};
use super::ivshmem;
use super::legacy::Legacy;
use super::model;
use super::wire::Wire;

/// COMMAND bits that are the backend's: decoding, bus mastering, and the pin.
const OWNED_COMMAND: u16 = pci::COMMAND_IO | pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER | pci::COMMAND_INTX_DISABLE;
/// First I/O APIC input of the pins that q35 gives to devices on bus 0; they take turns by slot and pin.
const FIRST_PIN: u32 = 20;
/// Where the doorbell sits.
pub(super) const DOORBELL_SLOT: u8 = 3;
/// The port by which the chip set resets the machine, and the value that does it.
const RESET_PORT: u16 = 0xcf9;
const RESET: u8 = 0x06;
/// A machine resets within microseconds, unless QEMU is not scheduled.
const RESET_LIMIT: Duration = Duration::from_secs(10);

type Bars = [Option<Range>; pci::BAR_COUNT as usize];

/// The functions that the machine has for us, placed and ready.
pub(super) struct Board {
    wire: Arc<Wire>,
    pub(super) function: Arc<Function>,
    bars: Bars,
    doorbell: Function,
    doorbell_bars: Bars,
    pub(super) interrupts: Interrupts,
    resetting: Mutex<()>,
}

impl Board {
    /// Finds the functions of a machine that has just started, places their BARs and makes them answer.
    pub(super) fn find(wire: Arc<Wire>, events: Arc<Vec<OwnedFd>>, hidden: &[IrqKind]) -> Result<Self, Error> {
        open_config_window(&wire)?;
        let function = Arc::new(Function::at(wire.clone(), model::SLOT));
        let doorbell = Function::at(wire.clone(), DOORBELL_SLOT);
        let mut windows = Windows::new();
        let doorbell_bars = doorbell.plan_bars(&mut windows)?;
        let mut bars = function.plan_bars(&mut windows)?;
        let legacy = Legacy::of(&function)?;
        legacy.show_ports(&mut bars);
        doorbell.place_bars(&doorbell_bars);
        function.place_bars(&bars);
        let register =
            doorbell_bars[0].ok_or_else(|| Error::Protocol("QEMU's doorbell has no registers".into()))?.base + ivshmem::DOORBELL;
        let bar = |index| bar(&wire, &bars, index);
        let lines = Lines { pins: pins(&function, &legacy)?, events, doorbell: register };
        let interrupts = Interrupts::find(function.clone(), wire.clone(), bar, lines, hidden)?;
        Ok(Self { wire, function, bars, doorbell, doorbell_bars, interrupts, resetting: Mutex::new(()) })
    }

    /// BAR `index` of the device under test.
    pub(super) fn bar(&self, index: u8) -> Result<QtestBar, Error> {
        bar(&self.wire, &self.bars, index)
    }

    /// Whether writing `value` there would change what is the backend's: BARs, MSI, MSI-X, and the bits of COMMAND that `Device`
    /// has methods for.
    pub(super) fn owns(&self, offset: u64, width: u64, value: u32) -> Result<bool, Error> {
        let bars = pci::BAR0..pci::BAR0 + 4 * u64::from(pci::BAR_COUNT);
        let rom = pci::EXPANSION_ROM..pci::EXPANSION_ROM + 4;
        let overlaps = |range: std::ops::Range<u64>| offset < range.end && offset + width > range.start;
        if overlaps(bars) || overlaps(rom) || self.interrupts.capabilities().into_iter().any(overlaps) {
            return Ok(true);
        }
        if !overlaps(pci::COMMAND..pci::COMMAND + 2) {
            return Ok(false);
        }
        let changed = u64::from(self.function.read(offset, width)? ^ value) << (8 * offset);
        Ok(changed >> (8 * pci::COMMAND) & u64::from(OWNED_COMMAND) != 0)
    }

    /// Resets the device under test, alone if it can do that and with the machine if not, and makes it answer again.
    ///
    /// Interrupts and bus mastering are as they were before, as after a reset through VFIO.
    pub(super) fn reset(&self) -> Result<(), Error> {
        let _one_at_a_time = self.resetting.lock().unwrap_or_else(PoisonError::into_inner);
        let mastering = self.function.read16(pci::COMMAND)? & pci::COMMAND_BUS_MASTER;
        self.function.change16(pci::COMMAND, pci::COMMAND_BUS_MASTER, 0)?;
        if !self.reset_function()? {
            self.reset_machine()?;
        }
        self.function.place_bars(&self.bars);
        self.interrupts.rearm()?;
        self.function.change16(pci::COMMAND, 0, mastering)
    }

    /// Function level reset; false if it cannot. QEMU does it within the write, and the next read comes after. [PCIe 6.6.2]
    fn reset_function(&self) -> Result<bool, Error> {
        let Some(express) = self.function.capability(pci::CAP_EXPRESS)? else { return Ok(false) };
        if self.function.read(express + pci::EXPRESS_DEVICE_CAPABILITIES, 4)? & pci::EXPRESS_FLR_CAPABLE == 0 {
            return Ok(false);
        }
        self.function.change16(express + pci::EXPRESS_DEVICE_CONTROL, 0, pci::EXPRESS_FLR)?;
        self.function.read16(pci::VENDOR_ID)?;
        Ok(true)
    }

    /// Resets everything. It happens after the write, so the doorbell's BAR tells: it holds an address before and none after.
    fn reset_machine(&self) -> Result<(), Error> {
        self.wire.ask(format_args!("outb {RESET_PORT:#x} {RESET:#x}"))?;
        poll_until(Deadline::after(RESET_LIMIT), "the reset of QEMU's machine", || {
            open_config_window(&self.wire)?;
            Ok((self.doorbell.read(pci::BAR0, 4)? & !0xf == 0).then_some(()))
        })?;
        self.doorbell.place_bars(&self.doorbell_bars);
        Ok(())
    }
}

fn bar(wire: &Arc<Wire>, bars: &Bars, index: u8) -> Result<QtestBar, Error> {
    let range = bars.get(usize::from(index)).copied().flatten();
    let range = range.ok_or_else(|| Error::Unsupported(format!("the device has no BAR {index}")))?;
    Ok(QtestBar::new(wire.clone(), range))
}

/// The inputs of the I/O APIC that the function's pin drives, by vector.
fn pins(function: &Function, legacy: &Legacy) -> Result<Vec<u32>, Error> {
    if let Some(interrupts) = legacy.interrupts() {
        return Ok(interrupts.into());
    }
    let pin = function.read(pci::INTERRUPT_PIN, 1)?;
    Ok((pin > 0).then(|| FIRST_PIN + (u32::from(model::SLOT) + pin - 1) % 4).into_iter().collect())
}
