//! From a device's name to a disk in this process.

use anyhow::{Result, bail};
use ring3_class::block::{Disk, Null};

/// Bytes of the null disk.
const NULL_BYTES: u64 = 1 << 30;

/// The first disk of the device that `uri` names, with room for `buffers` bytes of requests; `null` is a disk that does nothing.
pub fn open_disk(uri: &str, buffers: usize) -> Result<Box<dyn Disk>> {
    if uri == "null" {
        return Ok(Box::new(Null::new(512, NULL_BYTES / 512, buffers)?));
    }
    bail!("{uri}: no driver")
}
