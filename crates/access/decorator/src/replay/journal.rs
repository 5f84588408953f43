//! What a replayed device has for a driver that can be repeated: all that happens is in the
//! recording, and comes when the driver asks.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_device::Error;
use ring3_device::journal::{Journal, Journaled, Wake};

use super::Replay;
use crate::recording::Event;

impl Journal for Replay {
    fn begin(&self) -> Journaled {
        self.shared.is_journaled.store(true, Ordering::Release);
        self.shared.script().begin_journal();
        Journaled::Replayed
    }

    fn share(&self, iova: u64, len: usize) {
        self.shared.script().mirror.share(iova, len);
    }

    fn unshare(&self, iova: u64) {
        self.shared.script().mirror.unshare(iova);
    }

    fn sync(&self) -> Result<(), Error> {
        self.shared.script().call(Event::Synced)
    }

    fn wait(&self, _: BorrowedFd<'_>, _: Option<Duration>) -> Result<Wake, Error> {
        self.shared.script().wait()
    }

    fn record(&self, _: &[u8]) {}

    fn answer(&self) -> Result<Vec<u8>, Error> {
        self.shared.script().answer()
    }
}
