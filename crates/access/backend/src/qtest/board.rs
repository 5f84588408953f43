//! What is on the machine's bus: the device under test and the doorbell that its messages ring.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_device::config::Filter;
use ring3_device::{Bar, BarInfo, Deadline, Error, poll_until};
use ring3_spec::pci;

use super::bar::QtestBar;
use super::function::{Function, Range, Windows};
use super::host::Host;
use super::interrupts::{Interrupts, Lines};
use super::ivshmem;
use super::legacy::Legacy;
use super::model::Model;
use super::wire::Wire;

/// First I/O APIC input of the pins that q35 gives to devices on bus 0; they take turns by slot and
/// pin.
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
    host: &'static Host,
    pub(super) function: Arc<Function>,
    bars: Bars,
    filter: Filter,
    /// Where there are messages.
    doorbell: Option<(Function, Bars)>,
    pub(super) interrupts: Interrupts,
    resetting: Mutex<()>,
}

impl Board {
    /// Finds the functions of a machine that has just started, places their BARs and makes them
    /// answer.
    pub(super) fn find(
        wire: Arc<Wire>,
        events: Arc<Vec<OwnedFd>>,
        model: &Model,
    ) -> Result<Self, Error> {
        let host = model.host;
        host.set_up(&wire)?;
        let function = Arc::new(Function::at(wire.clone(), host, host.slot));
        let mut windows = Windows::new();
        let doorbell =
            if host.interrupts { Some(place_doorbell(&wire, host, &mut windows)?) } else { None };
        let mut bars = function.plan_bars(&mut windows)?;
        let legacy = Legacy::of(&function)?;
        legacy.show_ports(&mut bars);
        function.place_bars(&bars);
        let register = doorbell
            .as_ref()
            .and_then(|(_, bars)| bars[0])
            .map_or(0, |range| range.base + ivshmem::DOORBELL);
        let bar = |index| bar(&wire, host, &bars, index);
        let lines = Lines { pins: pins(host, &function, &legacy)?, events, doorbell: register };
        let filter =
            Filter::new(|offset, width| function.read(offset, width as u64).unwrap_or(u32::MAX));
        let interrupts =
            Interrupts::find(function.clone(), wire.clone(), &filter, bar, lines, &model.hidden)?;
        Ok(Self {
            wire,
            host,
            function,
            bars,
            filter,
            doorbell,
            interrupts,
            resetting: Mutex::new(()),
        })
    }

    /// What BAR `index` of the device under test is.
    pub(super) fn bar_info(&self, index: u8) -> Option<BarInfo> {
        let range = self.bars.get(usize::from(index)).copied().flatten()?;
        Some(BarInfo { len: range.len, ports: range.port })
    }

    /// BAR `index` of the device under test.
    pub(super) fn bar(&self, index: u8) -> Result<Bar, Error> {
        bar(&self.wire, self.host, &self.bars, index)
    }

    /// Writes configuration space for a driver, except what is the backend's.
    pub(super) fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.filter.check(offset, width, value, self.function.read16(pci::COMMAND)?)?;
        self.function.write(offset, width as u64, value);
        Ok(())
    }

    /// Resets the device under test, alone if it can do that and with the machine if not, and makes
    /// it answer again.
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

    /// Function level reset; false if it cannot. QEMU does it within the write, and the next read
    /// comes after. [PCIe 6.6.2]
    fn reset_function(&self) -> Result<bool, Error> {
        let Some(express) = self.function.capability(pci::CAP_EXPRESS) else { return Ok(false) };
        if self.function.read(express + pci::EXPRESS_DEVICE_CAPABILITIES, 4)?
            & pci::EXPRESS_FLR_CAPABLE
            == 0
        {
            return Ok(false);
        }
        self.function.change16(express + pci::EXPRESS_DEVICE_CONTROL, 0, pci::EXPRESS_FLR)?;
        self.function.read16(pci::VENDOR_ID)?;
        Ok(true)
    }

    /// Resets everything. It happens after the write, so the doorbell's BAR tells: it holds an
    /// address before and none after.
    fn reset_machine(&self) -> Result<(), Error> {
        let Some((doorbell, bars)) = &self.doorbell else {
            return Err(Error::Unsupported(
                "this machine cannot reset its device; its transfers are stopped".into(),
            ));
        };
        self.wire.ask(format_args!("outb {RESET_PORT:#x} {RESET:#x}"))?;
        poll_until(Deadline::after(RESET_LIMIT), "the reset of QEMU's machine", || {
            self.host.set_up(&self.wire)?;
            Ok((doorbell.read(pci::BAR0, 4)? & !0xf == 0).then_some(()))
        })?;
        doorbell.place_bars(bars);
        Ok(())
    }
}

/// The doorbell, where messages can ring it.
fn place_doorbell(
    wire: &Arc<Wire>,
    host: &Host,
    windows: &mut Windows,
) -> Result<(Function, Bars), Error> {
    let doorbell = Function::at(wire.clone(), host, DOORBELL_SLOT);
    let bars = doorbell.plan_bars(windows)?;
    bars[0].ok_or_else(|| Error::Protocol("QEMU's doorbell has no registers".into()))?;
    doorbell.place_bars(&bars);
    Ok((doorbell, bars))
}

fn bar(wire: &Arc<Wire>, host: &Host, bars: &Bars, index: u8) -> Result<Bar, Error> {
    let range = bars.get(usize::from(index)).copied().flatten();
    let range =
        range.ok_or_else(|| Error::Unsupported(format!("the device has no BAR {index}")))?;
    Ok(QtestBar::open(wire.clone(), host, range))
}

/// The inputs of the I/O APIC that the function's pin drives, by vector.
fn pins(host: &Host, function: &Function, legacy: &Legacy) -> Result<Vec<u32>, Error> {
    if !host.interrupts {
        return Ok(Vec::new());
    }
    if let Some(interrupts) = legacy.interrupts() {
        return Ok(interrupts.into());
    }
    let pin = function.read(pci::INTERRUPT_PIN, 1)?;
    Ok((pin > 0).then(|| FIRST_PIN + (u32::from(host.slot) + pin - 1) % 4).into_iter().collect())
}
