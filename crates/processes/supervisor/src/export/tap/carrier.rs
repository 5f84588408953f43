//! Whether an interface has a carrier, by what its drivers say of the card's link.
//!
//! A carrier that goes takes routes with it, and makes others move away. So it stays while no
//! driver says anything, and a driver that has just started its card, whose link is negotiated
//! anew, is not believed for a while that there is none.

use std::time::{Duration, Instant};

/// How long a link may take to come up again: copper at a gigabit a second takes up to four. [802.3
/// 28, 40]
const NEGOTIATION: Duration = Duration::from_secs(6);

/// What is known of it.
#[derive(Debug, Default)]
pub struct Carrier {
    /// What the kernel was told.
    pub up: bool,
    /// What the driver says; `None`: nothing yet, or there is none.
    link: Option<bool>,
    /// Until when a new driver's link may come up.
    patience: Option<Instant>,
}

impl Carrier {
    /// Of an interface of which the kernel was told so.
    pub fn new(up: bool) -> Self {
        Self { up, ..Self::default() }
    }

    /// A driver serves from now on.
    pub fn begins(&mut self, now: Instant) {
        (self.link, self.patience) = (None, Some(now + NEGOTIATION));
    }

    /// There is no driver.
    pub fn ends(&mut self) {
        (self.link, self.patience) = (None, None);
    }

    /// Sets the state of the link, as the driver reports it.
    pub fn set_link(&mut self, up: bool) {
        self.link = Some(up);
        if up {
            // From here on, a link that goes is pulled.
            self.patience = None;
        }
    }

    /// What the kernel is to be told; `None`: nothing new.
    pub fn judge(&mut self, now: Instant) -> Option<bool> {
        let is_late = self.patience.is_none_or(|patience| patience <= now);
        let up = match self.link {
            Some(true) => true,
            Some(false) if is_late => false,
            _ => self.up,
        };
        (up != std::mem::replace(&mut self.up, up)).then_some(up)
    }

    /// When to judge again, if nothing happens before.
    pub fn due(&self) -> Option<Instant> {
        self.patience.filter(|_| self.link == Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(now: Instant) -> Carrier {
        let mut carrier = Carrier::default();
        carrier.begins(now);
        carrier.set_link(true);
        assert_eq!(carrier.judge(now), Some(true));
        carrier
    }

    #[test]
    fn it_stays_over_a_death_and_while_the_next_link_comes_up() {
        let now = Instant::now();
        let mut carrier = served(now);
        carrier.ends();
        assert_eq!((carrier.judge(now), carrier.due()), (None, None));
        carrier.begins(now);
        carrier.set_link(false);
        assert_eq!(carrier.judge(now), None);
        carrier.set_link(true);
        assert_eq!((carrier.judge(now), carrier.up), (None, true));
    }

    #[test]
    fn it_goes_if_the_next_link_does_not_come_up_in_time() {
        let now = Instant::now();
        let mut carrier = served(now);
        carrier.begins(now);
        carrier.set_link(false);
        assert_eq!((carrier.judge(now), carrier.due()), (None, Some(now + NEGOTIATION)));
        assert_eq!(carrier.judge(now + NEGOTIATION), Some(false));
    }

    #[test]
    fn a_cable_that_is_pulled_is_told_at_once() {
        let now = Instant::now();
        let mut carrier = served(now);
        carrier.set_link(false);
        assert_eq!(carrier.judge(now), Some(false));
        carrier.set_link(true);
        assert_eq!(carrier.judge(now), Some(true));
    }

    #[test]
    fn an_interface_whose_first_card_has_no_link_never_had_one() {
        let now = Instant::now();
        let mut carrier = Carrier::default();
        carrier.begins(now);
        carrier.set_link(false);
        assert_eq!(
            (carrier.judge(now), carrier.judge(now + NEGOTIATION), carrier.up),
            (None, None, false)
        );
    }
}
