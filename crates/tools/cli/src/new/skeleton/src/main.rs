//! Sums some bytes with the device that its argument names.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use ring3_device::{Deadline, Device, OpenOptions};

use skeleton::driver::Skeleton;
use skeleton::model;

fn open(name: &str) -> Result<Arc<dyn Device>, Box<dyn Error>> {
    Ok(match name {
        "sim:skeleton" => Arc::new(model::open(name)?),
        other => ring3_backend::open(&other.parse()?, OpenOptions::default())?,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "sim:skeleton".into());
    let driver = Skeleton::attach(open(&name)?)?;
    let buffer = driver.device().dma().arena().alloc(4096, 64)?;
    buffer.fill(2);
    let (sum, _buffer) = driver.sum(buffer, Deadline::after(Duration::from_secs(1)))?;
    println!("{name}: 4096 bytes of 2 are {sum}");
    Ok(())
}
