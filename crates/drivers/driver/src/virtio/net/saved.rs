//! What a card and its queue leave behind, as it is written down.
//!
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has left. All of it is input to whoever reads it.

use ring3_class::net::{Counters, Filter, Mac, QueueSettings, SavedPacket};
use ring3_device::dma::Span;
use serde::{Deserialize, Serialize};

use super::super::saved::{SavedQueueAddresses, SavedVirtqueue};
use super::card::Options;

/// What a card's state is called, and the version of its form.
pub(super) const CARD: (&str, u32) = ("virtio-net card", 1);
/// The same of a queue.
pub(super) const QUEUE: (&str, u32) = ("virtio-net queue", 1);

/// A card, but for its registers, which say the rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCard {
    /// Its address, by which another card is told apart.
    pub(super) mac: Mac,
    /// What was agreed upon.
    pub(super) features: u64,
    pub(super) options: Options,
    pub(super) filter: Filter,
    /// Interrupts that are enabled.
    pub(super) vectors: u16,
    /// Most entries of its queues: receive, transmit.
    pub(super) max_depth: (u16, u16),
    /// What went through queues that are closed.
    pub(super) counters: Counters,
    /// If it goes.
    pub(super) going: Option<SavedRunning>,
}

/// What a card goes with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRunning {
    pub(super) receive: SavedQueueAddresses,
    pub(super) transmit: SavedQueueAddresses,
    pub(super) control: Option<SavedControl>,
    /// The pairs behind the first: receive, transmit.
    #[serde(default)]
    pub(super) more: Vec<[SavedQueueAddresses; 2]>,
}

impl SavedRunning {
    /// With `pairs`, and without a control queue; none without a pair.
    pub(super) fn of(pairs: impl IntoIterator<Item = [SavedQueueAddresses; 2]>) -> Option<Self> {
        let mut pairs = pairs.into_iter();
        let [receive, transmit] = pairs.next()?;
        Some(Self { receive, transmit, control: None, more: pairs.collect() })
    }

    /// All pairs, in their order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = [SavedQueueAddresses; 2]> {
        [[self.receive, self.transmit]].into_iter().chain(self.more.iter().copied())
    }
}

/// The control queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedControl {
    pub(super) queue: SavedVirtqueue,
    /// Where commands are.
    pub(super) command: Span,
    /// It does not answer any more.
    pub(super) lost: bool,
}

/// A pair of queues.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedQueue {
    pub(super) mac: Mac,
    pub(super) settings: QueueSettings,
    pub(super) receive: SavedPacketRing,
    pub(super) transmit: SavedPacketRing,
    /// Buffers of the packet that is being received which have not come.
    pub(super) rest: u16,
    /// The next piece of a packet that was sent and not returned as a whole; 65535 for none.
    pub(super) sent: u16,
    pub(super) wake_on_tx: bool,
    pub(super) counters: Counters,
    pub(super) returned: u64,
}

/// One direction.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedPacketRing {
    pub(super) queue: SavedVirtqueue,
    /// The next descriptor's number.
    pub(super) next: u16,
    /// The card has given some back out of turn.
    pub(super) scattered: bool,
    /// The card has damaged the virtqueue.
    pub(super) broken: bool,
    pub(super) held: Vec<SavedSlot>,
}

/// A descriptor that the card has, and its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedSlot {
    pub(super) number: u16,
    pub(super) packet: SavedPacket,
    /// The descriptor of the packet's next piece; 65535 for none.
    pub(super) next: u16,
    /// It is not the packet's first piece.
    pub(super) later: bool,
}

#[cfg(test)]
mod tests {
    use ring3_class::Saved;

    use super::super::super::saved::SavedRing;
    use super::*;

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let read = |text| serde_json::from_str::<Saved>(text).unwrap();
        let cards = [
            include_str!("../../../tests/saved/virtio_net_card_split.json"),
            include_str!("../../../tests/saved/virtio_net_card_packed.json"),
        ];
        for card in cards {
            let card: SavedCard = read(card).read(CARD.0, CARD.1).unwrap();
            let control = card.going.and_then(|going| going.control).unwrap();
            assert_eq!((control.lost, card.vectors, card.max_depth), (false, 2, (256, 256)));
        }
        let queues = [
            include_str!("../../../tests/saved/virtio_net_queue_split.json"),
            include_str!("../../../tests/saved/virtio_net_queue_packed.json"),
        ];
        for (queue, is_packed) in queues.into_iter().zip([false, true]) {
            let queue: SavedQueue = read(queue).read(QUEUE.0, QUEUE.1).unwrap();
            assert_eq!(
                (
                    queue.receive.held.len(),
                    queue.transmit.held.len(),
                    queue.transmit.held[0].packet.token
                ),
                (16, 1, 5)
            );
            assert_eq!(matches!(queue.receive.queue.state, SavedRing::Packed(_)), is_packed);
        }
    }
}
