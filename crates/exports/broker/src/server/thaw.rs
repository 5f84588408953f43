//! The timer for the first of those whom their limits hold back.

use std::time::Instant;

use ring3_reactor::{Reactor, Timer};

/// See the module.
#[derive(Default)]
pub struct ThrottleTimer(Option<(Timer, Instant)>);

impl ThrottleTimer {
    /// Whether `timer` was it; it is over then.
    pub fn is(&mut self, timer: Timer) -> bool {
        self.0.take_if(|(thaw, _)| *thaw == timer).is_some()
    }

    /// The first is due at `first`.
    pub fn set(&mut self, first: Option<Instant>, reactor: &mut Reactor) {
        let Some(first) = first.filter(|&first| self.0.is_none_or(|(_, due)| first < due)) else {
            return;
        };
        if let Some((timer, _)) = self.0.take() {
            reactor.cancel(timer);
        }
        self.0 = Some((reactor.set_timer(first), first));
    }
}
