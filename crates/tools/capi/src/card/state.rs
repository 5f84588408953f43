//! What lies between a card's program and the server's thread: frames both ways, the link, the
//! filter.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring3_class::Error;
use ring3_class::net::{Checksum, Counters, Filter, Limits, Link, Mac, Meta, Packet};

use crate::signal::{Signal, descriptor};

/// How long is waited for a program that sets a filter: it has a loop, which may be in a driver's
/// wait.
pub(super) const FILTERING: Duration = Duration::from_secs(5);

/// Both sides of the card. One lock for a frame, or for a batch of the server's.
pub(super) struct CardShared {
    state: Mutex<State>,
    /// The program has set the filter.
    filtered: Condvar,
    /// Raised for the program.
    wanted: OwnedFd,
    /// Whether it was, since the program has heard of it: no system call for each frame.
    raised: AtomicBool,
    /// Pieces in [`State::waiting`], to look at without the lock.
    pub(super) waiting: AtomicUsize,
    /// Packets in `filled`, to look at without the lock.
    pub(super) arrived: Signal,
    /// Packets in `sent`, the same.
    pub(super) returned: Arc<AtomicUsize>,
    /// 1 when the link has changed and nobody has asked.
    pub(super) link: Signal,
    /// There is somebody who watches it.
    pub(super) watched: AtomicBool,
    /// The server takes turns in the program's own loop: nobody has to be woken, and nobody waits
    /// for the program.
    nested: AtomicBool,
    /// The program shall end.
    stopped: AtomicBool,
}

/// What the lock guards.
pub(super) struct State {
    /// How the queue was opened, while it is.
    pub(super) open: Option<Limits>,
    /// Buffers to receive into.
    pub(super) provided: VecDeque<Packet>,
    /// Received.
    pub(super) filled: VecDeque<Packet>,
    /// To be sent: pieces of packets.
    pub(super) waiting: VecDeque<Packet>,
    /// Sent.
    pub(super) sent: VecDeque<Packet>,
    pub(super) link: Link,
    pub(super) counters: Counters,
    /// Frames that the device has lost, by the program's word.
    missed: u64,
    filter: Filter,
    refiltered: bool,
    /// The program has not said yet that the filter is set.
    filtering: bool,
    /// The program has closed the card, and sets none.
    closed: bool,
    /// Whether buffers that come back are something to wake up for.
    pub(super) wake_on_tx: bool,
}

impl CardShared {
    pub(super) fn new(mac: Mac) -> Result<Self, Error> {
        let state = State {
            open: None,
            provided: VecDeque::new(),
            filled: VecDeque::new(),
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            link: Link::default(),
            counters: Counters::default(),
            missed: 0,
            filter: Filter::own(mac),
            refiltered: false,
            filtering: false,
            closed: false,
            wake_on_tx: false,
        };
        Ok(Self {
            state: Mutex::new(state),
            filtered: Condvar::new(),
            wanted: descriptor()?,
            raised: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            arrived: Signal::new()?,
            returned: Arc::default(),
            link: Signal::new()?,
            watched: AtomicBool::new(false),
            nested: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wanted(&self) -> &OwnedFd {
        &self.wanted
    }

    /// The server is in the program's loop from now on.
    pub(super) fn nest(&self) {
        self.nested.store(true, Ordering::Release);
    }

    fn is_nested(&self) -> bool {
        self.nested.load(Ordering::Relaxed)
    }

    /// Has the program look.
    pub(super) fn want(&self) {
        if !self.is_nested() && !self.raised.swap(true, Ordering::AcqRel) {
            // Full means that it is readable.
            let _ = rustix::io::write(&self.wanted, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn heard(&self) {
        if self.is_nested() {
            return;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wanted, &mut count);
        self.raised.store(false, Ordering::Release);
    }

    pub(super) fn set_link(&self, link: Link) {
        let mut state = self.lock();
        if state.link != link {
            state.link = link;
            self.link.set(1);
        }
    }

    /// The device has lost so many frames in all. One that counts by few bits begins anew, and a
    /// count that falls would be believed.
    pub(super) fn set_missed(&self, frames: u64) {
        let mut state = self.lock();
        if frames > state.missed {
            state.missed = frames;
            // The server looks at both then.
            self.link.set(1);
        }
    }

    /// What went through, and what was lost on the way.
    pub(super) fn counters(&self) -> Counters {
        let state = self.lock();
        Counters { rx_missed: state.counters.rx_missed + state.missed, ..state.counters }
    }

    /// Has the program set a filter, and waits until it has. In its own loop nobody can wait for
    /// it: it is busy until the same filter is asked for once more and set.
    pub(super) fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        let mut state = self.lock();
        if self.is_nested() {
            if state.filter != *filter {
                (state.filter, state.refiltered, state.filtering) = (filter.clone(), true, true);
            }
            return if state.filtering && !state.closed {
                Err(Error::Busy("the card's filter is being set".into()))
            } else {
                Ok(())
            };
        }
        (state.filter, state.refiltered, state.filtering) = (filter.clone(), true, true);
        self.want();
        let set = self
            .filtered
            .wait_timeout_while(state, FILTERING, |state| state.filtering && !state.closed);
        let (state, _) = set.unwrap_or_else(PoisonError::into_inner);
        // A server whose card is closed is about to be stopped.
        if state.filtering && !state.closed {
            return Err(Error::Timeout {
                what: "the card's program, which sets the filter,",
                waited: FILTERING,
            });
        }
        Ok(())
    }

    /// The program has set the filter that it took last.
    pub(super) fn filter_set(&self) {
        let mut state = self.lock();
        state.filtering = state.refiltered;
        self.filtered.notify_all();
    }

    /// The program takes and sets nothing any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filtered.notify_all();
    }

    /// Has the program end, and nobody wait for it any more.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.close();
        self.want();
    }

    /// Whether the program shall end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The filter, if it is another one since it was last asked for.
    pub(super) fn filter(&self) -> Option<Filter> {
        let mut state = self.lock();
        std::mem::take(&mut state.refiltered).then(|| state.filter.clone())
    }

    /// Takes a frame from the wire; false if it is lost.
    pub(super) fn receive(&self, frame: &[u8], checked: bool) -> bool {
        let mut state = self.lock();
        let Some(limits) = state.open else { return false };
        if frame.len() > limits.max_frame() as usize || frame.len() > limits.rx_room() as usize {
            state.counters.rx_errors += 1;
            return false;
        }
        let Some(mut packet) = state.provided.pop_front() else {
            state.counters.rx_missed += 1;
            return false;
        };
        // The buffer has the room: that was checked when it was provided.
        if packet.fill(frame).is_err() {
            packet.len = 0;
        }
        packet.meta = Meta::default().with_checksum(if checked {
            Checksum::Valid
        } else {
            Checksum::Unknown
        });
        state.filled.push_back(packet);
        state.counters.rx_packets += 1;
        state.counters.rx_bytes += frame.len() as u64;
        self.arrived.set(state.filled.len());
        true
    }

    /// The next packet to be sent: its bytes, and what is asked for. `None` if there is none.
    pub(super) fn next(&self) -> Option<(u32, Meta)> {
        // Who polls looks here again and again.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return None;
        }
        let state = self.lock();
        let meta = state.waiting.front()?.meta;
        let last = state.waiting.iter().position(|piece| !piece.meta.more()).unwrap_or(0);
        Some((state.waiting.iter().take(last + 1).map(|piece| piece.len).sum(), meta))
    }

    /// The next packet is not sent.
    pub(super) fn lose(&self) {
        let mut state = self.lock();
        let Some(last) = state.waiting.iter().position(|piece| !piece.meta.more()) else { return };
        state.counters.tx_lost += 1;
        self.give_back(&mut state, last + 1);
    }

    /// Its first pieces were sent, or lost.
    fn give_back(&self, state: &mut State, pieces: usize) {
        let State { waiting, sent, .. } = state;
        sent.extend(waiting.drain(..pieces));
        self.waiting.store(waiting.len(), Ordering::Release);
        // Who waits looks again before it sleeps: the first is enough.
        if self.returned.swap(state.sent.len(), Ordering::SeqCst) == 0 && state.wake_on_tx {
            self.arrived.raise();
        }
    }

    /// Copies the next packet to be sent out; 0 if there is none.
    pub(super) fn take(&self, frame: &mut [u8]) -> Result<usize, Error> {
        let mut state = self.lock();
        let (mut len, mut pieces) = (0, 0);
        let mut copied = Ok(());
        for piece in &state.waiting {
            let end = len + piece.len as usize;
            copied = match frame.get_mut(len..end) {
                Some(room) if copied.is_ok() => piece.read(0, room),
                Some(_) => copied,
                None => Err(Error::Invalid(format!(
                    "a frame of {end} bytes or more where there is room for {}",
                    frame.len()
                ))),
            };
            (len, pieces) = (end, pieces + 1);
            if !piece.meta.more() {
                break;
            }
        }
        if pieces == 0 {
            return Ok(0);
        }
        match &copied {
            Ok(()) => {
                state.counters.tx_packets += 1;
                state.counters.tx_bytes += len as u64;
            }
            Err(_) => state.counters.tx_lost += 1,
        }
        self.give_back(&mut state, pieces);
        copied.map(|()| len)
    }
}
