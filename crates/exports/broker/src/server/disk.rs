//! The server of a disk while it runs: requests from clients' rings to the disk and their ends
//! back, each client in its turn.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::{BlockQueue, Completion, Disk, ForeignAccess, IoError, Queue, open};
use ring3_class::dma::Mode;
use ring3_class::wait::{Source, sooner};
use ring3_reactor::{Event, Registration, Token};

use super::access::DiskGrant;
use super::client::Client;
use super::lobby::{SessionTable, WakeReason};
use super::queue::QueuedRequest;
use super::session::ClientSession;
use super::session_loop::{SessionServer, pass_final};
use super::share::TurnResult;
use super::thaw::ThrottleTimer;
use super::unflushed::FlushEffect;

/// Buffers to copy through, where the device cannot reach clients' memory.
const COPIES: usize = 16;

/// Whose request is in flight under a token, which is the slot's number.
#[derive(Clone, Copy, Default)]
pub struct BrokerSlot {
    seat: usize,
    queue: usize,
    tag: u32,
    effect: FlushEffect,
}

/// The server while it runs.
pub struct Broker {
    // Before the disk that it is of.
    queue: BlockQueue,
    disk: Arc<dyn Disk>,
    mapped: bool,
    grants: Vec<Arc<DiskGrant>>,
    registration: Registration,
    lobby: SessionTable<Client>,
    /// Whose turn it is.
    cursor: usize,
    slots: Vec<BrokerSlot>,
    free: Vec<usize>,
    done: Box<[Completion]>,
    thaw: ThrottleTimer,
    limited: bool,
    stopping: bool,
}

impl Broker {
    /// Over one queue of `disk`, of `depth` requests, which reaches clients' memory if that is
    /// `mapped`.
    pub fn new(
        disk: Arc<dyn Disk>,
        (depth, mapped): (u16, bool),
        grants: Vec<Arc<DiskGrant>>,
        mut lobby: SessionTable<Client>,
    ) -> Result<Self, Error> {
        let copies = if mapped { 1 } else { COPIES };
        let foreign = ForeignAccess { mode: Mode::Copy, copies, ..ForeignAccess::default() };
        let queue = open(&*disk, depth, foreign)?;
        let registration = Registration::new(&mut lobby.reactor, &queue)
            .map_err(|error| Error::os("serving a disk", error))?;
        let depth = usize::from(queue.depth());
        Ok(Self {
            limited: grants.iter().any(|grant| grant.access.iops.or(grant.access.rate).is_some()),
            queue,
            disk,
            mapped,
            grants,
            registration,
            lobby,
            cursor: 0,
            slots: (0..depth).map(|_| BrokerSlot::default()).collect(),
            free: (0..depth).rev().collect(),
            done: (0..depth).map(|_| Completion::default()).collect(),
            thaw: ThrottleTimer::default(),
            stopping: false,
        })
    }

    /// Readable when there is something to do.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.lobby.reactor.descriptor()
    }

    /// Takes no further requests.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Requests that the disk has.
    pub fn in_flight(&self) -> u16 {
        self.queue.in_flight()
    }

    fn ready(&mut self, token: Token) -> WakeReason {
        let grants = &self.grants;
        self.lobby.ready(token, |session, (door, _)| Client::new(session, grants[door].clone()))
    }

    /// Nothing is waited for, if that is so.
    fn rest(&mut self) {
        if self.queue.in_flight() == 0 {
            self.registration.rest(&mut self.lobby.reactor, &self.queue);
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.registration.tick(&mut self.lobby.reactor, &mut self.queue, now).or_else(pass_final)
    }

    fn handle_messages(&mut self) {
        let (disk, mapped) = (&*self.disk, self.mapped);
        self.lobby.handle_messages(|client, message, reactor| {
            client.handle_message(message, disk, mapped, reactor)
        });
    }

    /// Takes away what is to go and has nothing in flight any more: queues, and clients.
    fn sweep(&mut self) {
        let SessionTable { seats, reactor, .. } = &mut self.lobby;
        for place in seats {
            let Some(client) = place else { continue };
            if (client.session().closing || client.is_closing())
                && let Err(error) = client.reap_closed_queues(reactor)
            {
                client.cut(&error, reactor);
            }
            if client.session().closing && client.queues().next().is_none() {
                *place = None;
            }
        }
    }

    /// Takes what the disk is done with.
    fn reap(&mut self) -> Result<(), Error> {
        while self.queue.in_flight() > 0 {
            let count = match self.queue.reap(&mut self.done) {
                Ok(count) => count,
                Err(error) => return pass_final(error),
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
                    record_flush_failure(&mut self.lobby.seats, slot);
                }
            }
            if count < self.done.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Shares out the room in the disk's queue.
    fn schedule(&mut self) {
        let now = self.limited.then(Instant::now);
        // So that who is refused again and again keeps nobody from his ends.
        let mut left = 4 * self.slots.len();
        let mut idle = 0;
        while idle < self.lobby.seats.len() && left > 0 {
            match self.serve_client(self.cursor, now, &mut left) {
                TurnResult::Full => break,
                TurnResult::Used => idle = 0,
                TurnResult::Idle => idle += 1,
            }
            self.cursor = (self.cursor + 1) % self.lobby.seats.len();
        }
        self.queue.ring();
        self.set_thaw();
    }

    fn serve_client(&mut self, seat: usize, now: Option<Instant>, left: &mut usize) -> TurnResult {
        let Some(client) = self.lobby.seats[seat].as_mut() else { return TurnResult::Idle };
        client.share.begin();
        loop {
            client.held_until = now.and_then(|now| client.share.held_until(now));
            let peeked = if client.held_until.is_some() { Ok(None) } else { client.peek() };
            let (queue, bytes) = match peeked {
                Ok(Some((queue, held))) => (queue, held.bytes),
                Ok(None) => {
                    client.share.end(true);
                    return TurnResult::Idle;
                }
                Err(error) => {
                    client.cut(&error, &mut self.lobby.reactor);
                    return TurnResult::Idle;
                }
            };
            if !client.share.affords(1, bytes) || *left == 0 {
                client.share.end(false);
                return TurnResult::Used;
            }
            let Some(&slot) = self.free.last() else { return TurnResult::Full };
            let Some(held) = client.take(queue) else { return TurnResult::Idle };
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
    fn flush(&mut self) {
        self.lobby
            .seats
            .iter_mut()
            .flatten()
            .flat_map(Client::queues_mut)
            .for_each(|queue| queue.flush());
    }

    /// There is a timer for the first of those whom their limits hold back.
    fn set_thaw(&mut self) {
        let clients = self.lobby.seats.iter().flatten().filter(|client| !client.session().closing);
        let first = clients.map(|client| client.held_until).fold(None, sooner);
        self.thaw.set(first, &mut self.lobby.reactor);
    }
}

impl SessionServer for Broker {
    type Client = Client;
    const SHARED: &'static str = "disk";

    fn sessions(&mut self) -> &mut SessionTable<Client> {
        &mut self.lobby
    }

    fn is_full(&self) -> bool {
        self.stopping || self.queue.in_flight() >= self.queue.depth()
    }

    fn run_once(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<bool, Error> {
        while let Some(event) = self.lobby.reactor.next_event() {
            match event {
                Event::Ready(token) => match self.ready(token) {
                    WakeReason::Call => self.stopping |= asked(),
                    WakeReason::Client => {}
                    WakeReason::Other => self.rest(),
                },
                Event::Timer(timer, _) if self.thaw.is(timer) || self.lobby.retries(timer) => {}
                Event::Timer(_, now) if self.queue.in_flight() > 0 => self.tick(now)?,
                Event::Timer(..) => self.rest(),
                Event::Lost(_, error) => return Err(Error::os("waiting for clients", error)),
                Event::Command { .. } => {}
            }
        }
        self.reap()?;
        self.handle_messages();
        if !self.stopping {
            self.schedule();
        }
        self.flush();
        self.sweep();
        Ok(self.stopping && self.queue.in_flight() == 0)
    }

    fn wait(&mut self) -> Result<(), Error> {
        let busy = self.queue.in_flight() > 0;
        if busy && self.registration.timer().is_none() {
            self.tick(Instant::now())?;
        }
        let full = self.is_full();
        let (reactor, rings, mut clients) = self.lobby.split(full);
        let disk = (&self.registration, &mut self.queue as &mut dyn Source);
        let clients = (rings, &mut clients as &mut dyn Source);
        let waited = match busy {
            true => reactor.wait(&mut [disk, clients], None),
            false => reactor.wait(&mut [clients], None),
        };
        waited.map(drop).map_err(|error| Error::os("waiting for clients", error))
    }
}

/// The flush in `slot` has failed, and its queue was told: the others that have written are to be
/// told, too.
#[cold]
fn record_flush_failure(seats: &mut [Option<Client>], slot: BrokerSlot) {
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
