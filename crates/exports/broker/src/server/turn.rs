//! Requests from clients' rings to the disk and their ends back, each client in its turn.

use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::{IoError, Queue};
use ring3_class::wait::sooner;

use super::client::Client;
use super::queue::QueuedRequest;
use super::session::ClientSession;
use super::unflushed::FlushEffect;
use super::{Broker, survive};

/// Whose request is in flight under a token, which is the slot's number.
#[derive(Clone, Copy, Default)]
pub struct BrokerSlot {
    seat: usize,
    queue: usize,
    tag: u32,
    effect: FlushEffect,
}

/// How a client's turn ended.
enum DiskTurnResult {
    /// It has had its part, and wants more.
    Used,
    /// It wants nothing more, or may not.
    Idle,
    /// The disk's queue is full, and its turn goes on when it is not.
    Full,
}

impl Broker {
    /// Takes what the disk is done with.
    pub(super) fn reap(&mut self) -> Result<(), Error> {
        while self.queue.in_flight() > 0 {
            let count = match self.queue.reap(&mut self.done) {
                Ok(count) => count,
                Err(error) => return survive(error),
            };
            for end in &mut self.done[..count] {
                let end = std::mem::take(end);
                let index = end.token as usize;
                let Some(&slot) = self.slots.get(index) else { continue };
                self.free.push(index);
                let lost = matches!(slot.effect, FlushEffect::Flushed(_)) && end.result.is_err();
                if let Some(client) = self.lobby.seats.get_mut(slot.seat).and_then(Option::as_mut) {
                    client.end(slot.queue, (slot.tag, slot.effect), end);
                }
                if lost {
                    owe(&mut self.lobby.seats, slot);
                }
            }
            if count < self.done.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deals the room in the disk's queue out.
    pub(super) fn deal(&mut self) {
        let now = self.limited.then(Instant::now);
        // So that who is refused again and again keeps nobody from his ends.
        let mut left = 4 * self.slots.len();
        let mut idle = 0;
        while idle < self.lobby.seats.len() && left > 0 {
            match self.serve_client(self.cursor, now, &mut left) {
                DiskTurnResult::Full => break,
                DiskTurnResult::Used => idle = 0,
                DiskTurnResult::Idle => idle += 1,
            }
            self.cursor = (self.cursor + 1) % self.lobby.seats.len();
        }
        self.queue.ring();
        self.set_thaw();
    }

    fn serve_client(
        &mut self,
        seat: usize,
        now: Option<Instant>,
        left: &mut usize,
    ) -> DiskTurnResult {
        let Some(client) = self.lobby.seats[seat].as_mut() else { return DiskTurnResult::Idle };
        client.share.begin();
        loop {
            client.held_until = now.and_then(|now| client.share.held_until(now));
            let peeked = if client.held_until.is_some() { Ok(None) } else { client.peek() };
            let (queue, bytes) = match peeked {
                Ok(Some((queue, held))) => (queue, held.bytes),
                Ok(None) => {
                    client.share.end(true);
                    return DiskTurnResult::Idle;
                }
                Err(error) => {
                    client.cut(&error, &mut self.lobby.reactor);
                    return DiskTurnResult::Idle;
                }
            };
            if !client.share.affords(1, bytes) || *left == 0 {
                client.share.end(false);
                return DiskTurnResult::Used;
            }
            let Some(&slot) = self.free.last() else { return DiskTurnResult::Full };
            let Some(held) = client.take(queue) else { return DiskTurnResult::Idle };
            *left -= 1;
            client.share.charge(1, bytes);
            let place = BrokerSlot {
                seat,
                queue,
                tag: held.tag,
                effect: client.unflushed.begin(&held.request),
            };
            if submit(&mut self.queue, client, held, place, slot) {
                self.free.pop();
                self.slots[slot] = place;
            }
        }
    }

    /// Shows clients what has ended.
    pub(super) fn flush(&mut self) {
        self.lobby
            .seats
            .iter_mut()
            .flatten()
            .flat_map(Client::queues_mut)
            .for_each(|queue| queue.flush());
    }

    /// There is a timer for the first of those whom their limits hold back.
    fn set_thaw(&mut self) {
        let clients = self.lobby.seats.iter().flatten().filter(|client| !client.session().leaving);
        let first = clients.map(|client| client.held_until).fold(None, sooner);
        self.thaw.set(first, &mut self.lobby.reactor);
    }
}

/// The flush in `slot` has failed, and its queue was told: the others that have written are to be
/// told, too.
#[cold]
fn owe(seats: &mut [Option<Client>], slot: BrokerSlot) {
    for (seat, client) in seats.iter_mut().enumerate() {
        let told = (seat == slot.seat).then_some(slot.queue);
        client.iter_mut().for_each(|client| client.record_flush_failure_of_others(told));
    }
}

/// Hands a request to the disk as `slot`; false if it has ended without that.
fn submit(
    disk: &mut impl Queue,
    client: &mut Client,
    held: QueuedRequest,
    place: BrokerSlot,
    slot: usize,
) -> bool {
    let Some(queue) = client.queue(place.queue) else { return false };
    let mut request = held.request;
    if let Some(refusal) = held.refusal {
        queue.complete(held.tag, Err(refusal), request.data);
        return false;
    }
    request.token = slot as u64;
    match disk.submit(request) {
        Ok(()) => {
            queue.in_flight += 1;
            true
        }
        Err(rejected) => {
            // There are as many slots as it holds: it is never full here.
            let error = rejected.error.unwrap_or(IoError::Transport);
            queue.complete(held.tag, Err(error), rejected.request.data);
            false
        }
    }
}
