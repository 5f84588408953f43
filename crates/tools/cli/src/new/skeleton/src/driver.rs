//! The driver.
//!
//! # Trust    What the device says is input: it decides nothing but whether a wait is over.
//! # Waiting  Every wait takes a [`Deadline`].

use std::sync::Arc;

use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Deadline, Device, Error, Registers};

use crate::spec;

/// The device, ready.
pub struct Skeleton {
    registers: Registers,
    irq: Irq,
    device: Arc<dyn Device>,
}

impl Skeleton {
    /// Takes `device`, makes sure that it is one, and lets it reach its arena.
    pub fn attach(device: Arc<dyn Device>) -> Result<Self, Error> {
        let registers = Registers::new(device.bar(0)?, spec::REGISTERS)?;
        if registers.read_alive(spec::IDENTIFICATION)? != spec::SIGNATURE {
            return Err(Error::Protocol(format!("{} is another device", device.name())));
        }
        let irq = device.irqs(IrqKind::Msi, 1)?.pop();
        let irq = irq.ok_or_else(|| Error::Unsupported("the device has no MSI".into()))?;
        irq.unmask()?;
        device.set_bus_master(true)?;
        Ok(Self { registers, irq, device })
    }

    /// The device underneath.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The sum of the bytes of `buffer`, which comes back with it. [DATA, 0x10]
    pub fn sum(&self, buffer: DmaBuffer, deadline: Deadline) -> Result<(u64, DmaBuffer), Error> {
        self.execute(spec::COMMAND_SUM, buffer, deadline)
    }

    /// Has the device execute `command` over the bytes of `buffer`. The buffer is the device's
    /// until the command is over, however that ends.
    fn execute(
        &self,
        command: u32,
        mut buffer: DmaBuffer,
        deadline: Deadline,
    ) -> Result<(u64, DmaBuffer), Error> {
        self.registers.write(spec::SOURCE, buffer.iova());
        self.registers.write(spec::LENGTH, buffer.len() as u32);
        self.registers.write(spec::COMMAND, command);
        match self.finish(deadline) {
            Ok(result) => Ok((result, buffer)),
            Err(error) => {
                // The device may still read there. A reset ends that; without one, the memory is
                // given up: it is cheap, and somebody else's bytes are not the device's to read.
                if self.device.reset().is_err() {
                    buffer.abandon();
                }
                Err(error)
            }
        }
    }

    /// Waits until the device is idle: what it has found.
    fn finish(&self, deadline: Deadline) -> Result<u64, Error> {
        loop {
            // The interrupt says when to look; the register says what is.
            let status = self.registers.read_alive(spec::STATUS)?;
            if status & spec::STATUS_FAILED != 0 {
                return Err(Error::Protocol("the device could not read its bytes".into()));
            }
            if status & spec::STATUS_BUSY == 0 {
                self.irq.take()?;
                return Ok(self.registers.read(spec::RESULT));
            }
            if self.irq.wait(deadline)? == 0 {
                return Err(deadline.timeout("a command"));
            }
        }
    }
}
