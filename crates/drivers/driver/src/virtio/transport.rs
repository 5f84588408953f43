//! A virtio device over PCI: its status, its features, its queues. [virtio 3.1.1, 4.1]

use std::sync::Arc;
use std::time::Duration;

use ring3_device::{Bar, BusWidth, Deadline, Device, Error, poll_until};
use ring3_spec::register::{PureRead, Reg, Ro, Rw, Value};
use ring3_spec::virtio::{self as spec, common};

use super::Layout;
use super::saved::SavedQueueAddresses;
use super::structures::Structure;
use super::virtqueue::{Doorbell, Rings, Virtqueue};

/// A reset that takes longer than this is none. The specification names no time. [virtio 4.1.4.3.2]
const RESET: Duration = Duration::from_secs(2);
/// A configuration that changes more often than this while it is read is none.
const READINGS: u32 = 8;

/// A device that was found.
pub(super) struct Transport {
    pub(super) device: Arc<dyn Device>,
    common: Structure,
    config: Structure,
    notify: Structure,
    /// What a queue's notify offset is multiplied by.
    multiplier: u64,
    layout: Layout,
}

impl Transport {
    /// Finds the structures of `device`, whose configuration has `config` bytes at least. [virtio
    /// 4.1.4]
    pub(super) fn find(
        device: Arc<dyn Device>,
        config: u64,
        layout: Layout,
    ) -> Result<Self, Error> {
        let common = Structure::find(&*device, spec::TYPE_COMMON, common::LEN)?;
        let config = Structure::find(&*device, spec::TYPE_DEVICE, config)?;
        let notify = Structure::find(&*device, spec::TYPE_NOTIFY, 2)?;
        let multiplier =
            device.config_read(notify.capability + spec::CAP_NOTIFY_MULTIPLIER, 4).into();
        Ok(Self { device, common, config, notify, multiplier, layout })
    }

    /// Resets the device. When this succeeds, it uses no memory that it was given. [virtio 2.4,
    /// 3.3.1]
    pub(super) fn reset(&self) -> Result<(), Error> {
        self.common.write(common::DEVICE_STATUS, spec::STATUS_RESET);
        poll_until(Deadline::after(RESET), "the device's reset (device_status = 0)", || {
            Ok((self.common.read_alive(common::DEVICE_STATUS)? == spec::STATUS_RESET).then_some(()))
        })
    }

    /// From a reset to agreed features; returns those of `wanted` that the device has. Without
    /// `VERSION_1` it is none of this driver's. [virtio 3.1.1]
    pub(super) fn negotiate(&self, wanted: u64) -> Result<u64, Error> {
        self.common.write(common::DEVICE_STATUS, spec::ACKNOWLEDGE);
        self.common.write(common::DEVICE_STATUS, spec::ACKNOWLEDGE | spec::DRIVER);
        let packed = if self.layout == Layout::Split { 0 } else { spec::RING_PACKED };
        let offered = self.device_features();
        let name = self.device.name();
        // Such a device takes addresses for those of the machine's memory: where they are an
        // IOMMU's, it would read and write somewhere else. [virtio 6.1]
        if offered & spec::ACCESS_PLATFORM == 0 && self.device.dma().iommu().is_bypassable() {
            return Err(Error::Unsupported(format!(
                "{name}: its transfers go around the IOMMU: give it iommu_platform=on"
            )));
        }
        // Packed virtqueues are told by flags: asked by positions, QEMU's card names one, takes
        // packets beyond it and sleeps (virtio_net_tx_complete), so that it is never told again.
        // docs/net.md has more.
        let events = if offered & packed == 0 { spec::EVENT_IDX } else { 0 };
        // ORDER_PLATFORM wants the barriers of a device that is hardware. Those of
        // `ring3_device::ring` are, where it compiles: its fences hold stores back from a doorbell,
        // which is an uncached store, and loads behind an interrupt or a register.
        let platform = spec::ACCESS_PLATFORM | spec::ORDER_PLATFORM;
        let features = offered & (wanted | packed | events | spec::VERSION_1 | platform);
        for (select, half) in [(0, features), (1, features >> 32)] {
            self.common.write(common::DRIVER_FEATURE_SELECT, select);
            self.common.write(common::DRIVER_FEATURE, half as u32);
        }
        self.common
            .write(common::DEVICE_STATUS, spec::ACKNOWLEDGE | spec::DRIVER | spec::FEATURES_OK);
        let status = self.common.read_alive(common::DEVICE_STATUS)?;
        if features & spec::VERSION_1 == 0 || status & spec::FEATURES_OK == 0 {
            return Err(Error::Unsupported(format!(
                "{name}: it does not agree to features {features:#x} of {offered:#x}"
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

    /// What was agreed upon, by a device that was not reset since. [virtio 4.1.4.3]
    pub(super) fn negotiated_features(&self) -> u64 {
        let half = |select| {
            self.common.write(common::DRIVER_FEATURE_SELECT, select);
            u64::from(self.common.read(common::DRIVER_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// The device goes. [virtio 3.1.1]
    pub(super) fn set_driver_ok(&self) {
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
            return Err(Error::Fatal(
                "it was reset behind the driver's back (DRIVER_OK is 0)".into(),
            ));
        }
        Ok(())
    }

    /// Whether it is as after a reset, though it was started.
    pub(super) fn is_reset(&self) -> bool {
        self.common.read(common::DEVICE_STATUS) & spec::DRIVER_OK == 0
    }

    /// Most entries of queue `queue`; 0 if there is none such. [virtio 4.1.4.3]
    pub(super) fn queue_size(&self, queue: u16) -> u16 {
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.read(common::QUEUE_SIZE)
    }

    /// Gives queue `queue` memory for `size` entries, and enables it. `features` are those that
    /// were agreed upon. [virtio 4.1.5.1.3]
    pub(super) fn make_queue(
        &self,
        queue: u16,
        size: u16,
        vector: u16,
        features: u64,
    ) -> Result<Virtqueue, Error> {
        let most = self.queue_size(queue);
        if most < size {
            return Err(Error::Protocol(format!(
                "queue {queue} has {most} entries, and others have {size}"
            )));
        }
        let rings = Rings::new(self.device.dma().arena(), size, features)?;
        self.common.write(common::QUEUE_SELECT, queue);
        self.common.write(common::QUEUE_SIZE, size);
        self.common.write(common::QUEUE_VECTOR, vector);
        if self.common.read(common::QUEUE_VECTOR) != vector {
            return Err(Error::Protocol(format!("queue {queue} does not take vector {vector}")));
        }
        let places = [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE];
        places
            .into_iter()
            .zip(rings.places)
            .for_each(|(register, address)| self.common.write_halves(register, address));
        let doorbell = self.doorbell(queue)?;
        self.common.write(common::QUEUE_ENABLE, 1);
        Ok(Virtqueue::new(rings, doorbell))
    }

    /// Where queue `queue` is notified. [virtio 4.1.4.4]
    pub(super) fn doorbell(&self, queue: u16) -> Result<Doorbell, Error> {
        self.common.write(common::QUEUE_SELECT, queue);
        let offset =
            u64::from(self.common.read(common::QUEUE_NOTIFY_OFF)).saturating_mul(self.multiplier);
        if offset.saturating_add(2) > self.notify.len {
            return Err(Error::Protocol(format!(
                "queue {queue} is notified at {offset:#x} of {:#x} bytes",
                self.notify.len
            )));
        }
        Ok(Doorbell::new(self.notify.place(offset), queue))
    }

    /// Whether the device, which goes, has queue `queue` there.
    pub(super) fn has_queue(&self, queue: u16, saved: &SavedQueueAddresses) -> bool {
        self.common.write(common::QUEUE_SELECT, queue);
        let half = |register: Reg<u64, Rw>, at: u64| {
            u64::from(self.common.read::<u32, Ro>(Reg::at((register.offset() + at) as u32)))
        };
        let places = [common::QUEUE_DESC, common::QUEUE_DRIVER, common::QUEUE_DEVICE];
        let places = places.map(|register| half(register, 0) | half(register, 4) << 32);
        let enabled = self.common.read(common::QUEUE_ENABLE) == 1;
        enabled && (self.common.read(common::QUEUE_SIZE), places) == (saved.size, saved.places)
    }

    /// Whether the device offers all of `features`.
    pub(super) fn offers(&self, features: u64) -> bool {
        features & !self.device_features() == 0
    }

    /// The BAR with the doorbells, for a [queue of its own](Virtqueue::ring_in).
    pub(super) fn doorbells(&self) -> Result<Bar, Error> {
        self.notify.own_bar(&*self.device)
    }

    /// Has `vector` signal changes of the configuration. [virtio 4.1.5.1.2]
    pub(super) fn signal_config(&self, vector: u16) -> Result<(), Error> {
        self.common.write(common::CONFIG_VECTOR, vector);
        if self.common.read(common::CONFIG_VECTOR) == vector {
            return Ok(());
        }
        Err(Error::Protocol(format!("the configuration does not take vector {vector}")))
    }

    /// A field of the device's own configuration.
    pub(super) fn config<T: Value<Raw: BusWidth>, A: PureRead>(&self, register: Reg<T, A>) -> T {
        self.config.read(register)
    }

    /// Bytes of the device's own configuration.
    pub(super) fn config_len(&self) -> u64 {
        self.config.len
    }

    /// What `read` makes of several fields, all of the same configuration. [virtio 2.5.1]
    pub(super) fn read_consistent_config<T>(&self, read: impl Fn() -> T) -> Result<T, Error> {
        for _ in 0..READINGS {
            let generation = self.common.read(common::CONFIG_GENERATION);
            let value = read();
            if self.common.read(common::CONFIG_GENERATION) == generation {
                return Ok(value);
            }
        }
        Err(Error::Protocol(format!(
            "its configuration changed during each of {READINGS} readings"
        )))
    }
}
