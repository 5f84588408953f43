//! What a command must say at its end: a replay that was left, a recording that is not whole.

use std::sync::{Mutex, PoisonError};

static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Notes `failure`, if it is the first of this process.
pub(crate) fn record(failure: String) {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
}

/// The first recording or replay of this process that has failed, in words; a command with one has
/// not succeeded. Once.
pub fn take_failure() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).take()
}
