//! An IDE function in compatibility mode: it answers at the ports and interrupts of the first PCs,
//! not at its BARs and its pin.
//!
//! Drivers see the ports as BARs 0 to 3, as Linux's PCI layer shows them, and the two interrupts as
//! vectors 0 and 1 of the pin.

use ring3_device::Error;
use ring3_spec::ide::{self, CHANNELS, Interface, LEGACY, command_bar, control, control_bar};
use ring3_spec::pci;

use super::function::{Function, Range};

/// Ports of a command block, all of them the drive's.
const COMMAND_PORTS: u64 = ide::command::LEN;
/// Ports of a control block. One of them is the drive's; the others belong to the floppy disk's
/// controller. [PCI-IDE 2.1]
const CONTROL_PORTS: u64 = control::LEN;

/// Whether each channel is in compatibility mode: none if the function is no IDE controller.
pub(super) struct Legacy([bool; CHANNELS as usize]);

impl Legacy {
    /// Looks at the function's class.
    pub(super) fn of(function: &Function) -> Result<Self, Error> {
        // The byte below the class is the revision.
        let class = function.read(pci::CLASS - 1, 4)? >> 8;
        let interface = Interface(class as u8);
        Ok(Self(
            [0, 1].map(|channel| {
                class & ide::CLASS_MASK == ide::CLASS && !interface.is_native(channel)
            }),
        ))
    }

    /// Shows the ports as BARs.
    pub(super) fn show_ports(&self, bars: &mut [Option<Range>; pci::BAR_COUNT as usize]) {
        let ports = |base: u16, len, usable| {
            Some(Range { port: true, wide: false, fixed: true, base: base.into(), len, usable })
        };
        let drive = control::DEVICE_CONTROL.offset();
        for (channel, legacy) in
            (0..CHANNELS).zip(LEGACY).filter(|(channel, _)| self.0[usize::from(*channel)])
        {
            bars[usize::from(command_bar(channel))] =
                ports(legacy.command, COMMAND_PORTS, (0, COMMAND_PORTS));
            bars[usize::from(control_bar(channel))] =
                ports(legacy.control, CONTROL_PORTS, (drive, drive + 1));
        }
    }

    /// The interrupts, by vector, if both channels have their own; with one of them in native mode
    /// there is the pin.
    pub(super) fn interrupts(&self) -> Option<[u32; CHANNELS as usize]> {
        (self.0 == [true; CHANNELS as usize]).then_some(LEGACY.map(|legacy| legacy.irq.into()))
    }
}
