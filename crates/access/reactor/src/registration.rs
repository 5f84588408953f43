//! Sources in a reactor: polled while that pays, else slept for by their interrupts.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ring3_device::Error;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::wait::{Source, poll_for};

use crate::{LoopStats, Reactor, Timer, Token};

/// The shortest and the longest sleep while a source is waited for that has no interrupt.
pub(crate) const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Between two looks while polling: about a tenth of a microsecond on hardware. A look costs more
/// than a pause, and looking without a pause takes the processor from its other thread, or from the
/// device where that is emulated.
const PAUSES_PER_LOOK: u32 = 4;

#[inline]
fn pause() {
    (0..PAUSES_PER_LOOK).for_each(|_| std::hint::spin_loop());
}

/// When a tick that has failed is repeated.
const RETRY: Duration = Duration::from_millis(100);

/// What a reactor knows of one source.
pub struct Registration {
    token: Option<Token>,
    timer: Option<Timer>,
}

/// A source that something is expected of, with its registration.
pub type Registered<'a> = (&'a Registration, &'a mut dyn Source);

impl Registration {
    /// For `source`, whose interrupt stays the same.
    pub fn new(reactor: &mut Reactor, source: &dyn Source) -> io::Result<Self> {
        let token = source.irq().map(|irq| reactor.keep(irq.as_fd())).transpose()?;
        Ok(Self { token, timer: None })
    }

    /// By which [`Event::Ready`](crate::Event::Ready) names its interrupt.
    pub fn token(&self) -> Option<Token> {
        self.token
    }

    /// By which [`Event::Timer`](crate::Event::Timer) names its next tick. Without one,
    /// [`tick`](Self::tick) it before it is waited for.
    #[inline]
    pub fn timer(&self) -> Option<Timer> {
        self.timer
    }

    /// Lets time pass for `source`, and sets the timer for the next time. If that fails, too: it
    /// goes on.
    pub fn tick(
        &mut self,
        reactor: &mut Reactor,
        source: &mut dyn Source,
        now: Instant,
    ) -> Result<(), Error> {
        self.rest(reactor, source);
        let next = source.tick(now);
        self.timer =
            next.as_ref().map_or(Some(now + RETRY), |&due| due).map(|due| reactor.set_timer(due));
        next.map(drop)
    }

    /// Nothing is expected of `source` now: it has no timer.
    ///
    /// Reads the interrupt's count, which finds storms. Not done for each interrupt: a watched
    /// descriptor tells of the next one whether the last was read or not.
    pub fn rest(&mut self, reactor: &mut Reactor, source: &dyn Source) {
        if let Some(timer) = self.timer.take() {
            reactor.cancel(timer);
        }
        if let Some(Err(error)) =
            source.irq().filter(|irq| irq.kind() != IrqKind::Intx).map(Irq::take)
        {
            tracing::warn!(%error, "the interrupt cannot be read");
        }
    }

    /// Gives the interrupt's descriptor and the timer back.
    pub fn remove(self, reactor: &mut Reactor) -> io::Result<()> {
        self.timer.into_iter().for_each(|timer| reactor.cancel(timer));
        self.token.map_or(Ok(()), |token| reactor.remove(token))
    }
}

impl Reactor {
    /// Looks for events for at most `most`, at no system call's cost: whether there are some, and
    /// how long it has looked. What was pushed must have been sent.
    pub fn look_for_events(&mut self, most: Duration) -> (bool, Duration) {
        let start = Instant::now();
        let (found, end) = poll_for(start, most, &mut || {
            let found = self.has_events();
            if !found {
                pause();
            }
            found
        });
        self.polled += end - start;
        (found, end - start)
    }

    /// Sends what was pushed, and returns when one of `sources` may have something to take, when
    /// there are events, or after `limit`: polls while that has paid lately, then sleeps.
    pub fn wait(
        &mut self,
        sources: &mut [Registered<'_>],
        limit: Option<Duration>,
    ) -> io::Result<LoopStats> {
        if self.has_events() {
            return self.step(Some(Duration::ZERO));
        }
        let mut turn = LoopStats::default();
        if !self.poll(sources, limit, &mut turn)? {
            if limit != Some(Duration::ZERO) {
                self.budget.slept();
            }
            self.sleep(sources, limit, &mut turn)?;
        }
        Ok(turn)
    }

    /// Looks at sources and for events while that pays; true if there are some.
    fn poll(
        &mut self,
        sources: &mut [Registered<'_>],
        limit: Option<Duration>,
        turn: &mut LoopStats,
    ) -> io::Result<bool> {
        let most = self.budget.poll_for().min(limit.unwrap_or(Duration::MAX));
        if most.is_zero() {
            return Ok(false);
        }
        if self.budget.pays() {
            sources
                .iter_mut()
                .try_for_each(|(registration, source)| self.hold_back(registration, *source))?;
        }
        if self.has_unsent() {
            turn.calls += self.step(Some(Duration::ZERO))?.calls;
        }
        let start = Instant::now();
        let mut pending = false;
        let (found, end) = poll_for(start, most, &mut || {
            pending = sources.iter().any(|(_, source)| source.pending());
            let found = pending || self.has_events();
            if !found {
                pause();
            }
            found
        });
        self.polled += end - start;
        if pending {
            self.budget.observe(end - start, true);
            self.nap = NAPS.0;
        }
        turn.polled = (pending || !found).then_some(pending);
        Ok(found)
    }

    /// Each interrupt of a source that is polled would cost a system call that brings nothing.
    fn hold_back(
        &mut self,
        registration: &Registration,
        source: &mut dyn Source,
    ) -> io::Result<()> {
        let Some(token) = registration.token.filter(|&token| self.is_watched(token)) else {
            return Ok(());
        };
        self.unwatch(token)?;
        if let Err(error) = source.disarm() {
            tracing::warn!(%error, "the interrupt cannot be held back");
        }
        Ok(())
    }

    /// Sleeps until an interrupt of the sources' or an event comes, unless one of them has
    /// something.
    fn sleep(
        &mut self,
        sources: &mut [Registered<'_>],
        limit: Option<Duration>,
        turn: &mut LoopStats,
    ) -> io::Result<()> {
        let mut blind = false;
        for (registration, source) in sources.iter_mut() {
            let Some(token) = registration.token else {
                blind = true;
                continue;
            };
            self.watch(token)?;
            match source.arm() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "the interrupt cannot be armed");
                    blind = true;
                }
            }
        }
        let nap =
            if blind { Some(limit.map_or(self.nap, |limit| limit.min(self.nap))) } else { limit };
        let step = self.step(nap)?;
        *turn = LoopStats { calls: turn.calls + step.calls, slept: step.slept, ..*turn };
        if blind {
            let pending = sources.iter().any(|(_, source)| source.pending());
            self.nap = if pending { NAPS.0 } else { (self.nap * 2).min(NAPS.1) };
        }
        Ok(())
    }
}
