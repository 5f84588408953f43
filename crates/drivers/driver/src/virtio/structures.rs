//! Where a device's structures lie: found by its capabilities, in any of its BARs. [virtio 4.1.4]

use ring3_device::config::virtio_structure;
use ring3_device::{Bar, BusWidth, Device, Error};
use ring3_spec::register::{PureRead, Reg, Value, Width, Writable};
use ring3_spec::virtio as spec;

/// One structure.
pub(super) struct Structure {
    bar: Bar,
    index: u8,
    /// Where it begins in the BAR.
    at: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Where its capability is in configuration space.
    pub(super) capability: u64,
}

impl Structure {
    /// The structure of `kind` of `device`, which has `least` bytes at least.
    pub(super) fn find(device: &dyn Device, kind: u8, least: u64) -> Result<Self, Error> {
        let read = |offset, width| device.config_read(offset, width);
        let capability = virtio_structure(read, kind).ok_or_else(|| {
            let name = device.name();
            Error::Unsupported(format!(
                "{name}: it has no virtio structure {kind}: a legacy \
                 device; give it disable-legacy=on"
            ))
        })?;
        let index = read(capability + spec::CAP_BAR, 1) as u8;
        let (at, len) = (
            u64::from(read(capability + spec::CAP_OFFSET, 4)),
            u64::from(read(capability + spec::CAP_LENGTH, 4)),
        );
        let end = device.bar_info(index).map_or(0, |bar| bar.len);
        if len < least || at.checked_add(len).is_none_or(|last| last > end) || at % 4 != 0 {
            return Err(Error::Protocol(format!(
                "a virtio structure {kind} of {len} bytes at {at:#x} of BAR {index} of {end}"
            )));
        }
        Ok(Self { bar: device.bar(index)?, index, at, len, capability })
    }

    /// Reads a register whose place is counted from the structure's begin.
    pub(super) fn read<T: Value<Raw: BusWidth>, A: PureRead>(&self, register: Reg<T, A>) -> T {
        T::from_raw(T::Raw::read_from(&self.bar, self.at + register.offset()))
    }

    /// Reads one that is never all ones on a living device.
    pub(super) fn read_alive<T: Value<Raw: BusWidth>, A: PureRead>(
        &self,
        register: Reg<T, A>,
    ) -> Result<T, Error> {
        let raw = T::Raw::read_from(&self.bar, self.at + register.offset());
        if raw == T::Raw::ALL_ONES { Err(Error::Gone) } else { Ok(T::from_raw(raw)) }
    }

    /// Writes one.
    pub(super) fn write<T: Value<Raw: BusWidth>, A: Writable>(
        &self,
        register: Reg<T, A>,
        value: T,
    ) {
        value.into_raw().write_to(&self.bar, self.at + register.offset());
    }

    /// Writes one of 64 bits: as two halves, which every device takes. [virtio 4.1.3.1]
    pub(super) fn write_halves<A: Writable>(&self, register: Reg<u64, A>, value: u64) {
        let at = self.at + register.offset();
        self.bar.write32(at, value as u32);
        self.bar.write32(at + 4, (value >> 32) as u32);
    }

    /// Its bytes from `offset` on, for who writes there himself.
    pub(super) fn place(&self, offset: u64) -> (Bar, u64) {
        (self.bar.clone(), self.at + offset)
    }

    /// Its BAR once more, for who rings doorbells there and does nothing else.
    pub(super) fn own_bar(&self, device: &dyn Device) -> Result<Bar, Error> {
        device.bar(self.index)
    }
}
