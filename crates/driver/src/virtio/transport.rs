//! A virtio device over PCI: its structures, its status, its features, its queues. [virtio 3.1.1, 4.1]

use std::sync::Arc;
use std::time::Duration;

use ring3_device::config::capabilities;
use ring3_device::dma::DmaBuffer;
use ring3_device::ring::SplitRing;
use ring3_device::{Bar, Deadline, Device, Error, Registers, poll_until};
use ring3_spec::virtio::{self as spec, common, ring};
use ring3_spec::{pci, register};

/// The structures lie in this BAR, and the common configuration at its start, where the fence of the manifest expects the status.
pub(super) const BAR: u8 = 4;
/// A reset that takes longer than this is none. The specification names no time. [virtio 4.1.4.3.2]
const RESET: Duration = Duration::from_secs(2);

/// A device that was found.
pub(super) struct Transport {
    pub(super) device: Arc<dyn Device>,
    common: Registers,
    bar: Bar,
    /// Where the device's own configuration begins, and its bytes.
    config: (u64, u64),
    /// Where notifications begin, their bytes, and what a queue's offset is multiplied by.
    notify: (u64, u64, u64),
}

/// Where a queue is notified, and with what.
#[derive(Clone)]
pub(super) struct Doorbell {
    bar: Bar,
    at: u64,
    queue: u16,
}

impl Doorbell {
    /// [virtio 4.1.5.2]
    #[inline]
    pub(super) fn ring(&self) {
        self.bar.write16(self.at, self.queue);
    }
}

impl Transport {
    /// Finds the structures of `device`, whose configuration has `config` bytes at least. [virtio 4.1.4]
    pub(super) fn find(device: Arc<dyn Device>, config: u64) -> Result<Self, Error> {
        let read = |offset, width| device.config_read(offset, width);
        let own: Vec<u64> = capabilities(read).into_iter().filter(|(id, _)| *id == pci::CAP_VENDOR).map(|(_, at)| at).collect();
        let of = |kind: u8, least: u64| -> Result<(u64, u64, u64), Error> {
            // The first of a kind whose BAR means something is the one to use. [virtio 4.1.4.1]
            let known = |at: &&u64| read(**at + spec::CAP_TYPE, 1) as u8 == kind && read(**at + spec::CAP_BAR, 1) < 6;
            let at = *own.iter().find(known).ok_or_else(|| {
                Error::Unsupported(format!(
                    "{}: it has no virtio structure {kind}: a legacy device; give it disable-legacy=on",
                    device.name()
                ))
            })?;
            if read(at + spec::CAP_BAR, 1) != u32::from(BAR) {
                return Err(Error::Unsupported(format!("{}: its virtio structures are not in BAR {BAR}", device.name())));
            }
            let (offset, len) = (u64::from(read(at + spec::CAP_OFFSET, 4)), u64::from(read(at + spec::CAP_LENGTH, 4)));
            let end = device.bar_info(BAR).map_or(0, |bar| bar.len);
            if len < least || offset.checked_add(len).is_none_or(|last| last > end) || offset % 4 != 0 {
                return Err(Error::Protocol(format!(
                    "a virtio structure {kind} of {len} bytes at {offset:#x} of a BAR of {end}"
                )));
            }
            Ok((offset, len, at))
        };
        let (offset, ..) = of(spec::TYPE_COMMON, common::LEN)?;
        if offset != 0 {
            return Err(Error::Unsupported(format!(
                "{}: its common configuration is not at the start of BAR {BAR}",
                device.name()
            )));
        }
        let (config_at, config_len, _) = of(spec::TYPE_DEVICE, config)?;
        let (notify_at, notify_len, capability) = of(spec::TYPE_NOTIFY, 2)?;
        let multiplier = u64::from(read(capability + spec::CAP_NOTIFY_MULTIPLIER, 4));
        let bar = device.bar(BAR)?;
        let common = Registers::new(bar.clone(), common::LEN)?;
        Ok(Self { device, common, bar, config: (config_at, config_len), notify: (notify_at, notify_len, multiplier) })
    }

    /// Resets the device. When this succeeds, it uses no memory that it was given. [virtio 2.4, 3.3.1]
    pub(super) fn reset(&self) -> Result<(), Error> {
        self.common.write(common::DEVICE_STATUS, spec::STATUS_RESET);
        poll_until(Deadline::after(RESET), "the device's reset (device_status = 0)", || {
            Ok((self.common.read_alive(common::DEVICE_STATUS)? == spec::STATUS_RESET).then_some(()))
        })
    }

    /// From a reset to agreed features; returns those of `wanted` that the device has. Without `VERSION_1` it is none of this driver's. [virtio 3.1.1]
    pub(super) fn negotiate(&self, wanted: u64) -> Result<u64, Error> {
        self.common.write(common::DEVICE_STATUS, spec::ACKNOWLEDGE);
        self.common.write(common::DEVICE_STATUS, spec::ACKNOWLEDGE | spec::DRIVER);
        let offered = self.device_features();
        let features = offered & (wanted | spec::VERSION_1 | spec::ACCESS_PLATFORM);
        for (select, half) in [(0, features), (1, features >> 32)] {
            self.common.write(common::DRIVER_FEATURE_SELECT, select);
            self.common.write(common::DRIVER_FEATURE, half as u32);
        }
        self.common.write(common::DEVICE_STATUS, spec::ACKNOWLEDGE | spec::DRIVER | spec::FEATURES_OK);
        let status = self.common.read_alive(common::DEVICE_STATUS)?;
        if features & spec::VERSION_1 == 0 || status & spec::FEATURES_OK == 0 {
            return Err(Error::Unsupported(format!(
                "{}: it does not agree to features {features:#x} of {offered:#x}",
                self.device.name()
            )));
        }
        Ok(features)
    }

    fn device_features(&self) -> u64 {
        let half = |select| {
            self.common.write(common::DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read(common::DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// The device goes. [virtio 3.1.1]
    pub(super) fn go(&self) {
        let ready = spec::ACKNOWLEDGE | spec::DRIVER | spec::FEATURES_OK | spec::DRIVER_OK;
        self.common.write(common::DEVICE_STATUS, ready);
    }

    /// Fails if the device, which goes, does not any more.
    pub(super) fn check(&self) -> Result<(), Error> {
        let status = self.common.read_alive(common::DEVICE_STATUS)?;
        if status & spec::NEEDS_RESET != 0 {
            return Err(Error::Fatal("it needs a reset (DEVICE_NEEDS_RESET)".into()));
        }
        if status & spec::DRIVER_OK == 0 {
            return Err(Error::Fatal("it was reset behind the driver's back (DRIVER_OK is 0)".into()));
        }
        Ok(())
    }

    /// Most entries of queue `queue`; 0 if there is none such. [virtio 4.1.4.3]
    pub(super) fn queue_size(&self, queue: u16) -> u16 {
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.read(common::QUEUE_SIZE)
    }

    /// Gives queue `queue` memory for `size` entries, and enables it. [virtio 4.1.5.1.3]
    pub(super) fn make_queue(&self, queue: u16, size: u16, vector: u16) -> Result<(SplitRing<DmaBuffer>, Doorbell), Error> {
        let arena = self.device.dma().arena();
        let alloc = |bytes: usize, align: usize| arena.alloc(bytes, align).map(|words| words.tagged("virtqueue"));
        let words =
            [alloc(ring::table_bytes(size), 16)?, alloc(ring::available_bytes(size), 8)?, alloc(ring::used_bytes(size), 8)?];
        let places = words.each_ref().map(DmaBuffer::iova);
        let [table, available, used] = words;
        let split = SplitRing::new(table, available, used, size)?;
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.write(common::QUEUE_SIZE, size);
        self.common.write(common::QUEUE_VECTOR, vector);
        if self.common.read(common::QUEUE_VECTOR) != vector {
            return Err(Error::Protocol(format!("queue {queue} does not take vector {vector}")));
        }
        for (register, address) in [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE].into_iter().zip(places) {
            self.write64(register, address);
        }
        let offset = u64::from(self.common.read(common::QUEUE_NOTIFY_OFF)).saturating_mul(self.notify.2);
        if offset.saturating_add(2) > self.notify.1 {
            return Err(Error::Protocol(format!("queue {queue} is notified at {offset:#x} of {:#x} bytes", self.notify.1)));
        }
        self.common.write(common::QUEUE_ENABLE, 1);
        Ok((split, Doorbell { bar: self.bar.clone(), at: self.notify.0 + offset, queue }))
    }

    /// Has `vector` signal changes of the configuration. [virtio 4.1.5.1.2]
    pub(super) fn signal_config(&self, vector: u16) -> Result<(), Error> {
        self.common.write(common::CONFIG_VECTOR, vector);
        if self.common.read(common::CONFIG_VECTOR) == vector {
            return Ok(());
        }
        Err(Error::Protocol(format!("the configuration does not take vector {vector}")))
    }

    /// 16 bits of the device's own configuration.
    pub(super) fn config16(&self, register: register::Reg<u16, register::Ro>) -> u16 {
        self.bar.read16(self.config.0 + register.offset())
    }

    /// A byte of the device's own configuration.
    pub(super) fn config8(&self, offset: u64) -> u8 {
        self.bar.read8(self.config.0 + offset)
    }

    /// A driver may write 64 bits as two halves, and every device takes them so. [virtio 4.1.3.1]
    fn write64(&self, register: register::Reg<u64, register::Rw>, value: u64) {
        self.bar.write32(register.offset(), value as u32);
        self.bar.write32(register.offset() + 4, (value >> 32) as u32);
    }
}
