//! The control queue: one command at a time. [virtio 5.1.6.5]

use std::time::Duration;

use ring3_class::net::{Filter, Mac, Multicast};
use ring3_device::dma::{Claims, DmaBuffer};
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::virtio::net;
use ring3_spec::virtio::ring::WRITE;

use super::super::saved::SavedQueueAddresses;
use super::super::transport::Transport;
use super::super::virtqueue::{Doorbell, Piece, Virtqueue};
use super::describe::has_filters;
use super::saved::SavedControl;

/// Addresses of each table that are sent; beyond that everything of the kind is let through.
pub(super) const MAX_ADDRESSES: usize = 64;
/// Entries: a command and its answer.
const SIZE: u16 = 4;
/// A command that takes longer is not answered.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes for a command; its answer lies behind.
const COMMAND: usize = 2048;

pub(super) struct Control {
    queue: Virtqueue,
    command: DmaBuffer,
    /// Another address than the card's own can be set.
    can_set_address: bool,
    /// It knows commands of filters; without them it lets everything through.
    can_filter: bool,
    /// A command was not answered: the card may still answer.
    lost: bool,
}

impl Control {
    pub(super) fn new(transport: &Transport, queue: u16, features: u64) -> Result<Self, Error> {
        let size = transport.queue_size(queue).min(SIZE);
        if size < 2 {
            return Err(Error::Protocol(format!("a control queue of {size} entries")));
        }
        let command = transport.device.dma().arena().alloc(COMMAND + 8, 8)?;
        let size = 1 << size.ilog2();
        let queue = transport.make_queue(queue, size, ring3_spec::virtio::NO_VECTOR, features)?;
        Ok(Self::of(queue, command, features, false))
    }

    fn of(queue: Virtqueue, command: DmaBuffer, features: u64, lost: bool) -> Self {
        let (can_set_address, can_filter) =
            (features & net::CTRL_MAC_ADDR != 0, has_filters(features));
        Self { queue, command, can_set_address, can_filter, lost }
    }

    /// Has the card let through what `filter` wants. `own` is the address that it was made with.
    /// While it changes, more may come through.
    pub(super) fn filter(&mut self, filter: &Filter, own: Mac) -> Result<(), Error> {
        if !self.can_filter {
            let address = self.can_set_address.then_some(filter.address.0);
            return address.map_or(Ok(()), |address| {
                self.order(net::CONTROL_MAC, net::MAC_ADDR_SET, &address)
            });
        }
        let mut unicast = filter.unicast.clone();
        let address = if self.can_set_address { filter.address } else { own };
        if address != filter.address {
            unicast.push(filter.address);
        }
        let all_groups = lets_all_groups(filter);
        let groups = match &filter.multicast {
            Multicast::Of(groups) if !all_groups => &groups[..],
            _ => &[],
        };
        let everything = filter.promiscuous || unicast.len() > MAX_ADDRESSES;
        if everything {
            self.order(net::CONTROL_RX, net::RX_PROMISCUOUS, &[1])?;
        }
        if self.can_set_address {
            self.order(net::CONTROL_MAC, net::MAC_ADDR_SET, &address.0)?;
        }
        let unicast = if everything { &[][..] } else { &unicast[..] };
        self.order(
            net::CONTROL_MAC,
            net::MAC_TABLE_SET,
            &[table(unicast), table(groups)].concat(),
        )?;
        self.order(net::CONTROL_RX, net::RX_ALL_MULTICAST, &[all_groups.into()])?;
        if everything { Ok(()) } else { self.order(net::CONTROL_RX, net::RX_PROMISCUOUS, &[0]) }
    }

    /// Repeats a command that changes nothing while the card has `filter`, to see whether it
    /// answers. A card that knows none is not asked.
    pub(super) fn probe(&mut self, filter: &Filter) -> Result<(), Error> {
        if !self.can_filter {
            return Ok(());
        }
        match self.order(net::CONTROL_RX, net::RX_ALL_MULTICAST, &[lets_all_groups(filter).into()])
        {
            // That is an answer, too.
            Err(Error::Unsupported(_)) => Ok(()),
            asked => asked,
        }
    }

    /// Has the card use `count` pairs of queues. [virtio 5.1.6.5.5]
    pub(super) fn use_pairs(&mut self, count: u16) -> Result<(), Error> {
        self.order(net::CONTROL_MQ, net::MQ_PAIRS_SET, &count.to_le_bytes())
    }

    /// Gives a command and waits for its answer.
    fn order(&mut self, class: u8, what: u8, data: &[u8]) -> Result<(), Error> {
        if self.lost {
            return Err(Error::Fatal("its control queue does not answer any more".into()));
        }
        let command = [&[class, what], data].concat();
        self.command.write(0, &command)?;
        self.command.write(COMMAND, &[net::CONTROL_ERROR])?;
        let at = self.command.iova();
        self.queue.put(0, 0, Piece { address: at, len: command.len() as u32, flags: 0 }, Some(1));
        self.queue.put(0, 1, Piece { address: at + COMMAND as u64, len: 1, flags: WRITE }, None);
        self.queue.offer(0);
        self.queue.publish();
        self.lost = true;
        poll_until(Deadline::after(ANSWER), "a command of the control queue", || {
            self.queue.take()
        })?;
        self.lost = false;
        let mut answer = [0];
        self.command.read(COMMAND, &mut answer)?;
        if answer == [net::CONTROL_OK] {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "the card refuses command {what} of class {class} of its control queue"
        )))
    }

    /// Where the card has its virtqueue.
    pub(super) fn places(&self) -> SavedQueueAddresses {
        self.queue.places()
    }

    /// All of it, for who [resumes](Self::resume) it.
    pub(super) fn save(&self) -> Result<SavedControl, Error> {
        Ok(SavedControl {
            queue: self.queue.save()?,
            command: self.command.span(),
            lost: self.lost,
        })
    }

    /// Releases its memory to the process that resumes the queue.
    pub(super) fn release_to_successor(&mut self) {
        self.queue.release_to_successor();
        self.command.release_to_successor();
        self.lost = true;
    }

    /// The one that was saved as `saved`, of a card with `features`. It is input.
    pub(super) fn resume(
        saved: &SavedControl,
        claims: &mut Claims,
        doorbell: Doorbell,
        features: u64,
    ) -> Result<Self, Error> {
        let queue = Virtqueue::resume(&saved.queue, claims, doorbell, features)?;
        let command = claims.claim(saved.command)?;
        if command.len() <= COMMAND || queue.size() < 2 {
            return Err(Error::Invalid(
                "the saved control queue has no room for a command: open the card anew".into(),
            ));
        }
        Ok(Self::of(queue, command, features, saved.lost))
    }

    /// Gives its memory up for good.
    pub(super) fn abandon(&mut self) {
        self.queue.abandon();
        self.command.abandon();
    }
}

/// Whether `filter` has more groups than a table.
fn lets_all_groups(filter: &Filter) -> bool {
    match &filter.multicast {
        Multicast::All => true,
        Multicast::Of(groups) => groups.len() > MAX_ADDRESSES,
    }
}

/// [virtio 5.1.6.5.2]
fn table(addresses: &[Mac]) -> Vec<u8> {
    let count = (addresses.len() as u32).to_le_bytes();
    count.into_iter().chain(addresses.iter().flat_map(|mac| mac.0)).collect()
}
