//! What a controller and its queues leave behind, as it is written down.
//!
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has left. All of it is input to whoever reads it.

use std::sync::Arc;
use std::time::Duration;

use ring3_class::block::Info;
use ring3_device::dma::{Claims, Span};
use ring3_device::irq::IrqKind;
use ring3_device::{Bar, Error};
use serde::{Deserialize, Serialize};

use super::super::cache::SavedDriveCache;
use super::super::{Identity, Level, Options};
use super::lists::Lists;
use super::port::Port;
use crate::disk::SavedQueue;
use crate::disk::write_cache::Record;

/// What a controller's state is called, and the version of its form.
pub(super) const CONTROLLER: (&str, u32) = ("ahci controller", 1);
/// The same of a queue.
pub(super) const QUEUE: (&str, u32) = ("ahci queue", 1);

/// A controller, but for the registers, which say the rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedController {
    /// CAP, by which another controller is told apart.
    pub(super) capabilities: u32,
    /// A bit for each port that there is.
    pub(super) ports: u32,
    pub(super) options: Options,
    pub(super) interrupts: Option<IrqKind>,
    pub(super) generation: u32,
    pub(super) seats: Vec<SavedDiskPort>,
    /// Drives that cannot be used, and why.
    pub(super) refused: Vec<(String, String)>,
}

/// See [`DiskPort`](super::controller::DiskPort).
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedDiskPort {
    pub(super) index: u8,
    pub(super) identity: Identity,
    pub(super) info: Info,
    pub(super) level: Level,
    pub(super) used: bool,
    pub(super) power_lost: bool,
    pub(super) ready_since: u32,
    /// Unless a queue has it that was detached.
    pub(super) port: Option<SavedPort>,
}

/// See [`Port`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedPort {
    pub(super) index: u8,
    pub(super) page: Span,
    pub(super) tables: Span,
    pub(super) slots: u8,
    pub(super) generation: u32,
    pub(super) ready: bool,
    pub(super) cache: SavedDriveCache,
}

/// See [`PortQueue`](super::queue::PortQueue); a bit stands for a slot.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedPortQueue {
    pub(super) port: SavedPort,
    pub(super) level: Level,
    pub(super) queued: u32,
    pub(super) cached: u32,
    #[serde(default)]
    pub(super) alone: u32,
    pub(super) unrung: u32,
    pub(super) line: Vec<u8>,
    pub(super) rung: usize,
    /// Flushes of nothing, which earlier versions ended at the next ring.
    #[serde(default)]
    pub(super) nothing: u32,
    pub(super) issued: u32,
    pub(super) plain: bool,
    pub(super) done: u32,
    pub(super) claimed: u32,
    pub(super) looks: u8,
    /// Troubles of the link, and how long ago their period began.
    pub(super) troubles: u8,
    pub(super) since: Option<Duration>,
}

impl SavedPort {
    pub(super) fn of(port: &Port) -> Self {
        let [page, tables] = port.lists.spans();
        let (index, slots) = (port.index(), port.lists.slots());
        Self {
            index,
            page,
            tables,
            slots,
            generation: port.generation,
            ready: port.ready,
            cache: SavedDriveCache::of(&port.cache),
        }
    }

    /// The port at port `index` of the controller behind `bar`, which reaches addresses below
    /// `limit`. A port that has been told of other memory is not the one that was saved.
    pub(super) fn claim(
        &self,
        claims: &mut Claims,
        (bar, limit): (Bar, u64),
        record: Option<Record>,
    ) -> Result<Port, Error> {
        let (page, tables) = (claims.claim(self.page)?, claims.claim(self.tables)?);
        let lists = Lists::resume(page, tables, self.slots, limit)?;
        let (told, own) = (Port::addresses_at(&bar, self.index)?, lists.addresses());
        // A reset by somebody else has taken the addresses away; it is found by the first look.
        if told != own && told != (0, 0) {
            return Err(Error::Invalid(format!(
                "port {} has other memory than was saved: somebody has started the controller \
                anew; open it",
                self.index
            )));
        }
        let mut port = Port::new(bar, self.index, lists, self.generation)?;
        (port.ready, port.cache) = (self.ready, self.cache.resume(record));
        Ok(port)
    }
}

impl Port {
    /// Fails if somebody else uses its memory.
    pub(super) fn check_unshared(&self) -> Result<(), Error> {
        match Arc::strong_count(&self.lists) {
            1 => Ok(()),
            _ => Err(Error::Busy("a port's memory is in use".into())),
        }
    }

    /// Releases its memory to the next process; it stays allocated.
    pub(super) fn release_to_successor(&mut self) -> Result<(), Error> {
        let lists = Arc::get_mut(&mut self.lists)
            .ok_or_else(|| Error::Busy("a port's memory is in use".into()))?;
        lists.release_to_successor();
        Ok(())
    }
}

impl SavedPortQueue {
    /// Whether each slot that is occupied in `queue`, whose rings these are, is at one place, and
    /// no other anywhere.
    pub(super) fn is_consistent(&self, queue: &SavedQueue<Self>) -> bool {
        // What is no slot would be shifted out, and be seen by nobody.
        if self.line.iter().any(|&slot| u16::from(slot) >= queue.slots) {
            return false;
        }
        let in_line = self.line.iter().map(|&slot| 1u32.unbounded_shl(slot.into()));
        let ended = queue.ended.iter().map(|&(slot, _)| 1u32.unbounded_shl(slot.into()));
        let places = [self.unrung, self.nothing, self.issued, self.done]
            .into_iter()
            .chain(in_line)
            .chain(ended);
        let seen = places
            .into_iter()
            .try_fold(0u32, |seen, place| (seen & place == 0).then_some(seen | place));
        seen == Some(queue.slots_of(|_| true))
            && self.rung <= self.line.len()
            && self.claimed & !self.issued == 0
    }
}

#[cfg(test)]
mod tests {
    use ring3_class::Saved;
    use ring3_class::block::Operation;

    use super::*;

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let read = |text| serde_json::from_str::<Saved>(text).unwrap();
        let controller = read(include_str!("../../../tests/saved/ahci_controller.json"));
        let controller: SavedController = controller.read(CONTROLLER.0, CONTROLLER.1).unwrap();
        assert_eq!(
            (controller.ports & 1, controller.seats[0].level, &controller.seats[0].port),
            (1, Level::Queued, &None)
        );
        let queue: SavedQueue<SavedPortQueue> =
            read(include_str!("../../../tests/saved/ahci_queue.json"))
                .read(QUEUE.0, QUEUE.1)
                .unwrap();
        assert_eq!(
            (queue.rings.issued, queue.held[0].request.operation, queue.rings.port.ready),
            (1, Operation::Read, true)
        );
    }

    #[test]
    fn a_slot_that_is_at_two_places_or_at_none_is_found() {
        let text = include_str!("../../../tests/saved/ahci_queue.json");
        // A queue with a request in slot 0 and, as far as `slots` says, in others.
        let queue = |slots: u16| {
            let saved = serde_json::from_str::<Saved>(text).unwrap();
            let mut queue: SavedQueue<SavedPortQueue> = saved.read(QUEUE.0, QUEUE.1).unwrap();
            let mut more: SavedQueue<SavedPortQueue> = saved.read(QUEUE.0, QUEUE.1).unwrap();
            queue.held.clear();
            for slot in (0..16).filter(|slot| slots >> slot & 1 == 1) {
                let mut held = more.held.pop().unwrap_or_else(|| {
                    let again: SavedQueue<SavedPortQueue> = saved.read(QUEUE.0, QUEUE.1).unwrap();
                    again.held.into_iter().next().unwrap()
                });
                held.id = slot;
                queue.held.push(held);
            }
            queue
        };
        let is_consistent = |slots, rings: &dyn Fn(SavedPortQueue) -> SavedPortQueue| {
            let SavedQueue { rings: saved, .. } = queue(slots);
            rings(saved).is_consistent(&queue(slots))
        };
        assert!(is_consistent(1, &|rings| rings));
        assert!(!is_consistent(0b11, &|rings| rings) && !is_consistent(0, &|rings| rings));
        assert!(is_consistent(0b1111, &|rings| SavedPortQueue {
            line: vec![2, 1],
            done: 8,
            ..rings
        }));
        assert!(!is_consistent(0b11, &|rings| SavedPortQueue { line: vec![1, 1], ..rings }));
        assert!(!is_consistent(1, &|rings| SavedPortQueue { done: 1, ..rings }));
        assert!(!is_consistent(1, &|rings| SavedPortQueue { line: vec![200], rung: 1, ..rings }));
    }
}
