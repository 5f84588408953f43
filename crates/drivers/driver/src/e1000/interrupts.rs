//! Which cause has which vector. [82574 7.4; 82576 7.3]
//!
//! With MSI-X, each queue has a vector for both directions, and the last one tells of the link.
//! With one vector (MSI, the pin) all share it through a [`FanOut`], and reading ICR clears all
//! causes.

use std::sync::Arc;
use std::time::Duration;

use ring3_class::net::Throttle;
use ring3_device::irq::{FanOut, Irq, IrqKind};
use ring3_device::{Bar, Device, Error, Registers};
use ring3_spec::e1000::advanced::{self, Messages, OtherVector, QueueVectors};
use ring3_spec::e1000::interrupt::{self, Causes};

use super::options::Options;
use super::variant::{Family, Variant};

/// The interrupts of a card.
pub(super) struct Vectors {
    family: Family,
    lines: Lines,
}

enum Lines {
    /// None: everything is found by looking.
    Polled,
    /// One for each queue, and the last for the link.
    Own(Vec<Arc<Irq>>),
    /// One for all.
    Shared(FanOut),
}

impl Vectors {
    /// Enables what `options` ask for and the function has.
    pub(super) fn enable(
        device: &dyn Device,
        bar: &Bar,
        variant: Variant,
        options: &Options,
    ) -> Result<Self, Error> {
        let family = variant.family;
        let Some((kind, count)) = options.interrupts.choose(device.irq_limits())? else {
            return Ok(Self { family, lines: Lines::Polled });
        };
        let count = if kind == IrqKind::MsiX { count.min(variant.vectors.max(1)) } else { 1 };
        let mut vectors: Vec<Irq> = device.irqs(kind, count)?;
        let lines = match vectors.len() {
            0 => return Err(Error::Protocol(format!("no vector came of {kind:?} interrupts"))),
            1 => {
                let (bar, causes) = (bar.clone(), interrupt::CAUSE.offset());
                let fired = move || {
                    // Clears the causes, and with them the pin.
                    bar.read32(causes);
                };
                Lines::Shared(FanOut::new(vectors.remove(0), fired)?)
            }
            _ => Lines::Own(vectors.into_iter().map(Arc::new).collect()),
        };
        Ok(Self { family, lines })
    }

    /// Queues that it can have, of `queues`.
    pub(super) fn queues(&self, queues: u16) -> u16 {
        match &self.lines {
            Lines::Own(vectors) => queues.min(vectors.len() as u16 - 1),
            _ => queues,
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        match &self.lines {
            Lines::Polled => 0,
            Lines::Own(vectors) => vectors.len() as u16,
            Lines::Shared(_) => 1,
        }
    }

    /// That of queue `index`.
    pub(super) fn of_queue(&self, index: u32) -> Result<Option<Arc<Irq>>, Error> {
        self.of(|vectors| vectors.get(index as usize))
    }

    /// The link's.
    pub(super) fn of_link(&self) -> Result<Option<Arc<Irq>>, Error> {
        self.of(|vectors| vectors.last())
    }

    fn of(
        &self,
        which: impl Fn(&[Arc<Irq>]) -> Option<&Arc<Irq>>,
    ) -> Result<Option<Arc<Irq>>, Error> {
        Ok(match &self.lines {
            Lines::Polled => None,
            Lines::Own(vectors) => which(vectors).cloned(),
            Lines::Shared(fan_out) => Some(Arc::new(fan_out.subscribe()?)),
        })
    }

    /// Tells the card which cause has which vector, and lets the link's come.
    pub(super) fn program(&self, registers: &Registers, options: &Options) {
        match (&self.lines, self.family) {
            (Lines::Own(vectors), Family::I82576) => {
                let (all, link) = ((1 << vectors.len()) - 1, vectors.len() as u32 - 1);
                registers.write(
                    advanced::MESSAGES,
                    Messages(0).with_clear_on_read(1).with_many(1).with_pending_clear(1),
                );
                registers.write(advanced::VECTOR_AUTO_CLEAR, all);
                registers.write(
                    advanced::OTHER_VECTOR,
                    OtherVector(0).with_other(QueueVectors::VALID | link),
                );
                registers.write(advanced::VECTOR_MASK_SET, 1 << link);
            }
            (_, Family::I82576) => {
                registers.write(advanced::MESSAGES, Messages(0).with_clear_on_read(1));
            }
            (Lines::Own(_), _) => {
                let vector = |number: u32| interrupt::Vectors::VALID | number;
                let vectors = interrupt::Vectors(0)
                    .with_receive0(vector(0))
                    .with_transmit0(vector(0))
                    .with_other(vector(1));
                registers.write(interrupt::VECTORS, vectors.with_each_write_back(1));
                registers.write(
                    interrupt::AUTO_CLEAR,
                    Causes::NONE.with_receive_queues(1).with_transmit_queues(1).with_other(1),
                );
            }
            _ => {}
        }
        let interval = match options.throttle {
            Throttle::Off | Throttle::Adaptive => Duration::ZERO,
            Throttle::Fixed(interval) => interval,
        };
        (0..self.throttles()).for_each(|index| self.throttle(registers, index, interval));
        self.open(registers, self.link());
    }

    /// Queues that have a throttle of their own.
    pub(super) fn throttles(&self) -> u32 {
        match &self.lines {
            Lines::Polled => 0,
            Lines::Own(vectors) => vectors.len() as u32 - 1,
            Lines::Shared(_) => 1,
        }
    }

    /// From now on the vector of queue `index` interrupts once in `interval`; as long as its
    /// register can say, if that is longer. [82574 10.2.4, ITR and EITR; 82576 8.8.14]
    pub(super) fn throttle(&self, registers: &Registers, index: u32, interval: Duration) {
        let units =
            interval.as_nanos().div_ceil(interrupt::Throttle::UNIT_NANOS.into()).min(0xffff) as u32;
        let throttle = interrupt::Throttle(0).with_interval(units);
        match (&self.lines, self.family) {
            (_, Family::I82576) => {
                let throttle =
                    advanced::Throttle(0).with_interval(interval.as_micros().min(0x1fff) as u32);
                registers.write(advanced::vector_throttle(index), throttle);
            }
            (Lines::Own(_), _) => registers.write(interrupt::vector_throttle(index), throttle),
            _ => registers.write(interrupt::THROTTLE, throttle),
        }
    }

    /// Lets the causes of queue `index` come: of what is received, and with `wake_on_tx` of what
    /// was sent.
    pub(super) fn open_queue(&self, registers: &Registers, index: u32, wake_on_tx: bool) {
        match (&self.lines, self.family) {
            (Lines::Own(_), Family::I82576) => {
                self.wake_on_tx(registers, index, wake_on_tx);
                registers.write(advanced::VECTOR_MASK_SET, 1 << index);
            }
            _ => {
                self.open(registers, self.received());
                if wake_on_tx {
                    self.open(registers, self.sent());
                }
            }
        }
    }

    /// Nothing more comes of queue `index`, of several that are open.
    pub(super) fn close_queue(&self, registers: &Registers, index: u32) {
        if let Lines::Own(_) = self.lines {
            registers.write(advanced::VECTOR_MASK_CLEAR, 1 << index);
        }
    }

    /// Lets the causes of descriptors of queue `index` that are sent come, or not.
    pub(super) fn wake_on_tx(&self, registers: &Registers, index: u32, wake: bool) {
        match (&self.lines, self.family, wake) {
            (Lines::Own(_), Family::I82576, _) => {
                let vector = QueueVectors::VALID | index;
                let vectors = QueueVectors(0).with_receive(vector).with_transmit(if wake {
                    vector
                } else {
                    0
                });
                registers.write(advanced::queue_vectors(index), vectors);
            }
            (_, _, true) => self.open(registers, self.sent()),
            // Where queues share the vector, another one may want it.
            (_, Family::I82576, false) => {}
            (_, _, false) => registers.write(interrupt::MASK_CLEAR, self.sent()),
        }
    }

    /// The link was looked at: the next change is a cause again.
    pub(super) fn reopen_link(&self, registers: &Registers) {
        if let Lines::Own(_) = self.lines {
            // On QEMU's 82574L one that stays, as that of a lost frame, fires the vector again with
            // each frame that is received.
            let causes = if self.family == Family::I82574 { Causes::OTHERS } else { self.link() };
            registers.write(interrupt::ACKNOWLEDGE, causes);
        }
        self.open(registers, self.link());
    }

    fn open(&self, registers: &Registers, causes: Causes) {
        if !matches!(self.lines, Lines::Polled) {
            registers.write(interrupt::MASK_SET, causes);
        }
    }

    fn link(&self) -> Causes {
        Causes::NONE.with_link(1).with_other((self.family == Family::I82574).into())
    }

    fn received(&self) -> Causes {
        match self.lines {
            Lines::Own(_) => Causes::NONE.with_receive_queues(1),
            _ => Causes::NONE.with_received(1),
        }
    }

    fn sent(&self) -> Causes {
        match self.lines {
            Lines::Own(_) => Causes::NONE.with_transmit_queues(1),
            _ => Causes::NONE.with_sent(1),
        }
    }
}
