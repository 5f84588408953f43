//! From a device's name to its disks.

use ring3_class::block::{Disk, Null};

use crate::Error;

/// What to drive, and with which driver.
#[derive(Clone, Debug)]
pub enum Source {
    /// No device: requests end at once. The floor of measurements.
    Null {
        /// Bytes of the disk.
        bytes: u64,
        /// Bytes of a block.
        block_size: u32,
    },
}

impl Source {
    /// As the user named it.
    pub fn name(&self) -> String {
        match self {
            Self::Null { .. } => "null".into(),
        }
    }
}

/// Claims the device and starts its driver. `buffers` is how many bytes its users will want for their requests, over all disks.
///
/// The device is given back when the last of the disks is dropped.
pub fn attach(source: &Source, buffers: usize) -> Result<Vec<Box<dyn Disk>>, Error> {
    match *source {
        Source::Null { bytes, block_size } => {
            let disk = Null::new(block_size, bytes / u64::from(block_size), buffers);
            let disk = disk.map_err(|error| Error::Device { device: source.name(), source: error })?;
            Ok(vec![Box::new(disk)])
        }
    }
}
