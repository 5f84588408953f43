//! What the end of a command means to the one who asked. [ACS-3 6.2, 6.3]

use ring3_class::block::{IoError, Operation};
use ring3_spec::ata::{ErrorBits, Status};

/// The class's word for a command that failed with `status` and `error`.
fn io_error(status: Status, error: ErrorBits) -> IoError {
    if status.fault() != 0 {
        IoError::Transport
    } else if error.uncorrectable() != 0 || error.no_address_mark() != 0 {
        IoError::Medium
    } else if error.id_not_found() != 0 {
        IoError::OutOfRange
    } else {
        IoError::Transport
    }
}

/// What becomes of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its data were damaged on the cable, and the same command may succeed.
    Damaged,
    /// The drive could not do it this time (DF), and may the next time.
    Faulted,
    /// It is over.
    Final(IoError),
}

/// What becomes of a command of `operation` that failed with `status` and `error`.
///
/// A flush that failed is never repeated: what it could not write is dropped by then, and the next
/// one would say that all is well. [ACS-3 7.10.4: the next flush goes on behind the sector in
/// error]
pub(super) fn verdict(operation: Operation, status: Status, error: ErrorBits) -> Verdict {
    match operation {
        Operation::Flush => Verdict::Final(io_error(status, error)),
        _ if status.fault() != 0 => Verdict::Faulted,
        _ if error.interface_crc() != 0 && error.uncorrectable() == 0 => Verdict::Damaged,
        _ => Verdict::Final(io_error(status, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERROR: Status = Status(0x41);

    #[test]
    fn data_that_cannot_be_read_are_a_medium_error() {
        assert_eq!(io_error(ERROR, ErrorBits(0).with_uncorrectable(1)), IoError::Medium);
    }

    #[test]
    fn an_address_that_is_not_there_is_out_of_range() {
        assert_eq!(io_error(ERROR, ErrorBits(0).with_id_not_found(1)), IoError::OutOfRange);
    }

    #[test]
    fn a_drive_that_gives_no_reason_is_a_transport_error() {
        assert_eq!(io_error(ERROR, ErrorBits(0).with_aborted(1)), IoError::Transport);
    }

    #[test]
    fn what_was_damaged_on_the_cable_may_be_repeated() {
        let damaged = ErrorBits(0).with_interface_crc(1).with_aborted(1);
        assert_eq!(verdict(Operation::Read, ERROR, damaged), Verdict::Damaged);
        let unreadable = ErrorBits(0).with_uncorrectable(1);
        assert_eq!(verdict(Operation::Read, ERROR, unreadable), Verdict::Final(IoError::Medium));
    }

    #[test]
    fn what_a_broken_drive_could_not_do_may_be_repeated_but_for_a_flush() {
        let fault = ERROR.with_fault(1);
        assert_eq!(verdict(Operation::Write, fault, ErrorBits(0)), Verdict::Faulted);
        assert_eq!(
            verdict(Operation::Flush, fault, ErrorBits(0)),
            Verdict::Final(IoError::Transport)
        );
    }
}
