//! Driver of QEMU's teaching device. The smallest complete one: start here to write your own
//! (docs/tutorial.md).
//!
//! Written against `[EDU]`.
//!
//! # Shape
//! [`Edu`] owns the device, its registers and at most one interrupt. [`self_test`] shows all of it,
//! step by step.
//! # Trust    What the device says is input: it decides nothing but whether a wait is over.
//! # Waiting  Every wait takes a [`Deadline`]; by interrupt if one is enabled, by looking if not.

mod driver;
mod self_test;

use std::sync::Arc;

use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Deadline, Device, Error, Registers, poll_until};
use ring3_spec::edu as spec;

pub use driver::DRIVER;
pub use self_test::{Fact, self_test};

/// Device addresses that the device reaches: it drives 28 lines. Its arena must lie below.
pub const REACH: u64 = spec::DMA_MASK + 1;
/// The most bytes that one transfer moves. The device has one more, but QEMU up to 8 ends itself
/// when a transfer reaches the last.
pub const TRANSFER_LIMIT: usize = spec::BUFFER_SIZE - 1;
/// What the low byte of the identification always is. [EDU, 0x00]
const SIGNATURE: u32 = 0xed;

/// The device, ready.
pub struct Edu {
    registers: Registers,
    irq: Option<Irq>,
    device: Arc<dyn Device>,
}

impl Edu {
    /// Takes `device`, makes sure that it is one, and lets it reach its arena.
    pub fn attach(device: Arc<dyn Device>) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        let registers = Registers::new(device.bar(0)?, 0x100)?;
        if registers.read_alive(spec::IDENTIFICATION)? & 0xff != SIGNATURE {
            return Err(Error::Protocol(format!(
                "{} does not identify itself as the teaching device",
                device.name()
            )));
        }
        device.set_bus_master(true)?;
        Ok(Self { registers, irq: None, device })
    }

    /// Major and minor version. [EDU, 0x00]
    pub fn version(&self) -> Result<(u8, u8), Error> {
        let [_, _, minor, major] = self.registers.read_alive(spec::IDENTIFICATION)?.to_le_bytes();
        Ok((major, minor))
    }

    /// Fails unless the device answers with the inverse of `probe`. [EDU, 0x04]
    pub fn check_liveness(&self, probe: u32) -> Result<(), Error> {
        self.registers.write(spec::LIVENESS, probe);
        match self.registers.read(spec::LIVENESS) {
            answer if answer == !probe => Ok(()),
            u32::MAX => Err(Error::Gone),
            answer => Err(Error::Protocol(format!("liveness of {probe:#x} answered {answer:#x}"))),
        }
    }

    /// Waits by interrupts of `kind` from now on; `None` goes back to looking.
    pub fn wait_by(&mut self, kind: Option<IrqKind>) -> Result<(), Error> {
        self.irq = None;
        self.irq = match kind {
            Some(kind) => self.device.irqs(kind, 1)?.pop(),
            None => None,
        };
        let flags = if self.irq.is_some() { spec::STATUS_IRQ_AT_END } else { 0 };
        self.registers.write(spec::STATUS, flags);
        Ok(())
    }

    /// `n!` modulo 2^32. [EDU, 0x08]
    pub fn factorial(&self, n: u32, deadline: Deadline) -> Result<u32, Error> {
        self.registers.write(spec::FACTORIAL, n);
        let busy = || Ok(self.registers.read_alive(spec::STATUS)? & spec::STATUS_COMPUTING != 0);
        self.finish(spec::IRQ_FACTORIAL, "a factorial", deadline, busy)?;
        Ok(self.registers.read(spec::FACTORIAL))
    }

    /// Copies `buffer` into the device's memory. The buffer comes back with the completion.
    pub fn send(&self, buffer: DmaBuffer, deadline: Deadline) -> Result<DmaBuffer, Error> {
        self.transfer_buffer(buffer, 0, deadline)
    }

    /// Fills `buffer` from the device's memory.
    pub fn receive(&self, buffer: DmaBuffer, deadline: Deadline) -> Result<DmaBuffer, Error> {
        self.transfer_buffer(buffer, spec::DMA_TO_MEMORY, deadline)
    }

    /// Makes the device raise its interrupt with `causes`. [EDU, 0x60]
    pub fn raise(&self, causes: u32) {
        self.registers.write(spec::INTERRUPT_RAISE, causes);
    }

    /// Waits for an interrupt, acknowledges it and opens the mask; returns the causes. [EDU, 0x24
    /// and 0x64]
    pub fn wait_interrupt(&self, deadline: Deadline) -> Result<u32, Error> {
        let irq = self
            .irq
            .as_ref()
            .ok_or_else(|| Error::Invalid("no interrupt is enabled: call wait_by first".into()))?;
        loop {
            let count = irq.wait(deadline)?;
            let causes = self.registers.read_alive(spec::INTERRUPT_STATUS)?;
            // Acknowledge first: a pin that is still high when its mask opens is one more
            // interrupt.
            self.registers.write(spec::INTERRUPT_ACKNOWLEDGE, causes);
            irq.unmask()?;
            match (causes, count) {
                (0, 0) => return Err(deadline.timeout("an interrupt")),
                // Nothing is pending: the interrupt told of causes that were taken together with an
                // earlier one.
                (0, _) => {}
                (causes, _) => return Ok(causes),
            }
        }
    }

    /// The device underneath.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Waits until `cause` was signalled and the device is not `busy`, or just for the latter if no
    /// interrupt is enabled.
    fn finish(
        &self,
        cause: u32,
        what: &'static str,
        deadline: Deadline,
        busy: impl Fn() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        if self.irq.is_none() {
            return poll_until(deadline, what, || Ok((!busy()?).then_some(())));
        }
        while self.wait_interrupt(deadline)? & cause == 0 || busy()? {}
        Ok(())
    }

    fn transfer_buffer(
        &self,
        mut buffer: DmaBuffer,
        direction: u64,
        deadline: Deadline,
    ) -> Result<DmaBuffer, Error> {
        let result = self.transfer(buffer.iova(), buffer.len(), direction, deadline);
        match result {
            Ok(()) => Ok(buffer),
            // Who knows what a device does that did not finish: its memory comes back after a
            // reset, or never.
            Err(error) => {
                if self.device.reset().is_err() {
                    buffer.abandon();
                }
                Err(error)
            }
        }
    }

    /// Moves `len` bytes between device address `iova` and the start of the device's memory. [EDU,
    /// 0x80 to 0x98]
    fn transfer(
        &self,
        iova: u64,
        len: usize,
        direction: u64,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if len > TRANSFER_LIMIT || iova.checked_add(len as u64).is_none_or(|end| end > REACH) {
            return Err(Error::Invalid(format!(
                "a transfer of {len} bytes at {iova:#x}: at most {TRANSFER_LIMIT}, below {REACH:#x}"
            )));
        }
        let (from, to) = if direction == spec::DMA_TO_MEMORY {
            (spec::BUFFER, iova)
        } else {
            (iova, spec::BUFFER)
        };
        let signal = if self.irq.is_some() { spec::DMA_IRQ } else { 0 };
        self.registers.write(spec::DMA_SOURCE, from);
        self.registers.write(spec::DMA_DESTINATION, to);
        self.registers.write(spec::DMA_COUNT, len as u64);
        self.registers.write(spec::DMA_COMMAND, spec::DMA_START | direction | signal);
        let busy = || Ok(self.registers.read_alive(spec::DMA_COMMAND)? & spec::DMA_START != 0);
        self.finish(spec::IRQ_DMA, "a transfer", deadline, busy)
    }
}
