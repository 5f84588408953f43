//! The assignment of interrupt vectors to queues.
//!
//! With at least two vectors, vector 0 is the admin queue's and each I/O queue has its own. With
//! one (the pin, or a function with a single message) all queues share it through a [`FanOut`].

use std::sync::Arc;

use ring3_device::irq::{FanOut, Irq, IrqKind, IrqLimits};
use ring3_device::{Device, Error};
use ring3_quirks::Quirks;

use super::options::Options;
use super::quirks::{BROKEN_MSI, SINGLE_VECTOR};

/// The interrupts of a controller.
pub(super) enum Vectors {
    /// None: completions are found by looking.
    Polled,
    /// Vector 0 for the admin queue, one for each I/O queue.
    Own(Vec<Arc<Irq>>),
    /// One for all.
    Shared(FanOut),
}

impl Vectors {
    /// Enables what `options` ask for and the function has. `fired` is called on every interrupt of
    /// a shared vector.
    ///
    /// This comes before CC.EN: some controllers (QEMU's) look at the vectors only then.
    pub(super) fn enable(
        device: &dyn Device,
        options: &Options,
        quirks: &Quirks,
        fired: impl FnMut() + Send + 'static,
    ) -> Result<Self, Error> {
        let mut limits = device.irq_limits();
        if quirks.has(BROKEN_MSI) {
            limits = IrqLimits { msi: 0, ..limits };
        }
        let Some((kind, count)) = options.interrupts.choose(limits)? else {
            return Ok(Self::Polled);
        };
        let wanted = match quirks.has(SINGLE_VECTOR) {
            true => 1,
            false => options.max_queues.saturating_add(1),
        };
        let mut vectors = device.irqs(kind, count.min(wanted))?;
        match vectors.len() {
            0 => Err(Error::Protocol(format!("no vector came of {kind:?} interrupts"))),
            1 => Ok(Self::Shared(FanOut::new(vectors.remove(0), fired)?)),
            _ => Ok(Self::Own(vectors.into_iter().map(Arc::new).collect())),
        }
    }

    /// How they are signalled.
    pub(super) fn kind(&self) -> Option<IrqKind> {
        match self {
            Self::Polled => None,
            Self::Own(vectors) => vectors.first().map(|irq| irq.kind()),
            Self::Shared(fan_out) => Some(fan_out.kind()),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        match self {
            Self::Polled => 0,
            Self::Own(vectors) => vectors.len() as u16,
            Self::Shared(_) => 1,
        }
    }

    /// Lets all of them through, as whoever enables them the next time finds them.
    pub(super) fn open(&self) -> Result<(), Error> {
        match self {
            Self::Own(vectors) => vectors.iter().try_for_each(|irq| irq.unmask()),
            Self::Polled | Self::Shared(_) => Ok(()),
        }
    }

    /// Most I/O queues that they can serve.
    pub(super) fn queues(&self) -> u16 {
        match self {
            Self::Own(vectors) => (vectors.len() - 1) as u16,
            Self::Polled | Self::Shared(_) => u16::MAX,
        }
    }

    /// The interrupt of I/O queue `queue` (from 1 on), and its vector for the create command.
    pub(super) fn of_queue(&self, queue: u16) -> Result<(Option<Arc<Irq>>, Option<u16>), Error> {
        match self {
            Self::Polled => Ok((None, None)),
            Self::Own(vectors) => match vectors.get(usize::from(queue)) {
                Some(irq) => Ok((Some(irq.clone()), Some(queue))),
                None => Err(Error::Invalid(format!("queue {queue} has no vector"))),
            },
            Self::Shared(fan_out) => Ok((Some(Arc::new(fan_out.subscribe()?)), Some(0))),
        }
    }

    /// The admin queue's interrupt, where it has one of its own.
    pub(super) fn of_admin(&self) -> Option<&Arc<Irq>> {
        match self {
            Self::Own(vectors) => vectors.first(),
            Self::Polled | Self::Shared(_) => None,
        }
    }
}
