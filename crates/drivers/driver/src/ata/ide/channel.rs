//! One channel: two drives, one command at a time.
//!
//! # Why there is a lock
//! The hardware of a channel is one command wide: one set of registers, one bus master, one
//! interrupt for both drives. Who takes the end of a command must start the next one, whichever
//! drive's it is, or the bus would be idle until the other drive's thread wakes up. So a channel is
//! behind one lock, taken once per call, and held for a few port accesses; with one drive there is
//! nobody else who wants it.
//!
//! # Who moves it on
//! Every call that looks at the channel does: [`Channel::advance`] takes the end of the running
//! command if it has ended, and starts the next, of the other drive if that has one waiting. What
//! must wait for a drive (resets, transfer modes) is noted as [`ChannelFault`] and done by `tick`
//! alone, in `recovery.rs`.

use std::sync::{Arc, Mutex};

use ring3_class::block::{Completion, IoError, Operation, Request, reap_ready};
use ring3_device::Error;
use ring3_spec::ata::{ErrorBits, Status};
use ring3_spec::ide::{CHANNELS, DRIVES};

use super::super::command::Command;
use super::super::status::{self, Verdict};
use super::function::Function;
use super::ports::Ports;
use super::prd::Table;
use super::state::DriveState;
use super::stats::Stats;
use crate::disk::Timeouts;

/// How often a command is given to a drive before its request ends with an error.
pub(super) const ATTEMPTS: u8 = 3;

/// Both channels of a function; `None` is one that is not there.
pub(super) type Channels = [Option<Mutex<Channel>>; CHANNELS as usize];

/// The command that the channel is at.
pub(super) struct Running {
    pub(super) drive: u8,
    pub(super) request: Request,
    /// What the drive was told; `None` before it was.
    pub(super) command: Option<Command>,
    /// Bytes moved by PIO.
    pub(super) moved: usize,
    pub(super) attempts: u8,
    /// When it was started; see [`Timeouts`].
    pub(super) epoch: u32,
    /// It was seen in a state that does not last, once.
    pub(super) suspicious: bool,
}

/// How a command ended.
pub(super) enum End {
    /// Well.
    Done,
    /// The drive says that it failed.
    Failed(Status, ErrorBits),
    /// Before all data had moved, or with an error of the bus master, and the drive is idle.
    Short,
}

/// What only [`Channel::watch`] can mend, because it takes waiting.
#[derive(Clone, Copy)]
pub(super) enum ChannelFault {
    /// The drives need a reset: why, and how the running request ends if it has no attempt left.
    Reset(&'static str, IoError),
    /// The running command's drive needs a slower transfer mode.
    Slower,
}

/// A channel. Its start and end are here; how a command runs is in `transfer.rs`.
pub(super) struct Channel {
    pub(super) function: Arc<Function>,
    pub(super) ports: Ports,
    /// What the bus master reads; `None` without one.
    pub(super) table: Option<Table>,
    pub(super) states: [Option<Box<DriveState>>; DRIVES as usize],
    pub(super) running: Option<Running>,
    pub(super) trouble: Option<ChannelFault>,
    /// The drive that is asked first for the next command.
    turn: u8,
    /// Something of a drive has ended since its owner looked.
    pub(super) news: [bool; DRIVES as usize],
    /// Its end is found by looking alone, and the drives raise no interrupt.
    pub(super) polled: bool,
    /// The selected drive was seen idle and has had no command since.
    pub(super) idle: bool,
    pub(super) timeouts: Timeouts,
    /// One block of PIO data.
    pub(super) block: Box<[u8]>,
    /// The function's generation for which the drives are set up.
    pub(super) generation: u32,
    pub(super) stats: Stats,
    pub(super) number: u8,
}

impl Channel {
    /// Channel `number` of `function`, with no drives yet; with `dma`, it may use its bus master if
    /// it has one.
    pub(super) fn new(function: Arc<Function>, number: u8, dma: bool) -> Result<Self, Error> {
        let mut ports = Ports::new(
            &*function.device,
            number,
            function.has_dma(),
            function.chip.has_wide_data(),
        )?;
        let table = if dma && ports.has_bus_master() {
            Some(Table::new(function.device.dma().arena())?)
        } else {
            None
        };
        if let Some(address) = table.as_ref().and_then(Table::address) {
            ports.set_witness(address);
        }
        Ok(Self {
            ports,
            table,
            states: [None, None],
            running: None,
            trouble: None,
            turn: 0,
            news: [false; DRIVES as usize],
            polled: true,
            idle: false,
            timeouts: Timeouts::new(function.options.timeout),
            block: Box::default(),
            generation: function.lifetime.generation(),
            stats: Stats::default(),
            number,
            function,
        })
    }

    /// What drive `drive` of it is called.
    pub(super) fn name_of(&self, drive: u8) -> String {
        drive_name(self.function.device.name(), self.number, drive)
    }

    pub(super) fn state(&mut self, drive: u8) -> Option<&mut DriveState> {
        self.states.get_mut(usize::from(drive))?.as_deref_mut()
    }

    /// How many drives it has.
    pub(super) fn drives(&self) -> usize {
        self.states.iter().flatten().count()
    }

    /// Makes room for the blocks of all drives.
    pub(super) fn size_block(&mut self) {
        let bytes = self.states.iter().flatten().map(|state| state.pio_block()).max().unwrap_or(0);
        self.block = vec![0; bytes].into();
    }

    /// Lets the drives raise their interrupts from now on.
    pub(super) fn use_interrupts(&mut self) {
        self.polled = false;
        self.ports.status();
        self.acknowledge();
        self.ports.set_interrupts(true);
    }

    /// Queues what was submitted for `drive` and starts it if the channel is idle.
    pub(super) fn ring(&mut self, drive: u8, submitted: &mut std::collections::VecDeque<Request>) {
        let Some(state) = self.state(drive) else { return };
        state.waiting.extend(submitted.drain(..));
        if self.running.is_none() && self.trouble.is_none() {
            self.start_next();
        }
    }

    /// Takes those of `drive`'s requests that have ended into `done`; returns how many.
    #[inline]
    pub(super) fn reap(&mut self, drive: u8, done: &mut [Completion]) -> usize {
        self.news[usize::from(drive & 1)] = false;
        if self.state(drive).is_some_and(|state| state.done.is_empty()) {
            self.advance();
        }
        self.state(drive).map_or(0, |state| reap_ready(done, &mut state.done))
    }

    /// Whether `drive` has something to reap.
    #[inline]
    pub(super) fn ready(&mut self, drive: u8) -> bool {
        let has_done =
            |channel: &mut Self| channel.state(drive).is_some_and(|state| !state.done.is_empty());
        has_done(self) || {
            self.advance();
            has_done(self)
        }
    }

    /// Takes the end of the running command if it has ended, and starts the next.
    #[inline]
    pub(super) fn advance(&mut self) {
        if self.trouble.is_some() {
            return;
        }
        if !self.is_reset_under_us()
            && let Some(end) = self.poll_completions()
        {
            self.finish(end);
        }
    }

    /// Whether the other channel had to reset the function, and this one's drives with it: their
    /// settings and commands are gone.
    #[inline]
    pub(super) fn is_reset_under_us(&mut self) -> bool {
        let is_reset = self.function.lifetime.generation() != self.generation;
        if is_reset {
            self.trouble = Some(ChannelFault::Reset("the function was reset", IoError::Transport));
        }
        is_reset
    }

    /// Makes of the end of the running command a completion, or gives it to the drive once more;
    /// starts the next.
    pub(super) fn finish(&mut self, end: End) {
        let Some(Running { drive, attempts, request, .. }) = &self.running else { return };
        let (drive, attempts, operation) = (*drive, *attempts, request.operation);
        match end {
            End::Done => match self.note_done(drive) {
                Ok(result) => self.end(result),
                Err(_) => {
                    return self.trouble =
                        Some(ChannelFault::Reset("it does not say who it is", IoError::Timeout));
                }
            },
            End::Failed(status, error) => match status::verdict(operation, status, error) {
                Verdict::Damaged => return self.repeat_damaged(drive, attempts),
                Verdict::Faulted if attempts < ATTEMPTS => {
                    tracing::warn!("{}: it could not do a command (DF)", self.name_of(drive));
                    return self.repeat();
                }
                Verdict::Faulted => self.end(Err(IoError::Transport)),
                Verdict::Final(error) => self.end(Err(error)),
            },
            End::Short if attempts < ATTEMPTS => return self.repeat(),
            End::Short => self.end(Err(IoError::Transport)),
        }
        self.start_next();
    }

    /// Notes that the running command of `drive` has ended well, and says how its request ends; an
    /// error if the drive does not say who it is.
    #[inline]
    fn note_done(&mut self, drive: u8) -> Result<Result<(), IoError>, Error> {
        let (Some(running), Some(state)) =
            (&self.running, self.states[usize::from(drive & 1)].as_deref_mut())
        else {
            return Ok(Ok(()));
        };
        state.note_success();
        if state.encoder.leaves_in_cache(&running.request) {
            state.cache.wrote();
        }
        if running.request.operation == Operation::Flush && !state.cache.is_clean() {
            self.confirm_flush(drive)
        } else {
            Ok(Ok(()))
        }
    }

    /// Whether the drive that has flushed is the one that was written: one whose power was gone
    /// meanwhile has nothing to flush, and has lost its settings, too. If it counts how often it
    /// was powered on, that decides.
    #[cold]
    pub(super) fn confirm_flush(&mut self, drive: u8) -> Result<Result<(), IoError>, Error> {
        let now = self.read_settings(drive)?;
        let Some(state) = self.state(drive) else { return Ok(Ok(())) };
        if state.settings.is_some_and(|settings| settings != now) {
            // Somebody else may have reset the function, and the drive with it.
            self.look_for_loss(drive, false)?;
            // What it was set to is set again.
            self.trouble =
                Some(ChannelFault::Reset("a drive has lost its settings", IoError::Transport));
        }
        Ok(self.state(drive).map_or(Ok(()), |state| state.cache.flushed()))
    }

    /// A transfer was damaged on the cable: once more, in a slower mode if that happens often.
    #[cold]
    fn repeat_damaged(&mut self, drive: u8, attempts: u8) {
        let often = self.state(drive).is_some_and(DriveState::note_damage);
        let can_slow_down = self
            .state(drive)
            .is_some_and(|state| state.mode.slower(state.identity.multiword_dma).is_some());
        if often && can_slow_down {
            self.trouble = Some(ChannelFault::Slower);
        } else if attempts < ATTEMPTS {
            self.repeat();
        } else {
            self.end(Err(IoError::Transport));
            self.start_next();
        }
    }

    /// Gives the running command to its drive once more.
    pub(super) fn repeat(&mut self) {
        self.stats.repeats += 1;
        if let Err(error) = self.launch() {
            self.end(Err(error));
            self.start_next();
        }
    }

    /// Ends the running request.
    #[inline]
    pub(super) fn end(&mut self, result: Result<(), IoError>) {
        if let Some(Running { drive, request: Request { token, data, .. }, .. }) =
            self.running.take()
            && let Some(state) = self.state(drive)
        {
            state.done.push_back(Completion { token, result, data });
            self.news[usize::from(drive & 1)] = true;
        }
    }

    /// Starts the next request, of the drive whose turn it is if it has one.
    #[inline]
    pub(super) fn start_next(&mut self) {
        while self.trouble.is_none()
            && let Some((drive, request)) = self.next_request()
        {
            let flushes_nothing = request.operation == Operation::Flush && self.is_uncached(drive);
            self.running = Some(Running {
                drive,
                request,
                command: None,
                moved: 0,
                attempts: 0,
                epoch: 0,
                suspicious: false,
            });
            if flushes_nothing {
                self.end(Ok(()));
                continue;
            }
            match self.launch() {
                Ok(()) => return,
                Err(error) => self.end(Err(error)),
            }
        }
    }

    fn is_uncached(&mut self, drive: u8) -> bool {
        self.state(drive).is_some_and(|state| state.identity.flush == super::super::Flush::None)
    }

    fn next_request(&mut self) -> Option<(u8, Request)> {
        for drive in [self.turn, 1 - self.turn] {
            if let Some(state) = self.state(drive)
                && let Some(request) = state.waiting.pop_front()
            {
                self.turn = 1 - drive;
                return Some((drive, request));
            }
        }
        None
    }

    /// Takes the interrupt back where the drive is not the only one that remembers it.
    pub(super) fn acknowledge(&mut self) {
        if !self.polled {
            self.ports.clear(self.ports.bus_status());
            self.function.chip.acknowledge(
                &*self.function.device,
                self.number,
                self.ports.chip_registers(),
            );
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.ports.stop();
        self.ports.set_interrupts(false);
    }
}

/// What a drive is called in messages.
pub(super) fn drive_name(device: &str, channel: u8, drive: u8) -> String {
    let (channel, drive) = (
        ["primary", "secondary"][usize::from(channel & 1)],
        ["master", "slave"][usize::from(drive & 1)],
    );
    format!("{device} {channel} {drive}")
}
