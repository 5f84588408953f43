//! The interrupts of the device under test: the pin, and messages that ring our doorbell.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::config::{Filter, Msi, Msix};
use ring3_device::irq::{Irq, IrqControl, IrqKind, IrqLimits};
use ring3_device::{Bar, Error};
use ring3_spec::pci;

use super::function::Function;
use super::intx::{Listener, Pin};
use super::wire::Wire;
use crate::eventfd;

/// How interrupts reach us.
pub(super) struct Lines {
    /// Inputs of the I/O APIC that the function's pins drive, by vector.
    pub(super) pins: Vec<u32>,
    /// Signalled by the doorbell, by vector.
    pub(super) events: Arc<Vec<OwnedFd>>,
    /// The address that messages go to.
    pub(super) doorbell: u64,
}

/// What of the function's interrupts is where.
pub(super) struct Interrupts {
    function: Arc<Function>,
    wire: Arc<Wire>,
    lines: Lines,
    msi: Option<Msi>,
    msix: Option<MsiX>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    enabled: Option<(IrqKind, u16)>,
    listener: Option<Listener>,
}

/// MSI-X with the BAR of its table.
struct MsiX {
    layout: Msix,
    table: Bar,
}

impl Interrupts {
    /// Looks at what `function` has, except the kinds in `hidden`.
    pub(super) fn find(
        function: Arc<Function>,
        wire: Arc<Wire>,
        filter: &Filter,
        bar: impl Fn(u8) -> Result<Bar, Error>,
        lines: Lines,
        hidden: &[IrqKind],
    ) -> Result<Self, Error> {
        let events = lines.events.len() as u16;
        let shown = |kind| !hidden.contains(&kind);
        let msi = filter
            .msi
            .filter(|_| shown(IrqKind::Msi))
            .map(|msi| Msi { vectors: msi.vectors.min(events), ..msi });
        let msix = filter.msix.filter(|_| shown(IrqKind::MsiX)).map(|msix| {
            let layout = Msix { entries: msix.entries.min(events), ..msix };
            Ok::<_, Error>(MsiX { layout, table: bar(msix.bar)? })
        });
        let msix = msix.transpose()?;
        Ok(Self { function, wire, lines, msi, msix, state: Mutex::default() })
    }

    /// How many of each kind.
    pub(super) fn limits(&self) -> IrqLimits {
        IrqLimits {
            intx: self.lines.pins.len() as u16,
            msi: self.msi.as_ref().map_or(0, |msi| msi.vectors),
            msix: self.msix.as_ref().map_or(0, |msix| msix.layout.entries),
        }
    }

    /// Enables `count` vectors of `kind` and nothing else.
    pub(super) fn enable(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let limit = self.limits().of(kind);
        if count > limit {
            return Err(Error::Unsupported(format!(
                "{count} {kind:?} vectors: the device has {limit}"
            )));
        }
        let mut state = self.state();
        *state = State::default();
        self.disable()?;
        self.lines.events.iter().for_each(eventfd::clear);
        if count == 0 {
            return Ok(Vec::new());
        }
        let irqs = match kind {
            IrqKind::Intx => self.listen(&mut state, count)?,
            IrqKind::Msi | IrqKind::MsiX => self.message_irqs(kind, count)?,
        };
        state.enabled = Some((kind, count));
        self.arm(kind, count)?;
        Ok(irqs)
    }

    /// Enables again what was enabled before a reset, with the same descriptors.
    pub(super) fn rearm(&self) -> Result<(), Error> {
        match self.state().enabled {
            Some((kind, count)) => self.arm(kind, count),
            None => Ok(()),
        }
    }

    fn disable(&self) -> Result<(), Error> {
        self.function.change16(pci::COMMAND, 0, pci::COMMAND_INTX_DISABLE)?;
        if let Some(msi) = &self.msi {
            self.function.change16(msi.at + pci::MSI_CONTROL, pci::MSI_ENABLE, 0)?;
        }
        if let Some(msix) = &self.msix {
            self.function.change16(msix.layout.at + pci::MSIX_CONTROL, pci::MSIX_ENABLE, 0)?;
        }
        Ok(())
    }

    fn listen(&self, state: &mut State, count: u16) -> Result<Vec<Irq>, Error> {
        let pins = self
            .lines
            .pins
            .iter()
            .take(count.into())
            .map(|&pin| Pin::new(pin))
            .collect::<Result<Vec<_>, _>>()?;
        let listener = Listener::start(self.wire.clone(), pins)?;
        let irqs = listener.irqs()?;
        state.listener = Some(listener);
        Ok(irqs)
    }

    fn message_irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let control: Option<Arc<dyn IrqControl>> = match (kind, &self.msi, &self.msix) {
            (IrqKind::MsiX, _, Some(msix)) => Some(msix.layout.control(msix.table.clone())),
            (IrqKind::Msi, Some(msi), _) if msi.maskable => Some(Arc::new(MsiMask {
                function: self.function.clone(),
                at: msi.mask(),
                set: Mutex::new(0),
            })),
            _ => None,
        };
        let events = self.lines.events.iter().take(count.into()).zip(0..);
        events
            .map(|(event, vector)| {
                Ok(Irq::new(eventfd::share(event)?, kind, vector, control.clone()))
            })
            .collect()
    }

    fn arm(&self, kind: IrqKind, count: u16) -> Result<(), Error> {
        match (kind, &self.msi, &self.msix) {
            (IrqKind::Msi, Some(msi), _) => {
                arm_msi(msi, &self.function, self.lines.doorbell, count)
            }
            (IrqKind::MsiX, _, Some(msix)) => msix.arm(&self.function, self.lines.doorbell, count),
            // A pin that is high already rises again when it is let through, so that the level is
            // reported. An ISA interrupt does not pass here: one that is high belongs to a command
            // of before, and the next command lowers it first.
            _ => self.function.change16(pci::COMMAND, pci::COMMAND_INTX_DISABLE, 0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The device adds its vector to data of zero, which is `peer 0, vector n` to the doorbell.
fn arm_msi(msi: &Msi, function: &Function, doorbell: u64, count: u16) -> Result<(), Error> {
    function.write(msi.at + pci::MSI_ADDRESS, 4, doorbell as u32);
    if msi.wide {
        function.write(msi.at + pci::MSI_ADDRESS + 4, 4, (doorbell >> 32) as u32);
    }
    function.write(msi.data(), 2, 0);
    if msi.maskable {
        function.write(msi.mask(), 4, 0);
    }
    let log2 = count.next_power_of_two().trailing_zeros() as u16;
    function.change16(msi.at + pci::MSI_CONTROL, 0b111 << 4, log2 << 4 | pci::MSI_ENABLE)
}

impl MsiX {
    fn arm(&self, function: &Function, doorbell: u64, count: u16) -> Result<(), Error> {
        for vector in 0..self.layout.entries {
            let entry = self.layout.entry(vector);
            self.table.write32(entry, doorbell as u32);
            self.table.write32(entry + 4, (doorbell >> 32) as u32);
            self.table.write32(entry + 8, vector.into());
            self.table.write32(entry + pci::MSIX_VECTOR_CONTROL, u32::from(vector >= count));
        }
        function.change16(self.layout.at + pci::MSIX_CONTROL, 0, pci::MSIX_ENABLE)
    }
}

/// Masks by the bits of the MSI capability.
struct MsiMask {
    function: Arc<Function>,
    at: u64,
    set: Mutex<u32>,
}

impl MsiMask {
    fn change(&self, vector: u16, masked: bool) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let bit = 1u32.checked_shl(vector.into()).unwrap_or(0);
        *set = if masked { *set | bit } else { *set & !bit };
        self.function.write(self.at, 4, *set);
    }
}

impl IrqControl for MsiMask {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.change(vector, true);
        Ok(())
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.change(vector, false);
        Ok(())
    }
}
