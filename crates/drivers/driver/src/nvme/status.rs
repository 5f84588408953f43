//! The meaning of a completion status for the requester. [NVMe 4.2.3]

use std::time::Duration;

use ring3_class::block::{IoError, Operation};
use ring3_spec::nvme::Status;

use crate::disk::ATTEMPTS;

/// The class's word for a command that failed.
pub(super) fn io_error(status: Status) -> IoError {
    match status.plain() {
        Status::LBA_OUT_OF_RANGE => IoError::OutOfRange,
        Status::CAPACITY_EXCEEDED => IoError::NoSpace,
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY => IoError::ReadOnly,
        Status::INVALID_OPCODE => IoError::Unsupported,
        Status::INVALID_FIELD
        | Status::INVALID_PRP_OFFSET
        | Status::SGL_SEGMENT
        | Status::SGL_LENGTH
        | Status::SGL_TYPE
        | Status::SIZE_LIMIT
        | Status::CONFLICTING_ATTRIBUTES
        | Status::INVALID_PROTECTION_INFO => IoError::Invalid,
        Status::GUARD_CHECK | Status::APPLICATION_TAG_CHECK | Status::REFERENCE_TAG_CHECK => {
            IoError::Integrity
        }
        Status::ABORTED => IoError::Timeout,
        other if other.kind() == Status::MEDIA => IoError::Medium,
        _ => IoError::Transport,
    }
}

/// Most attempts of a request that completes with an error which may be retried: one, and five
/// retries, as in the kernel's driver.
const ATTEMPTS_FAILED: u8 = 6;
/// Delay before the second retry, if the device asks for none (CRD). It doubles with each further
/// retry; the first has none.
const PAUSE: Duration = Duration::from_millis(10);

/// Most attempts of a request of this `operation` that completes with `status`.
///
/// A status without "do not retry" says that the same command may succeed the next time. [NVMe
/// 4.2.3]
pub(super) fn attempts(operation: Operation, status: Status) -> u8 {
    match status.plain() {
        _ if status.do_not_retry() || is_kept_from(status) => 1,
        // By the driver itself, after a time-out.
        Status::ABORTED | Status::ABORTED_SQ_DELETION => ATTEMPTS,
        Status::INTERRUPTED
        | Status::TRANSIENT_TRANSPORT
        | Status::NAMESPACE_NOT_READY
        | Status::POWER_LOSS => ATTEMPTS_FAILED,
        // Never retry a failed flush: the drive may have dropped the data that it could not write.
        // A second flush could then succeed although that data is lost.
        _ if operation == Operation::Flush => 1,
        _ => ATTEMPTS_FAILED,
    }
}

/// Whether the controller does no such command because of somebody else's wish, which lasts: a
/// reservation of the namespace, or a sanitize operation.
pub(super) fn is_kept_from(status: Status) -> bool {
    matches!(status.plain(), Status::RESERVATION_CONFLICT | Status::SANITIZE_IN_PROGRESS)
}

/// How long a command that was handed to the device `attempts` times and ended with `status` waits
/// before the next one: what the status asks for, which is one of `delays` in units of 100 ms, but
/// no longer than `most`, because the device may say two hours.
pub(super) fn pause(status: Status, attempts: u8, delays: [u16; 3], most: Duration) -> Duration {
    let asked =
        usize::from(status.retry_delay()).checked_sub(1).and_then(|delay| delays.get(delay));
    match (asked, attempts) {
        (Some(&delay), _) => Duration::from_millis(100 * u64::from(delay)).min(most),
        (None, 0 | 1) => Duration::ZERO,
        (None, attempts) => (PAUSE * (1 << (attempts.min(ATTEMPTS_FAILED) - 2))).min(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vendors_own_status_is_a_transport_error() {
        assert_eq!(io_error(Status(7 << 8 | 0x42)), IoError::Transport);
    }

    #[test]
    fn an_unknown_media_error_is_a_media_error() {
        assert_eq!(io_error(Status(2 << 8 | 0xfe)), IoError::Medium);
    }

    #[test]
    fn flags_do_not_change_what_a_status_means() {
        assert_eq!(io_error(Status::LBA_OUT_OF_RANGE.with_do_not_retry()), IoError::OutOfRange);
    }

    #[test]
    fn what_must_not_be_retried_is_not() {
        let repeats = |operation, status| attempts(operation, status) > 1;
        for status in [Status::INTERRUPTED, Status::INTERNAL, Status::UNRECOVERED_READ] {
            assert!(
                repeats(Operation::Read, status)
                    && !repeats(Operation::Read, status.with_do_not_retry()),
                "{status}"
            );
        }
        for status in [Status::RESERVATION_CONFLICT, Status::SANITIZE_IN_PROGRESS] {
            assert!(!repeats(Operation::Read, status), "{status}");
        }
        assert!(repeats(Operation::Flush, Status::INTERRUPTED));
        assert!(
            !repeats(Operation::Flush, Status::INTERNAL)
                && !repeats(Operation::Flush, Status::WRITE_FAULT)
        );
    }

    #[test]
    fn a_repetition_waits_as_long_as_the_device_asks_for_and_no_longer_than_a_request_may_take() {
        let (status, most) =
            (|delay| Status::INTERNAL.with_retry_delay(delay), Duration::from_secs(30));
        let pauses = [1, 2, 3].map(|delay| pause(status(delay), 1, [0, 7, u16::MAX], most));
        assert_eq!(pauses, [Duration::ZERO, Duration::from_millis(700), most]);
    }

    #[test]
    fn without_a_word_of_the_devices_repetitions_come_further_and_further_apart() {
        let pauses = [1, 2, 3, 4, 5]
            .map(|attempts| pause(Status::INTERNAL, attempts, [9; 3], Duration::MAX).as_millis());
        assert_eq!(pauses, [0, 10, 20, 40, 80]);
    }
}
