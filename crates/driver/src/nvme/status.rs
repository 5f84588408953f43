//! What the end of a command means to the one who asked. [NVMe 4.2.3]

use ring3_class::block::IoError;
use ring3_spec::nvme::Status;

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
        | Status::CONFLICTING_ATTRIBUTES => IoError::Invalid,
        Status::GUARD_CHECK | Status::APPLICATION_TAG_CHECK | Status::REFERENCE_TAG_CHECK => IoError::Integrity,
        Status::ABORTED => IoError::Timeout,
        other if other.kind() == Status::MEDIA => IoError::Medium,
        _ => IoError::Transport,
    }
}

/// Whether the same command may succeed if it is sent again: the device ended it without trying, and does not forbid it.
pub(super) fn may_be_repeated(status: Status) -> bool {
    let ended_untried = matches!(
        status.plain(),
        Status::ABORTED
            | Status::ABORTED_SQ_DELETION
            | Status::INTERRUPTED
            | Status::TRANSIENT_TRANSPORT
            | Status::NAMESPACE_NOT_READY
            | Status::POWER_LOSS
    );
    ended_untried && !status.do_not_retry()
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
        assert!(may_be_repeated(Status::INTERRUPTED));
        assert!(!may_be_repeated(Status::INTERRUPTED.with_do_not_retry()));
        assert!(!may_be_repeated(Status::UNRECOVERED_READ));
    }
}
