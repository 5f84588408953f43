//! A PCI function of the machine: configuration space, which every host has in memory, BARs and
//! their place.

use std::sync::{Arc, Mutex, PoisonError};

use ring3_device::Error;
use ring3_device::config::capabilities;
use ring3_spec::pci;

use super::host::Host;
use super::wire::Wire;

/// Memory BARs go here: above the configuration window, below the I/O APIC.
const MEMORY_WINDOW: (u64, u64) = (0xc000_0000, 0xfe00_0000);
/// Port BARs go here: above the ports of the board.
const PORT_WINDOW: (u64, u64) = (0xc000, 0x1_0000);

/// Function 0 of one slot of bus 0.
pub(super) struct Function {
    wire: Arc<Wire>,
    config: u64,
    /// Bytes of its configuration space.
    pub(super) config_size: u64,
    /// Held to read a register and write it back.
    changing: Mutex<()>,
}

/// What a BAR is and where it was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) port: bool,
    pub(super) wide: bool,
    /// Whether it is where it is, and no register places it.
    pub(super) fixed: bool,
    pub(super) base: u64,
    pub(super) len: u64,
    /// From which offset up to which it is the function's.
    pub(super) usable: (u64, u64),
}

impl Function {
    /// The function in `slot` of `host`.
    pub(super) fn at(wire: Arc<Wire>, host: &Host, slot: u8) -> Self {
        let (base, shift, config_size) = host.config;
        Self {
            wire,
            config: base + (u64::from(slot) << shift),
            config_size,
            changing: Mutex::new(()),
        }
    }

    /// Reads 1, 2 or 4 bytes, at any alignment.
    pub(super) fn read(&self, offset: u64, width: u64) -> Result<u32, Error> {
        if !offset.is_multiple_of(width) {
            return (0..width).try_fold(0, |sum, i| Ok(sum | self.read(offset + i, 1)? << (8 * i)));
        }
        let verb = ["readb", "readw", "readl"][width.trailing_zeros().min(2) as usize];
        self.wire.ask(format_args!("{verb} {:#x}", self.config + offset)).map(|value| value as u32)
    }

    /// Reads 2 bytes.
    pub(super) fn read16(&self, offset: u64) -> Result<u16, Error> {
        self.read(offset, 2).map(|value| value as u16)
    }

    /// Writes 1, 2 or 4 bytes, at any alignment; posted.
    pub(super) fn write(&self, offset: u64, width: u64, value: u32) {
        if !offset.is_multiple_of(width) {
            return (0..width).for_each(|i| self.write(offset + i, 1, value >> (8 * i) & 0xff));
        }
        let verb = ["writeb", "writew", "writel"][width.trailing_zeros().min(2) as usize];
        self.wire.post(format_args!("{verb} {:#x} {value:#x}", self.config + offset));
    }

    /// Sets the bits in `on` and clears those in `off` of a 16-bit register.
    pub(super) fn change16(&self, offset: u64, off: u16, on: u16) -> Result<(), Error> {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let value = self.read16(offset)? & !off | on;
        self.write(offset, 2, value.into());
        Ok(())
    }

    /// Where capability `id` starts, if there is one.
    pub(super) fn capability(&self, id: u8) -> Option<u64> {
        let found =
            capabilities(|offset, width| self.read(offset, width as u64).unwrap_or(u32::MAX));
        found.into_iter().find_map(|(one, at)| (one == id).then_some(at))
    }

    /// Sizes the BARs and chooses their places, the largest alignment kept. [PCI 6.2.5.1]
    pub(super) fn plan_bars(
        &self,
        windows: &mut Windows,
    ) -> Result<[Option<Range>; pci::BAR_COUNT as usize], Error> {
        let mut plan = [None; pci::BAR_COUNT as usize];
        let mut index = 0;
        while index < plan.len() {
            let shape = self.size_bar(index as u64)?;
            if let Some(mut range) = shape {
                range.base = windows.place(&range)?;
                plan[index] = Some(range);
            }
            index += if shape.is_some_and(|range| range.wide) { 2 } else { 1 };
        }
        Ok(plan)
    }

    fn size_bar(&self, index: u64) -> Result<Option<Range>, Error> {
        let at = pci::BAR0 + 4 * index;
        let kind = self.read(at, 4)?;
        let (port, wide) = (kind & 1 == 1, kind & 0b111 == 0b100 && index < 5);
        self.write(at, 4, u32::MAX);
        let mut ones = u64::from(self.read(at, 4)? & if port { !0b11 } else { !0b1111 });
        if wide {
            self.write(at + 4, 4, u32::MAX);
            ones |= u64::from(self.read(at + 4, 4)?) << 32;
        } else if ones != 0 {
            // Upper bits that a port BAR does not have count as ones.
            ones |= if port { 0xffff_ffff_ffff_0000 } else { 0xffff_ffff_0000_0000 };
        }
        let len = 1u64.checked_shl(ones.trailing_zeros()).unwrap_or(0);
        Ok((len > 0).then_some(Range { port, wide, fixed: false, base: 0, len, usable: (0, len) }))
    }

    /// Writes the places into the BARs and lets the function answer there. Bus mastering stays off.
    pub(super) fn place_bars(&self, plan: &[Option<Range>]) {
        let placed =
            (pci::BAR0..).step_by(4).zip(plan).filter_map(|(at, range)| Some((at, (*range)?)));
        for (at, range) in placed.filter(|(_, range)| !range.fixed) {
            self.write(at, 4, range.base as u32);
            if range.wide {
                self.write(at + 4, 4, (range.base >> 32) as u32);
            }
        }
        self.write(
            pci::COMMAND,
            2,
            (pci::COMMAND_IO | pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE).into(),
        );
    }
}

/// What is free of the address windows.
pub(super) struct Windows {
    memory: u64,
    port: u64,
}

impl Windows {
    /// Everything.
    pub(super) fn new() -> Self {
        Self { memory: MEMORY_WINDOW.0, port: PORT_WINDOW.0 }
    }

    fn place(&mut self, range: &Range) -> Result<u64, Error> {
        let (next, end) = if range.port {
            (&mut self.port, PORT_WINDOW.1)
        } else {
            (&mut self.memory, MEMORY_WINDOW.1)
        };
        let base = next
            .checked_next_multiple_of(range.len)
            .filter(|base| base.checked_add(range.len).is_some_and(|top| top <= end));
        let base = base.ok_or_else(|| {
            Error::Unsupported(format!(
                "a BAR of {:#x} bytes finds no place below 4 GiB",
                range.len
            ))
        })?;
        *next = base + range.len;
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(len: u64) -> Range {
        Range { port: false, wide: false, fixed: false, base: 0, len, usable: (0, len) }
    }

    #[test]
    fn bars_are_placed_at_multiples_of_their_size_and_do_not_overlap() {
        let mut windows = Windows::new();
        assert_eq!(windows.place(&bar(0x1000)).unwrap(), 0xc000_0000);
        assert_eq!(windows.place(&bar(0x10_0000)).unwrap(), 0xc010_0000);
        assert_eq!(windows.place(&bar(0x100)).unwrap(), 0xc020_0000);
    }

    #[test]
    fn a_bar_that_does_not_fit_is_refused_by_its_size() {
        let error = Windows::new().place(&Range { wide: true, ..bar(1 << 40) }).unwrap_err();
        assert!(error.to_string().contains("0x10000000000"), "{error}");
    }
}
