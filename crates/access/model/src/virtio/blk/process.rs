//! The way of a request: taken from its queue, met by a fault or not, done, and given back.

use std::time::{Duration, Instant};

use ring3_spec::virtio::blk;

use super::super::queue::Chain;
use super::controller::VirtioBlkModel;
use super::handle::Lie;
use super::request::Parts;
use crate::fault::{Action, Event};
use crate::held::Waiting;
use crate::{Blocked, Bus, Timing};

/// How long a reordered request waits for another one to overtake it.
const REORDER_PATIENCE: Duration = Duration::from_millis(10);

/// A request that was taken from its queue.
pub(super) struct Taken {
    pub(super) queue: u16,
    pub(super) chain: Chain,
    pub(super) header: blk::Header,
}

impl VirtioBlkModel {
    /// Takes requests of `queue` until there are none. An access that the IOMMU blocks ends the
    /// disk's work.
    pub(super) fn work(&mut self, bus: &Bus, queue: u16) {
        while self.function.runs() && !bus.is_removed() {
            let Some(waiting) = self.function.queues.get_mut(usize::from(queue)) else { return };
            let taken = waiting.take(bus).and_then(|chain| {
                let Some(chain) = chain else { return Ok(None) };
                let mut header = blk::Header::zeroed();
                match chain.pieces.first().filter(|piece| !piece.writable && piece.len >= 16) {
                    Some(piece) => bus.read(piece.address, &mut header.0)?,
                    None => return Ok(None),
                }
                Ok(Some(Taken { queue, chain, header }))
            });
            match taken {
                Ok(Some(taken)) => self.accept(bus, taken),
                Ok(None) => return,
                Err(Blocked::Removed) => return,
                Err(_) => return self.function.need_reset(bus),
            }
        }
    }

    fn accept(&mut self, bus: &Bus, taken: Taken) {
        self.counters.requests += 1;
        let fault = self.faults.check(&self.describe(&taken));
        let wait = |what, due, after_next| Waiting { what, due, after_next };
        match (fault, self.shape.timing) {
            (None, Timing::Held) => self.held.push(wait(taken, None, false)),
            (None, Timing::After(delay)) | (Some(Action::Delay(delay)), _) => {
                self.hold_until(bus, wait(taken, Some(Instant::now() + delay), false));
            }
            (Some(Action::Hang), _) => self.held.push(wait(taken, None, false)),
            (Some(Action::Reorder), _) => {
                self.hold_until(bus, wait(taken, Some(Instant::now() + REORDER_PATIENCE), true))
            }
            (Some(Action::Fatal), _) => self.function.need_reset(bus),
            (Some(Action::Remove), _) => bus.remove(),
            (Some(Action::FunctionReset), _) => self.restart(),
            _ => self.run(bus, &taken, fault),
        }
    }

    fn hold_until(&mut self, bus: &Bus, waiting: Waiting<Taken>) {
        if let Some(due) = waiting.due {
            bus.wake_at(due);
        }
        self.held.push(waiting);
    }

    /// What the fault hooks see of a request. Its queues are counted from 1, as there is none for
    /// its administration.
    fn describe(&self, taken: &Taken) -> Event {
        let kind = taken.header.kind();
        let shift = self.shape.block_shift - 9;
        let has_blocks = matches!(kind, blk::IN | blk::OUT);
        let sectors = taken.chain.pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>()
            / u64::from(blk::SECTOR);
        let blocks = has_blocks.then_some((taken.header.sector() >> shift, sectors >> shift));
        Event::Command { queue: taken.queue + 1, opcode: kind as u8, blocks }
    }

    /// Does a request and gives it back, as the fault wants it.
    pub(super) fn run(&mut self, bus: &Bus, taken: &Taken, fault: Option<Action>) {
        if let Some(Action::StrayDma(iova)) = fault {
            let _ = bus.write(iova, &[0xbd; 64]);
        }
        if self.do_and_give_back(bus, taken, fault).is_err() && !bus.is_removed() {
            self.function.need_reset(bus);
        }
        if let Some(late) = self.held.take_after_next(|late| late.queue == taken.queue) {
            self.run(bus, &late, None);
        }
    }

    fn do_and_give_back(
        &mut self,
        bus: &Bus,
        taken: &Taken,
        fault: Option<Action>,
    ) -> Result<(), Blocked> {
        let parts = Parts::of(&taken.chain);
        let (status, written) = match fault {
            Some(Action::Status(status)) => (status as u8, 0),
            _ => self.request(bus, &taken.header, &parts, fault == Some(Action::Corrupt))?,
        };
        let Some(place) = parts.status else {
            self.violations.add("a request has no place for its status [virtio 5.2.6]".into());
            return Ok(());
        };
        if self.lie != Some(Lie::NoStatus) || taken.header.kind() == blk::GET_ID {
            bus.write(place, &[status])?;
        }
        let (id, len) = (u32::from(taken.chain.id), written + 1);
        let len = match self.lie {
            Some(Lie::WritesTooMuch) => u32::MAX,
            Some(Lie::WritesTooLittle) => 0,
            _ => len,
        };
        let other = |bits: u16| id ^ u32::from(bits);
        let Some(queue) = self.function.queues.get_mut(usize::from(taken.queue)) else {
            return Ok(());
        };
        match fault {
            Some(Action::Drop) => return Ok(()),
            Some(Action::WrongId(bits)) => queue.put(bus, &taken.chain, other(bits), len)?,
            Some(Action::Invent(bits)) => {
                queue.put(bus, &taken.chain, other(bits), len)?;
                queue.put(bus, &taken.chain, id, len)?;
            }
            Some(Action::Duplicate) => {
                queue.put(bus, &taken.chain, id, len)?;
                queue.put(bus, &taken.chain, id, len)?;
            }
            _ => queue.put(bus, &taken.chain, id, len)?,
        }
        if self.lie == Some(Lie::LeapsAhead) {
            queue.leap(1000);
        }
        self.function.end(bus, taken.queue.into(), fault != Some(Action::LoseInterrupt))
    }

    /// Does the requests whose time has come.
    pub(super) fn release_due(&mut self, bus: &Bus, now: Instant) {
        while let Some(taken) = self.held.take_due(now) {
            self.run(bus, &taken, None);
        }
    }
}
