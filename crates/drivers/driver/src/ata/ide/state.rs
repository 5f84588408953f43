//! One drive of a channel, and the requests for it.

use std::collections::VecDeque;

use ring3_class::block::{Completion, Info, IoError, Request};
use ring3_spec::ata::Identify;

use super::super::cache::Cache;
use super::super::command::Encoder;
use super::super::identity::{Identity, Limits};
use super::super::options::Level;
use super::mode::{Mode, best_pio};
use super::prd::{MAX_TRANSFER, RULES};
use super::settings::Settings;

/// Most sectors of one PIO data block: what drives have offered since there is READ MULTIPLE, and
/// what a block buffer is made for.
const MAX_MULTIPLE: u8 = 16;
/// After so many commands without damage on the cable, old damage counts no more.
const FORGIVEN_AFTER: u32 = 10_000;
/// So much damage costs the transfer mode.
const TOLERATED: u8 = 2;

/// A drive as its channel knows it.
pub(super) struct DriveState {
    pub(super) identity: Identity,
    pub(super) encoder: Encoder,
    pub(super) mode: Mode,
    /// PIO mode that it is set to where the chip's timing is ours.
    pub(super) pio: u8,
    pub(super) block_size: u32,
    /// A queue of it is open.
    pub(super) open: bool,
    /// It takes no command any more; requests end like this.
    pub(super) fault: Option<IoError>,
    /// A queue of it was open.
    pub(super) used: bool,
    /// What may be in its cache, and what is lost of that.
    pub(super) cache: Cache,
    /// What it was set to, as it says itself; what a loss of its power takes away.
    pub(super) settings: Option<Settings>,
    /// Rung and not started, in order.
    pub(super) waiting: VecDeque<Request>,
    /// Ended and not reaped.
    pub(super) done: VecDeque<Completion>,
    damages: u8,
    since_damage: u32,
}

impl DriveState {
    /// The drive that `data` and `identity` describe, to be set to `mode`.
    pub(super) fn new(data: &Identify, mut identity: Identity, mode: Mode) -> Self {
        // A power of two; the drive may still refuse it.
        identity.multiple = match identity.multiple.min(MAX_MULTIPLE) {
            0 => 0,
            limit => 1 << limit.ilog2(),
        };
        Self {
            // Replaced when the drive's limits are known.
            encoder: Encoder::new(&identity, &identity.info(limits(mode, None))),
            mode,
            pio: best_pio(data),
            block_size: identity.block_size,
            open: false,
            fault: None,
            used: false,
            cache: Cache::default(),
            settings: None,
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            damages: 0,
            since_damage: 0,
            identity,
        }
    }

    /// What its users see of it, with at most `max_transfer` bytes a request if that is given.
    pub(super) fn info(&self, max_transfer: Option<u32>) -> Info {
        self.identity.info(limits(self.mode, max_transfer))
    }

    /// Makes its commands by what it and the chip have agreed upon.
    pub(super) fn set_encoder(&mut self, max_transfer: Option<u32>) {
        self.encoder = Encoder::new(&self.identity, &self.info(max_transfer));
    }

    /// Whether `other` says the same of itself, and gives a number of which there is only one.
    pub(super) fn is(&self, other: &Identity) -> bool {
        let own = &self.identity;
        !own.serial.is_empty()
            && (&own.serial, &own.model, own.blocks) == (&other.serial, &other.model, other.blocks)
    }

    /// How its data move.
    pub(super) fn level(&self) -> Level {
        if self.mode == Mode::Pio { Level::Pio } else { Level::Dma }
    }

    /// Bytes that it moves between two looks at its status, by PIO.
    pub(super) fn pio_block(&self) -> usize {
        self.block_size as usize * usize::from(self.identity.multiple.max(1))
    }

    /// Notes that a transfer was damaged on the cable; true if that happens too often in this mode.
    pub(super) fn note_damage(&mut self) -> bool {
        if self.since_damage > FORGIVEN_AFTER {
            self.damages = 0;
        }
        self.since_damage = 0;
        self.damages = self.damages.saturating_add(1);
        self.damages >= TOLERATED
    }

    /// Notes that a transfer was not damaged.
    #[inline]
    pub(super) fn note_success(&mut self) {
        self.since_damage = self.since_damage.saturating_add(1);
    }

    /// Another mode begins without old damage.
    pub(super) fn set_mode(&mut self, mode: Mode) {
        (self.mode, self.damages) = (mode, 0);
    }

    /// Ends everything that waits.
    pub(super) fn end_waiting(&mut self, error: IoError) {
        while let Some(Request { token, data, .. }) = self.waiting.pop_front() {
            self.done.push_back(Completion { token, result: Err(error), data });
        }
    }
}

fn limits(mode: Mode, max_transfer: Option<u32>) -> Limits {
    Limits {
        max_transfer: max_transfer.unwrap_or(u32::MAX).min(MAX_TRANSFER),
        segments: RULES,
        level: if mode == Mode::Pio { Level::Pio } else { Level::Dma },
        lowest: Level::Pio,
    }
}
