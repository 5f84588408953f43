//! What a client has written since its last good flush, and which of its queues are still to be
//! told that it may be lost.
//!
//! # Why
//! The server has one queue of the disk for all clients, and the disk tells each of its queues once
//! when it has lost writes: the flush of whichever client comes first fails, and all others would
//! succeed. So a flush that fails, for whatever reason, is owed to every client that has written
//! since its own last good flush: the next flush of each of its queues fails, too. A client that
//! has written nothing since then is not told.

use ring3_class::block::{IoError, Operation, Request};

/// What a client has written. Its flushes are numbered from 1 on, in the order in which the disk
/// gets them.
#[derive(Default)]
pub struct Unflushed {
    /// Flushes that the disk was given.
    begun: u64,
    /// The first flush that covers all writes that have ended.
    covering: u64,
    /// The latest flush that has ended well at the disk. One that failed covers nothing: the other
    /// queues of its client are owed a failed one, too.
    flushed: u64,
}

/// What a queue of a client is still to be told.
#[derive(Default)]
pub struct PendingFlushError {
    /// Its next flush fails.
    next_fails: bool,
    /// Its flushes up to this one fail.
    failed: u64,
}

/// What the end of a request in the disk's hands says of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushEffect {
    /// Nothing.
    #[default]
    None,
    /// Something is written, and may be in a cache.
    Written,
    /// What was written is durable: flush number so and so of the client.
    Flushed(u64),
}

impl Unflushed {
    /// A request is about to be handed to the disk.
    pub fn begin(&mut self, request: &Request) -> FlushEffect {
        match request.operation {
            Operation::Flush => {
                self.begun += 1;
                FlushEffect::Flushed(self.begun)
            }
            Operation::Write | Operation::WriteZeroes if !request.fua => FlushEffect::Written,
            _ => FlushEffect::None,
        }
    }

    /// A request of the queue with `debt` has ended with `result`; how it ends for the client.
    pub fn end(
        &mut self,
        effect: FlushEffect,
        debt: &mut PendingFlushError,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        match effect {
            FlushEffect::None => result,
            FlushEffect::Written => {
                if result.is_ok() {
                    self.covering = self.begun + 1;
                }
                result
            }
            FlushEffect::Flushed(number) => {
                if std::mem::take(&mut debt.next_fails) {
                    // None of those that are under way may say that all is well.
                    debt.failed = self.begun;
                }
                if result.is_ok() {
                    self.flushed = self.flushed.max(number);
                }
                if number <= debt.failed { result.and(Err(IoError::Transport)) } else { result }
            }
        }
    }

    /// Whether it has written something since its last good flush.
    pub fn is_dirty(&self) -> bool {
        self.covering > self.flushed
    }
}

impl PendingFlushError {
    /// Its next flush fails.
    pub fn record(&mut self) {
        self.next_fails = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that has written something.
    fn written() -> (Unflushed, PendingFlushError) {
        let (mut client, mut debt) = (Unflushed::default(), PendingFlushError::default());
        client.end(FlushEffect::Written, &mut debt, Ok(())).unwrap();
        (client, debt)
    }

    fn flush(client: &mut Unflushed, debt: &mut PendingFlushError) -> Result<(), IoError> {
        let effect = client.begin(&Request::flush(0));
        client.end(effect, debt, Ok(()))
    }

    #[test]
    fn what_is_owed_is_told_once_and_to_all_flushes_under_way() {
        let (mut client, mut debt) = written();
        let under_way = [(); 2].map(|()| client.begin(&Request::flush(0)));
        debt.record();
        assert_eq!(
            under_way.map(|effect| client.end(effect, &mut debt, Ok(()))),
            [Err(IoError::Transport); 2]
        );
        assert_eq!(flush(&mut client, &mut debt), Ok(()));
    }

    #[test]
    fn a_client_is_dirty_from_its_write_to_the_end_of_a_flush_that_came_later() {
        let (mut client, mut debt) = written();
        let early = client.begin(&Request::flush(0));
        client.end(FlushEffect::Written, &mut debt, Ok(())).unwrap();
        client.end(early, &mut debt, Ok(())).unwrap();
        assert!(client.is_dirty());
        flush(&mut client, &mut debt).unwrap();
        assert!(!client.is_dirty());
    }

    #[test]
    fn a_client_whose_flush_has_failed_is_dirty_until_one_ends_well() {
        let (mut client, mut debt) = written();
        let effect = client.begin(&Request::flush(0));
        client.end(effect, &mut debt, Err(IoError::Transport)).unwrap_err();
        assert!(client.is_dirty());
        flush(&mut client, &mut debt).unwrap();
        assert!(!client.is_dirty());
    }

    #[test]
    fn what_is_durable_by_itself_and_what_has_failed_is_not_written() {
        let (mut client, mut debt) = (Unflushed::default(), PendingFlushError::default());
        assert_eq!(client.begin(&Request::write_zeroes(1, 0, 1).with_fua()), FlushEffect::None);
        client.end(FlushEffect::Written, &mut debt, Err(IoError::Medium)).unwrap_err();
        assert!(!client.is_dirty());
    }
}
