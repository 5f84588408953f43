//! The configuration space of a simulated function.
//!
//! # References
//! - `[PCI]` PCI Local Bus Specification 3.0, February 2004, chapter 6
//! - `[PCIe]` PCI Express Base Specification 5.0, chapter 7

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_device::Error;
use ring3_device::config::{Filter, OWNED_COMMAND};
use ring3_device::irq::IrqKind;
use ring3_spec::pci;

use super::interrupts::Interrupts;
use super::model::{BarLayout, Identity};

const SIZE: usize = 256;
/// Revision, 8 bits. [PCI 6.2.1]
const REVISION: usize = 0x08;
const CAP_MSI_AT: usize = 0x50;
const CAP_MSIX_AT: usize = 0x70;
const CAP_EXPRESS_AT: usize = 0x80;
/// Where the vendor's own begin, and how far apart they are.
const CAP_VENDOR_AT: usize = 0xa0;
const CAP_VENDOR_STRIDE: usize = 0x18;
/// STATUS: the pin is asserted, whether or not it is disabled. [PCI 6.2.3]
const STATUS_INTERRUPT: u16 = 1 << 3;
/// What firmware has switched on before anybody drives the function.
const DECODING: u16 = pci::COMMAND_IO | pci::COMMAND_MEMORY;
/// Which line the pin is tied to, 8 bits. [PCI 6.2.4]
const INTERRUPT_LINE: usize = 0x3c;

pub(super) struct Config {
    image: Mutex<[u8; SIZE]>,
    /// The command register, apart from the image because every access of the model looks at it. It
    /// has no bits but the backend's.
    command: AtomicU16,
    /// What it holds after power-on.
    initial: [u8; SIZE],
    /// Which bits the platform can change, COMMAND's apart.
    writable: [u8; SIZE],
    filter: Filter,
    has_msi: bool,
    has_msix: bool,
}

impl Config {
    pub(super) fn new(identity: &Identity, own: &[Vec<u8>]) -> Self {
        let mut image = [0; SIZE];
        put(&mut image, pci::VENDOR_ID as usize, &identity.vendor.to_le_bytes());
        put(&mut image, pci::DEVICE_ID as usize, &identity.device.to_le_bytes());
        put(&mut image, pci::CLASS as usize, &identity.class.to_le_bytes()[..3]);
        image[REVISION] = identity.revision;
        // The ISA interrupts of a function in compatibility mode are none of PCI's. [PCI 6.2.4]
        image[pci::INTERRUPT_PIN as usize] = (identity.pins == 1).into();
        identity.bars.iter().for_each(|bar| put_bar(&mut image, bar));
        put_capabilities(&mut image, identity, own);
        Self {
            filter: Filter::new(|offset, width| {
                checked(offset, width).map_or(u32::MAX, |range| word(&image, range))
            }),
            initial: image,
            writable: writable(identity),
            image: Mutex::new(image),
            command: AtomicU16::new(DECODING),
            has_msi: identity.msi > 0,
            has_msix: identity.msix.is_some(),
        }
    }

    /// As after power-on.
    pub(super) fn restore(&self) {
        *self.image() = self.initial;
        self.command.store(DECODING, Ordering::Release);
    }

    /// A write of who stands for the whole platform, a guest's firmware and kernel: all bits that
    /// hardware has take it, BARs, MSI and MSI-X among them. Nothing here acts on these.
    pub(super) fn platform_write(&self, offset: u64, width: usize, value: u32) {
        let Some(range) = checked(offset, width) else { return };
        let mut image = self.image();
        for (at, byte) in range.zip(value.to_le_bytes()) {
            image[at] = image[at] & !self.writable[at] | byte & self.writable[at];
            if let Some(half) = (at as u64).checked_sub(pci::COMMAND).filter(|half| *half < 2) {
                let (bits, mask) =
                    (u16::from(byte) << (8 * half), OWNED_COMMAND & 0xff << (8 * half));
                self.command.store(self.command() & !mask | bits & mask, Ordering::Release);
            }
        }
    }

    fn image(&self) -> MutexGuard<'_, [u8; SIZE]> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn command(&self) -> u16 {
        self.command.load(Ordering::Acquire)
    }

    pub(super) fn set_command(&self, bit: u16, on: bool) {
        if on {
            self.command.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.command.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    pub(super) fn read(&self, offset: u64, width: usize, interrupts: &Interrupts) -> u32 {
        let Some(range) = checked(offset, width) else { return u32::MAX };
        let mut image = *self.image();
        let mut status =
            u16::from_le_bytes([image[pci::STATUS as usize], image[pci::STATUS as usize + 1]]);
        if interrupts.level() {
            status |= STATUS_INTERRUPT;
        }
        put(&mut image, pci::COMMAND as usize, &self.command().to_le_bytes());
        put(&mut image, pci::STATUS as usize, &status.to_le_bytes());
        let kind = interrupts.kind();
        if self.has_msi && kind == Some(IrqKind::Msi) {
            let (masked, pending) = interrupts.bits(0);
            image[CAP_MSI_AT + 2] |= 1;
            put(&mut image, CAP_MSI_AT + 16, &(masked as u32).to_le_bytes());
            put(&mut image, CAP_MSI_AT + 20, &(pending as u32).to_le_bytes());
        }
        if self.has_msix && kind == Some(IrqKind::MsiX) {
            image[CAP_MSIX_AT + 3] |= 0x80;
        }
        word(&image, range)
    }

    pub(super) fn write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        let Some(range) = checked(offset, width) else {
            return Err(Error::Invalid(format!(
                "a write of {width} bytes at {offset:#x} of a configuration space of {SIZE}"
            )));
        };
        self.filter.check(offset, width, value, self.command())?;
        // The interrupt line register is a note of the firmware's; everything else is read-only.
        // [PCI 6.2.4]
        if let Some((at, byte)) =
            range.zip(value.to_le_bytes()).find(|(at, _)| *at == INTERRUPT_LINE)
        {
            self.image()[at] = byte;
        }
        Ok(())
    }
}

fn checked(offset: u64, width: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let valid = matches!(width, 1 | 2 | 4) && start.is_multiple_of(width) && start < SIZE;
    valid.then(|| start..start + width)
}

fn word(image: &[u8; SIZE], range: Range<usize>) -> u32 {
    range.rev().fold(0, |value, at| value << 8 | u32::from(image[at]))
}

fn put(image: &mut [u8; SIZE], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The bits that hardware lets the platform change. [PCI 6.2.5.1, 6.8.1, 6.8.2]
fn writable(identity: &Identity) -> [u8; SIZE] {
    let mut mask = [0; SIZE];
    mask[INTERRUPT_LINE] = 0xff;
    for bar in &identity.bars {
        let kind: u32 = if bar.ports { 3 } else { 15 };
        let size = u32::try_from(bar.len - 1).unwrap_or(u32::MAX);
        put(
            &mut mask,
            pci::BAR0 as usize + usize::from(bar.index) * 4,
            &(!size & !kind).to_le_bytes(),
        );
    }
    if identity.msi > 0 {
        // Enable and how many; address, data, masks.
        mask[CAP_MSI_AT + 2] = 0x71;
        mask[CAP_MSI_AT + 4..CAP_MSI_AT + 14].fill(0xff);
        mask[CAP_MSI_AT + 16..CAP_MSI_AT + 20].fill(0xff);
    }
    if identity.msix.is_some() {
        // Enable, and the mask of all.
        mask[CAP_MSIX_AT + 3] = 0xc0;
    }
    mask
}

/// Where the firmware of a real machine would have put it: any address does, as nobody reaches a
/// model by address.
fn put_bar(image: &mut [u8; SIZE], bar: &BarLayout) {
    let at = pci::BAR0 as usize + usize::from(bar.index) * 4;
    let address: u32 = if bar.ports {
        (0xc000 + 0x100 * u32::from(bar.index)) | 1
    } else {
        0xe000_0000 | u32::from(bar.index) << 24
    };
    put(image, at, &address.to_le_bytes());
}

/// The list of capabilities: MSI, MSI-X, PCI Express, the vendor's own. [PCI 6.7]
fn put_capabilities(image: &mut [u8; SIZE], identity: &Identity, own: &[Vec<u8>]) {
    let mut link = pci::CAPABILITIES as usize;
    let mut chain = |image: &mut [u8; SIZE], at: usize, id: u8| {
        image[pci::STATUS as usize] |= pci::STATUS_CAPABILITIES as u8;
        image[link] = at as u8;
        image[at] = id;
        link = at + 1;
    };
    if identity.msi > 0 {
        chain(image, CAP_MSI_AT, pci::CAP_MSI);
        // Multiple message capable (log2), 64-bit, per-vector masking. [PCI 6.8.1.3]
        let control = (identity.msi.ilog2() as u16) << 1 | 1 << 7 | 1 << 8;
        put(image, CAP_MSI_AT + 2, &control.to_le_bytes());
    }
    if let Some(msix) = identity.msix {
        chain(image, CAP_MSIX_AT, pci::CAP_MSIX);
        put(image, CAP_MSIX_AT + 2, &(msix.vectors - 1).to_le_bytes());
        put(image, CAP_MSIX_AT + 4, &(msix.table | u32::from(msix.bar)).to_le_bytes());
        put(image, CAP_MSIX_AT + 8, &(msix.pba | u32::from(msix.bar)).to_le_bytes());
    }
    if identity.express {
        chain(image, CAP_EXPRESS_AT, pci::CAP_EXPRESS);
        // Version 2, endpoint; function level reset. [PCIe 7.5.3.2, 7.5.3.3]
        put(image, CAP_EXPRESS_AT + 2, &2u16.to_le_bytes());
        put(image, CAP_EXPRESS_AT + 4, &(1u32 << 28).to_le_bytes());
    }
    for (at, bytes) in
        (CAP_VENDOR_AT..SIZE - CAP_VENDOR_STRIDE + 1).step_by(CAP_VENDOR_STRIDE).zip(own)
    {
        chain(image, at, pci::CAP_VENDOR);
        put(image, at + 2, &bytes[..bytes.len().min(CAP_VENDOR_STRIDE - 2)]);
    }
}
