//! Which cause has which vector. [82574 7.4]
//!
//! With MSI-X, vector 0 is the queue's, both directions, and vector 1 tells of the link. With one vector (MSI, the pin) both share it through a
//! [`FanOut`], and reading ICR clears all causes.

use std::sync::Arc;

use ring3_device::irq::{FanOut, Irq};
use ring3_device::{Bar, Device, Error, Registers};
use ring3_spec::e1000::interrupt::{self, Causes, Throttle};

use super::card::Rings;
use super::options::Options;

/// The interrupts of a card.
pub(super) enum Vectors {
    /// None: everything is found by looking.
    Polled,
    /// One for the queue, one for the link.
    Own([Arc<Irq>; 2]),
    /// One for both.
    Shared(FanOut),
}

impl Vectors {
    /// Enables what `options` ask for and the function has.
    pub(super) fn enable(device: &dyn Device, bar: &Bar, options: &Options) -> Result<Self, Error> {
        let Some((kind, count)) = options.interrupts.choose(device.irq_limits())? else { return Ok(Self::Polled) };
        let mut vectors = device.irqs(kind, count.min(2))?.into_iter();
        match (vectors.next(), vectors.next()) {
            (Some(queue), Some(link)) => Ok(Self::Own([queue, link].map(Arc::new))),
            (Some(line), None) => {
                let (bar, causes) = (bar.clone(), interrupt::CAUSE.offset());
                let fired = move || {
                    // Clears the causes, and with them the pin.
                    bar.read32(causes);
                };
                Ok(Self::Shared(FanOut::new(line, fired)?))
            }
            (None, _) => Err(Error::Protocol(format!("no vector came of {kind:?} interrupts"))),
        }
    }

    /// The queue's.
    pub(super) fn of_queue(&self) -> Result<Option<Arc<Irq>>, Error> {
        self.of(0)
    }

    /// The link's.
    pub(super) fn of_link(&self) -> Result<Option<Arc<Irq>>, Error> {
        self.of(1)
    }

    fn of(&self, owner: usize) -> Result<Option<Arc<Irq>>, Error> {
        Ok(match self {
            Self::Polled => None,
            Self::Own(vectors) => Some(vectors[owner].clone()),
            Self::Shared(fan_out) => Some(Arc::new(fan_out.outlet()?)),
        })
    }

    /// Tells the card which cause has which vector, and lets them come.
    pub(super) fn program(&self, registers: &Registers, options: &Options, rings: Option<&Rings>) {
        let interval = options.throttle.as_nanos().div_ceil(Throttle::UNIT_NANOS.into()).min(0xffff) as u32;
        let throttle = Throttle(0).with_interval(interval);
        if let Self::Own(_) = self {
            let vector = |number: u32| interrupt::Vectors::VALID | number;
            let vectors = interrupt::Vectors(0).with_receive0(vector(0)).with_transmit0(vector(0)).with_other(vector(1));
            registers.write(interrupt::VECTORS, vectors.with_each_write_back(1));
            registers.write(interrupt::AUTO_CLEAR, Causes::NONE.with_receive_queues(1).with_transmit_queues(1).with_other(1));
            registers.write(interrupt::vector_throttle(0), throttle);
        } else {
            registers.write(interrupt::THROTTLE, throttle);
        }
        if rings.is_some() {
            self.open(registers, self.received());
        }
        if rings.is_some_and(|rings| rings.wake_on_tx) {
            self.open(registers, self.sent());
        }
        self.open(registers, Causes::NONE.with_link(1).with_other(1));
    }

    /// Lets the causes of descriptors that are sent come, or not.
    pub(super) fn wake_on_tx(&self, registers: &Registers, wake: bool) {
        match wake {
            true => self.open(registers, self.sent()),
            false => registers.write(interrupt::MASK_CLEAR, self.sent()),
        }
    }

    /// The link was looked at: the next change is a cause again.
    pub(super) fn reopen_link(&self, registers: &Registers) {
        if let Self::Own(_) = self {
            registers.write(interrupt::ACKNOWLEDGE, Causes::NONE.with_link(1).with_other(1));
        }
        self.open(registers, Causes::NONE.with_link(1).with_other(1));
    }

    fn open(&self, registers: &Registers, causes: Causes) {
        if !matches!(self, Self::Polled) {
            registers.write(interrupt::MASK_SET, causes);
        }
    }

    fn received(&self) -> Causes {
        match self {
            Self::Own(_) => Causes::NONE.with_receive_queues(1),
            _ => Causes::NONE.with_received(1),
        }
    }

    fn sent(&self) -> Causes {
        match self {
            Self::Own(_) => Causes::NONE.with_transmit_queues(1),
            _ => Causes::NONE.with_sent(1),
        }
    }
}
