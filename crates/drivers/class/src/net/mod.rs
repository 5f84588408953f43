//! Network cards.
//!
//! # Shape
//! A driver provides a [`Nic`]; a card opens [`Queue`]s, each for both directions and one thread. A
//! [`Packet`] is a buffer of the card's arena, the position of the bytes in it, and their metadata.
//! Four verbs move batches of packets, the same in every driver:
//!
//! | verb | moves |
//! |---|---|
//! | [`rx_provide`](Queue::rx_provide) | empty buffers to the card |
//! | [`rx_return`](Queue::rx_return) | received packets to the user |
//! | [`tx_provide`](Queue::tx_provide) | packets to the card |
//! | [`tx_return`](Queue::tx_return) | their buffers back |
//!
//! A batch is a slice of slots. Providing takes from its start and leaves empty slots; returning
//! fills it from its start. One call rings at most one doorbell.
//!
//! # Ownership
//! A buffer belongs to the user or to the queue, never to both: it moves. A user that must identify
//! returned buffers sets a [`token`](Packet::token) on them. A buffer that was provided for
//! reception returns with a packet; one that was provided for transmission returns when it was
//! sent, each piece separately; both in any order.
//!
//! - A **reset** of the card, in its driver, returns no receive buffers: the driver provides them
//!   again. Packets that were to be sent, and perhaps were not, return as if they had been sent,
//!   and are [counted](Counters::tx_lost). No packet is sent twice.
//! - A queue that is **dropped** stops, and its buffers return to the arena. If there is no proof
//!   that the card has stopped, they never do.
//! - A queue that is [**detached**](Queue::detach) leaves its buffers with the card, for the
//!   process that resumes it.
//! - After [`Error::Gone`] and [`Error::Fatal`] buffers return only when the queue is dropped.
//!
//! # Loss
//! A card drops packets for which there is no buffer, and counts them. A full queue accepts fewer
//! packets, so nothing else is lost on transmit while the link is up. Without a link, packets are
//! lost and counted, and their buffers return.
//!
//! # Ordering
//! Packets of one queue are sent in the order in which they were provided, and received in the
//! order in which they came.
//!
//! # Trust
//! Requests to a card are validated first ([`Limits`]); an invalid packet is [`Refused`] and stays
//! where it was. The driver validates what a card reports about a packet: a packet never contains
//! bytes outside of its buffer.

mod cable;
mod check;
mod checksum;
mod filter;
mod info;
mod mac;
mod meta;
mod packet;
mod saved;
mod throttle;

pub use cable::{Cable, End};
pub use check::{Limits, Refused};
pub use checksum::{complete, sum};
pub use filter::{Filter, Multicast};
pub use info::{Counters, FilterLimits, Info, Link, Offloads, QueueSettings};
pub use mac::Mac;
pub use meta::Meta;
pub use packet::{Checksum, ETHERNET_HEADER, Kind, Packet, Segmentation, VLAN_TAG};
pub use saved::SavedPacket;
pub use throttle::Throttle;

use ring3_device::Error;
use ring3_device::dma::Dma;
use ring3_device::wait::Source;

use crate::Saved;

/// A network card: one port of one.
pub trait Nic: Send + Sync {
    /// What it is called in messages: `vfio:0000:01:00.0`.
    fn name(&self) -> String;

    /// What it is and can. It holds for the life of the value.
    fn info(&self) -> &Info;

    /// The memory that it reaches: who provides packets allocates their buffers here, before the
    /// first.
    fn dma(&self) -> &Dma;

    /// The state of the wire now. What [`link_watch`](Self::link_watch) was pending for has been
    /// heard then.
    fn link(&self) -> Result<Link, Error>;

    /// What is pending when the link has changed since [`link`](Self::link) was last asked. There
    /// is one watch: [`Error::Busy`] while another lives.
    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error>;

    /// Sets what is let through, all of it; a reset in the driver sets it again. Before the first
    /// call it is [`Filter::own`] of the card's address.
    fn set_filter(&self, filter: &Filter) -> Result<(), Error>;

    /// What went through since it was opened, in all queues, with what the card itself has counted.
    /// For now and then: registers are read.
    fn counters(&self) -> Result<Counters, Error>;

    /// Opens `count` queues, among which the card spreads what it receives by flows. It receives
    /// from now on, into what is provided.
    ///
    /// [`Error::Busy`] while queues are open; [`Error::Invalid`] for settings that the card does
    /// not have.
    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error>;

    /// Opens the queues that were [detached](Queue::detach) as `saved`, in the order in which they
    /// were opened, with the packets that the card has had since. What it has received meanwhile is
    /// found by the first [`rx_return`](Queue::rx_return), and nothing is sent twice.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be the queues of this card. Its
    /// memory stays taken then, as it was.
    fn resume_queues(&self, _saved: &[Saved]) -> Result<Vec<Box<dyn Queue>>, Error> {
        Err(Error::Unsupported(format!(
            "{}: its driver cannot resume queues: open them",
            self.name()
        )))
    }
}

/// How much of a batch was taken.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provided {
    /// Places that are empty now, from the first on.
    pub count: usize,
    /// Why the packet after them was not taken; `None` if the queue is full, or the batch was taken
    /// to its end.
    pub refused: Option<Refused>,
}

/// A way through a card in both directions, owned by one thread; shares nothing with other queues.
///
/// As a [`Source`] it is pending when there is something for [`rx_return`](Self::rx_return), and,
/// if that was [asked for](Self::wake_on_tx), for [`tx_return`](Self::tx_return). Its
/// [`tick`](Source::tick) finds a card that does not send any more and recovers it. [`Error::Gone`]
/// and [`Error::Fatal`], there and in what returns packets, say that the driver has given the card
/// up: from one of them, every queue's owner learns of its end.
pub trait Queue: Source + Send {
    /// Buffers that it holds at most: receive, transmit.
    fn depth(&self) -> (u16, u16);

    /// Buffers that were provided and are not returned yet: receive, transmit.
    fn outstanding(&self) -> (u16, u16);

    /// What went through this queue. It costs nothing.
    fn counters(&self) -> Counters;

    /// Takes buffers to receive into, from the batch's start on, until it is full.
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided;

    /// Puts received packets into `batch`, from its start, over whatever is there; returns how many
    /// places. None means that nothing is there. A packet in pieces may be continued in the next
    /// batch. A piece behind the first may begin up to [`Info::headroom`] before where it was asked
    /// to: who provides its buffer again says anew where the packet shall begin.
    ///
    /// An error means that the card misbehaved, and that nothing was returned. The queue stays
    /// usable after all but [`Error::Gone`] and [`Error::Fatal`].
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error>;

    /// Takes packets to send, from the batch's start on, until it is full: a packet in pieces as a
    /// whole or not at all.
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided;

    /// Puts buffers whose packets were sent into `batch`, as [`rx_return`](Self::rx_return) does
    /// with those that were received.
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error>;

    /// Whether buffers that come back from being sent are something to wake up for. They are not to
    /// begin with: who has enough of them takes them back when the next packets go.
    fn wake_on_tx(&mut self, wake: bool);

    /// Leaves the queue to whoever [resumes](Nic::resume_queues) it, in this process or in another
    /// one: its buffers stay with the card, which goes on. The queue takes nothing afterwards, and
    /// is of no use but to be dropped, which tells the card nothing.
    ///
    /// Nothing has changed after an error. [`Error::Busy`] says that it will be possible: tick, and
    /// try again.
    fn detach(&mut self) -> Result<Saved, Error> {
        Err(Error::Unsupported("the queue cannot be left to another process: drop it".into()))
    }
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn depth(&self) -> (u16, u16) {
        (**self).depth()
    }
    fn outstanding(&self) -> (u16, u16) {
        (**self).outstanding()
    }
    fn counters(&self) -> Counters {
        (**self).counters()
    }
    #[inline]
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        (**self).rx_provide(batch)
    }
    #[inline]
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        (**self).rx_return(batch)
    }
    #[inline]
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        (**self).tx_provide(batch)
    }
    #[inline]
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        (**self).tx_return(batch)
    }
    fn wake_on_tx(&mut self, wake: bool) {
        (**self).wake_on_tx(wake);
    }
    fn detach(&mut self) -> Result<Saved, Error> {
        (**self).detach()
    }
}
