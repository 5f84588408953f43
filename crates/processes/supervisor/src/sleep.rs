//! All devices together before the machine sleeps.

use std::sync::{Arc, Mutex, PoisonError};

use ring3_control::admin::Reply;

use crate::keeper::{Handle, KeeperCommand};
use crate::policy::Sleep;

/// Has all devices made ready for the machine's sleep; `answer` is called when the last one is, and
/// which are not.
pub fn all<'k>(
    keepers: impl Iterator<Item = &'k Handle>,
    driven: bool,
    answer: impl FnOnce(Reply) + Send + 'static,
) {
    let keepers: Vec<_> = keepers.collect();
    let sleep = if driven { Sleep::Driven } else { Sleep::Stopped };
    if keepers.is_empty() {
        return answer(Reply::Done);
    }
    let awaited = Arc::new(Mutex::new(Awaited {
        count: keepers.len(),
        refused: Vec::new(),
        answer: Some(answer),
    }));
    for keeper in keepers {
        let awaited = awaited.clone();
        let heard =
            move |reply| awaited.lock().unwrap_or_else(PoisonError::into_inner).handle_reply(reply);
        keeper.ask(KeeperCommand::Sleep { sleep, answer: Box::new(heard) });
    }
}

/// Devices that are not ready yet, and what those have said that are not going to be.
struct Awaited<A> {
    count: usize,
    refused: Vec<String>,
    answer: Option<A>,
}

impl<A: FnOnce(Reply)> Awaited<A> {
    fn handle_reply(&mut self, reply: Reply) {
        self.count = self.count.saturating_sub(1);
        if let Reply::Refused(why) = reply {
            self.refused.push(why);
        }
        if self.count > 0 {
            return;
        }
        if let Some(answer) = self.answer.take() {
            let refused = std::mem::take(&mut self.refused);
            answer(if refused.is_empty() {
                Reply::Done
            } else {
                Reply::Refused(refused.join("; "))
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(replies: Vec<Reply>) -> Option<Reply> {
        let mut answered = None;
        let mut awaited = Awaited {
            count: replies.len(),
            refused: Vec::new(),
            answer: Some(|reply| answered = Some(reply)),
        };
        replies.into_iter().for_each(|reply| awaited.handle_reply(reply));
        answered
    }

    #[test]
    fn the_machine_may_sleep_when_the_last_device_is_ready() {
        assert_eq!(heard(vec![Reply::Done, Reply::Done]), Some(Reply::Done));
    }

    #[test]
    fn a_device_that_is_not_ready_is_named() {
        let refused = heard(vec![Reply::Refused("a: no".into()), Reply::Done]);
        assert_eq!(refused, Some(Reply::Refused("a: no".into())));
    }
}
