//! What the end of a command means to the one who asked. [ACS-3 6.2, 6.3]

use ring3_class::block::IoError;
use ring3_spec::ata::{ErrorBits, Status};

/// The class's word for a command that failed with `status` and `error`.
pub(super) fn io_error(status: Status, error: ErrorBits) -> IoError {
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

/// Whether the transfer failed and not the drive's work, so that the same command may succeed.
pub(super) fn may_be_repeated(status: Status, error: ErrorBits) -> bool {
    status.fault() == 0 && (error.interface_crc() != 0 && error.uncorrectable() == 0)
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
        assert!(may_be_repeated(ERROR, ErrorBits(0).with_interface_crc(1).with_aborted(1)));
        assert!(!may_be_repeated(ERROR, ErrorBits(0).with_uncorrectable(1)));
    }
}
