//! The device as a program: what the driver is written against before there is hardware.

use ring3_model::{BarLayout, Bus, Identity, Model, Platform, SimDevice};

use crate::spec;

/// The device, simulated.
pub type SimSkeleton = SimDevice<SkeletonModel>;

/// Opens one. Its work is done within the register write that starts it, so tests need no thread.
pub fn open(name: &str) -> Result<SimSkeleton, ring3_device::Error> {
    SimDevice::new(name, SkeletonModel::default(), &Platform::default())
}

/// The registers.
#[derive(Default)]
pub struct SkeletonModel {
    length: u32,
    source: u64,
    status: u32,
    result: u64,
    /// A test has it never finish.
    pub stuck: bool,
}

impl SkeletonModel {
    fn execute(&mut self, bus: &Bus, command: u32) {
        self.status = spec::STATUS_BUSY;
        if self.stuck {
            return;
        }
        let mut bytes = vec![0; self.length as usize];
        // An address that the device does not reach is the IOMMU's to report.
        self.status = match bus.read(self.source, &mut bytes) {
            Ok(()) => 0,
            Err(_) => spec::STATUS_FAILED,
        };
        self.result = result(command, &bytes);
        bus.raise(0);
    }
}

/// What a command makes of the bytes.
fn result(command: u32, bytes: &[u8]) -> u64 {
    match command {
        spec::COMMAND_SUM => bytes.iter().map(|&byte| u64::from(byte)).sum(),
        _ => 0,
    }
}

impl Model for SkeletonModel {
    fn identity(&self) -> Identity {
        Identity {
            vendor: spec::VENDOR,
            device: spec::DEVICE,
            revision: 0,
            class: 0xff_00_00,
            bars: vec![BarLayout { index: 0, len: 4096, ports: false }],
            pins: 0,
            msi: 1,
            msix: None,
            express: false,
            dma_bits: 64,
        }
    }

    fn read(&mut self, _: &Bus, _: u8, offset: u64, _: usize) -> u64 {
        if offset == spec::IDENTIFICATION.offset() {
            spec::SIGNATURE.into()
        } else if offset == spec::STATUS.offset() {
            self.status.into()
        } else if offset == spec::RESULT.offset() {
            self.result
        } else {
            u64::MAX
        }
    }

    fn write(&mut self, bus: &Bus, _: u8, offset: u64, _: usize, value: u64) {
        if offset == spec::LENGTH.offset() {
            self.length = value as u32;
        } else if offset == spec::SOURCE.offset() {
            self.source = value;
        } else if offset == spec::COMMAND.offset() {
            self.execute(bus, value as u32);
        }
    }

    fn reset(&mut self, _: &Bus) {
        *self = Self { stuck: self.stuck, ..Self::default() };
    }
}
