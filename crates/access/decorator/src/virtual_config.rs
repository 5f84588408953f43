//! A configuration space in which what belongs to the backend can be written, and is emulated.
//!
//! # References
//! - `[PCI]` PCI Local Bus Specification 3.0, chapter 6

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring3_device::config::{Filter, Msi, Msix, OWNED_COMMAND};
use ring3_device::irq::IrqKind;
use ring3_device::{Bar, Decorator, Device, Error};
use ring3_spec::pci;

use crate::msix_table::{self, Table};

/// Bytes of the part that every function has; behind it nothing is emulated.
const SIZE: usize = 256;
const MASTER: u8 = pci::COMMAND_BUS_MASTER as u8;

/// What a driver has changed by its writes, for whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Messages of this kind are enabled, with so many vectors: all of MSI-X's table, what MSI's
    /// control says. `None`: only the pin is left. As after [`Device::irqs`], every vector is open
    /// until something else is told.
    Irqs(Option<(IrqKind, u16)>),
    /// A vector of the enabled kind is held back or let through, by its own mask or by the
    /// function's.
    Mask {
        /// Its number.
        vector: u16,
        /// Held back.
        masked: bool,
    },
    /// The bits of COMMAND that are emulated are now these. Bus mastering has been switched by
    /// then.
    Command(u16),
}

/// A device whose configuration space takes every write, as drivers need that were written for a
/// whole machine (a kernel's).
///
/// Base address registers answer the sizing protocol and keep what is written to them; there is no
/// expansion ROM. MSI, MSI-X with its table, and COMMAND's decoding and INTx bits are registers of
/// this object: the device never sees the driver's messages, and its BARs answer whatever they say.
/// The bus master bit switches the real one. All else is the device's, behind the backend's
/// refusals.
///
/// What changes is told to the owner, who makes [`Device::irqs`] of it; the call comes from the
/// thread that wrote, after the write. A reset of the function leaves the registers alone, as the
/// backends do.
pub struct VirtualConfig {
    inner: Arc<dyn Device>,
    shared: Arc<ConfigShared>,
}

/// What the configuration space and the table of MSI-X have in common.
pub(crate) struct ConfigShared {
    filter: Filter,
    state: Mutex<State>,
    told: Box<dyn Fn(Change) + Send + Sync>,
}

struct State {
    /// Bits that are not the device's.
    owned: [u8; SIZE],
    /// Of these, the ones that can be written.
    writable: [u8; SIZE],
    value: [u8; SIZE],
    table: Table,
}

/// What interrupts are enabled, and which vectors are masked.
type Irqs = (Option<(IrqKind, u16)>, BTreeSet<u16>);

impl VirtualConfig {
    /// Puts the registers around `inner`; `told` is called on every change. No kind of message is
    /// enabled.
    pub fn new(inner: Arc<dyn Device>, told: impl Fn(Change) + Send + Sync + 'static) -> Self {
        let filter = Filter::new(|offset, width| inner.config_read(offset, width));
        let state = Mutex::new(State::new(&*inner, &filter));
        Self { inner, shared: Arc::new(ConfigShared { filter, state, told: Box::new(told) }) }
    }

    /// The address and the data that `vector` of the enabled kind would be sent with; `None` if it
    /// is not enabled.
    pub fn message(&self, vector: u16) -> Option<(u64, u32)> {
        let state = self.shared.state();
        match state.irqs(&self.shared.filter).0? {
            (_, count) if vector >= count => None,
            (IrqKind::MsiX, _) => Some(state.table.message(vector)),
            _ => {
                let msi = self.shared.filter.msi?;
                let high = if msi.wide { state.word(msi.at + pci::MSI_ADDRESS + 4, 4) } else { 0 };
                let address =
                    u64::from(high) << 32 | u64::from(state.word(msi.at + pci::MSI_ADDRESS, 4));
                Some((address, state.word(msi.data(), 2) | u32::from(vector)))
            }
        }
    }

    /// Writes for the driver; bytes that are the device's in part reach it with the other bits as
    /// they are there.
    fn write(&self, state: &mut State, place: Range<usize>, value: u32) -> Result<(), Error> {
        let device = &*self.inner;
        let mut next = state.value;
        for (at, byte) in place.clone().zip(value.to_le_bytes()) {
            next[at] = next[at] & !state.writable[at] | byte & state.writable[at];
        }
        if state.owned[place.clone()].iter().all(|bits| *bits == 0) {
            device.config_write(place.start as u64, place.len(), value)?;
        } else {
            for (at, byte) in
                place.zip(value.to_le_bytes()).filter(|(at, _)| state.owned[*at] != u8::MAX)
            {
                let owned = u32::from(state.owned[at]);
                let real = device.config_read(at as u64, 1);
                device.config_write(at as u64, 1, real & owned | u32::from(byte) & !owned)?;
            }
        }
        let command = pci::COMMAND as usize;
        if (next[command] ^ state.value[command]) & MASTER != 0 {
            device.set_bus_master(next[command] & MASTER != 0)?;
        }
        state.value = next;
        Ok(())
    }
}

impl Decorator for VirtualConfig {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let real = self.inner.config_read(offset, width);
        let Some(place) = place(offset, width) else { return real };
        // Not all bits of COMMAND exist: where they are all ones there is no device any more.
        if self.inner.config_read(pci::COMMAND, 2) as u16 == u16::MAX {
            return real;
        }
        let state = self.shared.state();
        let merged = place
            .zip(real.to_le_bytes())
            .map(|(at, byte)| byte & !state.owned[at] | state.value[at] & state.owned[at]);
        merged.rev().fold(0, |value, byte| value << 8 | u32::from(byte))
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        match place(offset, width) {
            Some(place) => self.shared.change(|state| self.write(state, place, value)),
            None => self.inner.config_write(offset, width, value),
        }
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let bar = self.inner.bar(index)?;
        match self.shared.filter.msix {
            Some(msix) if msix.bar == index => {
                Ok(msix_table::around(bar, msix, self.shared.clone()))
            }
            _ => Ok(bar),
        }
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.shared.change(|state| {
            self.inner.set_bus_master(on)?;
            let command = &mut state.value[pci::COMMAND as usize];
            *command = if on { *command | MASTER } else { *command & !MASTER };
            Ok(())
        })
    }
}

impl ConfigShared {
    /// Changes the table of MSI-X.
    pub(crate) fn with_table<T>(&self, job: impl FnOnce(&mut Table) -> T) -> T {
        self.change(|state| job(&mut state.table))
    }

    /// Does `job` and tells what is different after it.
    fn change<T>(&self, job: impl FnOnce(&mut State) -> T) -> T {
        let (result, before, after) = {
            let mut state = self.state();
            let before = (state.command(), state.irqs(&self.filter));
            let result = job(&mut state);
            (result, before, (state.command(), state.irqs(&self.filter)))
        };
        let ((old_command, (old, was_masked)), (command, (new, masked))) = (before, after);
        if command != old_command {
            (self.told)(Change::Command(command));
        }
        let was_masked = if new == old { was_masked } else { BTreeSet::new() };
        if new != old {
            (self.told)(Change::Irqs(new));
        }
        for &vector in masked.symmetric_difference(&was_masked) {
            (self.told)(Change::Mask { vector, masked: masked.contains(&vector) });
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What the device has now, with every message off.
    fn new(device: &dyn Device, filter: &Filter) -> Self {
        let table = Table::new(filter.msix.map_or(0, |msix| msix.entries));
        let mut state = Self { owned: [0; SIZE], writable: [0; SIZE], value: [0; SIZE], table };
        for at in filter.owned().flatten() {
            state.register(at, 1, 0xff, 0, device.config_read(at, 1));
        }
        state.register(pci::EXPANSION_ROM, 4, u32::MAX, 0, 0);
        let owned = OWNED_COMMAND.into();
        state.register(pci::COMMAND, 2, owned, owned, device.config_read(pci::COMMAND, 2));
        state.bars(device);
        if let Some(msi) = filter.msi {
            state.msi(device, msi);
        }
        if let Some(Msix { at, .. }) = filter.msix {
            let changes = u32::from(pci::MSIX_ENABLE | pci::MSIX_FUNCTION_MASK);
            let control = device.config_read(at + pci::MSIX_CONTROL, 2) & !changes;
            state.register(at + pci::MSIX_CONTROL, 2, u32::MAX, changes, control);
        }
        state
    }

    /// Sizes are powers of two: the address bits above one can be written. [PCI 6.2.5.1]
    fn bars(&mut self, device: &dyn Device) {
        let mut index = 0;
        while index < pci::BAR_COUNT {
            let at = pci::BAR0 + 4 * u64::from(index);
            let Some(info) = device.bar_info(index) else {
                index += 1;
                continue;
            };
            let real = device.config_read(at, 4);
            let kind = if info.ports { 1 } else { real & 0xe };
            let flags: u32 = if info.ports { 0b11 } else { 0xf };
            let address = !(info.len.checked_next_power_of_two().unwrap_or(0).wrapping_sub(1));
            self.register(at, 4, u32::MAX, address as u32 & !flags, real & !flags | kind);
            let wide = kind == 0b100 || kind == 0b1100;
            if wide && index + 1 < pci::BAR_COUNT {
                self.register(
                    at + 4,
                    4,
                    u32::MAX,
                    (address >> 32) as u32,
                    device.config_read(at + 4, 4),
                );
            }
            index += 1 + u8::from(wide);
        }
    }

    fn msi(&mut self, device: &dyn Device, msi: Msi) {
        let changes = u32::from(pci::MSI_ENABLE | pci::MSI_VECTORS);
        let control = device.config_read(msi.at + pci::MSI_CONTROL, 2) & !changes;
        self.register(msi.at + pci::MSI_CONTROL, 2, u32::MAX, changes, control);
        self.register(msi.at + pci::MSI_ADDRESS, 4, u32::MAX, !0b11, 0);
        if msi.wide {
            self.register(msi.at + pci::MSI_ADDRESS + 4, 4, u32::MAX, u32::MAX, 0);
        }
        self.register(msi.data(), 2, u32::MAX, u32::MAX, 0);
        if msi.maskable {
            self.register(msi.mask(), 4, u32::MAX, u32::MAX, 0);
            self.register(msi.mask() + 4, 4, u32::MAX, 0, 0);
        }
    }

    fn register(&mut self, at: u64, width: usize, owned: u32, writable: u32, value: u32) {
        let bytes =
            owned.to_le_bytes().into_iter().zip(writable.to_le_bytes()).zip(value.to_le_bytes());
        for (at, ((owned, writable), value)) in (at as usize..SIZE).zip(bytes).take(width) {
            (self.owned[at], self.writable[at], self.value[at]) = (owned, writable, value);
        }
    }

    fn word(&self, at: u64, width: usize) -> u32 {
        (0..width).rev().fold(0, |word, i| {
            word << 8 | u32::from(self.value.get(at as usize + i).copied().unwrap_or(0))
        })
    }

    fn command(&self) -> u16 {
        self.word(pci::COMMAND, 2) as u16 & OWNED_COMMAND
    }

    /// MSI-X goes before MSI where a driver enables both, which it must not. [PCI 6.8.2]
    fn irqs(&self, filter: &Filter) -> Irqs {
        if let Some(Msix { at, entries, .. }) = filter.msix {
            let control = self.word(at + pci::MSIX_CONTROL, 2) as u16;
            let all = control & pci::MSIX_FUNCTION_MASK != 0;
            if control & pci::MSIX_ENABLE != 0 {
                let masked = (0..entries).filter(|vector| all || self.table.is_masked(*vector));
                return (Some((IrqKind::MsiX, entries)), masked.collect());
            }
        }
        let Some(msi) = filter.msi else { return (None, BTreeSet::new()) };
        let control = self.word(msi.at + pci::MSI_CONTROL, 2) as u16;
        if control & pci::MSI_ENABLE == 0 {
            return (None, BTreeSet::new());
        }
        let count = msi.vectors.min(1 << ((control & pci::MSI_VECTORS) >> 4).min(5));
        let mask = if msi.maskable { self.word(msi.mask(), 4) } else { 0 };
        (Some((IrqKind::Msi, count)), (0..count).filter(|vector| mask >> vector & 1 != 0).collect())
    }
}

/// The bytes of an access that lies within what is emulated.
fn place(offset: u64, width: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok().filter(|start| *start < SIZE)?;
    (matches!(width, 1 | 2 | 4) && start + width <= SIZE).then(|| start..start + width)
}
