//! An IDE function in compatibility mode: it answers at the ports and interrupts of the first PCs, not at its BARs and its pin.
//!
//! Drivers see the ports as BARs 0 to 3, as Linux's PCI layer shows them, and the two interrupts as vectors 0 and 1 of the pin.
//!
//! # References
//! - `[IDE]` PCI IDE Controller Specification 1.0, March 1994, section 2

use ring3_device::Error;
use ring3_spec::pci;

use super::function::{Function, Range};

/// Base class and sub-class of an IDE controller.
const IDE: u32 = 0x0101;
/// Interface bits that say that a channel, primary or secondary, is in native mode. [IDE 2.5]
const NATIVE: [u32; 2] = [1 << 0, 1 << 2];
/// Command block and control block of each channel: first port, ports, and which of them are the drive's. [IDE 2.1]
///
/// Of the control block only the third port is the controller's; the others belong to the floppy disk's.
const PORTS: [[(u64, u64, u64, u64); 2]; 2] = [[(0x1f0, 8, 0, 8), (0x3f4, 4, 2, 3)], [(0x170, 8, 0, 8), (0x374, 4, 2, 3)]];
/// Inputs of the interrupt controller. [IDE 2.2]
const INTERRUPTS: [u32; 2] = [14, 15];

/// Which channels are in compatibility mode: none if the function is no IDE controller.
pub(super) struct Legacy([bool; 2]);

impl Legacy {
    /// Looks at the function's class.
    pub(super) fn of(function: &Function) -> Result<Self, Error> {
        // Revision, interface, sub-class, base class.
        let class = function.read(pci::CLASS - 1, 4)?;
        Ok(Self(NATIVE.map(|native| class >> 16 == IDE && class >> 8 & native == 0)))
    }

    /// Shows the ports as BARs.
    pub(super) fn show_ports(&self, bars: &mut [Option<Range>; pci::BAR_COUNT as usize]) {
        for ((pair, ports), _) in bars.chunks_exact_mut(2).zip(PORTS).zip(self.0).filter(|(_, legacy)| *legacy) {
            for (bar, (base, len, from, to)) in pair.iter_mut().zip(ports) {
                *bar = Some(Range { port: true, wide: false, fixed: true, base, len, usable: (from, to) });
            }
        }
    }

    /// The interrupts, by vector, if both channels have their own; with one of them in native mode there is the pin.
    pub(super) fn interrupts(&self) -> Option<[u32; 2]> {
        (self.0 == [true; 2]).then_some(INTERRUPTS)
    }
}
