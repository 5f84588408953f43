//! How a command ended. [NVMe 4.2.3]

use core::fmt;

/// The status field, 15 bits: code 7:0, code type 10:8, retry delay 12:11, more 13,
/// do not retry 14. [NVMe 4.2.3]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

/// Declares statuses: name, code type, code, what it means in words.
macro_rules! statuses {
    ($($name:ident: $kind:literal, $code:literal, $words:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!(
                    "Type ", stringify!($kind), ", code ", stringify!($code), ": ", $words, ".",
                )]
                pub const $name: Status = Status($kind << 8 | $code);
            )*
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.plain() {
                    $(Self::$name => f.write_str($words)?,)*
                    _ => f.write_str("status")?,
                }
                write!(
                    f, " (type {}, code {:#04x}{})", self.kind(), self.code(),
                    if self.do_not_retry() { ", do not retry" } else { "" },
                )
            }
        }
    };
}

// Generic, command specific, media errors and path related: [NVMe 4.2.3.1 to 4.2.3.4] [NVMe-NVM
// 3.1]
statuses! {
    SUCCESS: 0, 0x00, "success";
    INVALID_OPCODE: 0, 0x01, "invalid opcode";
    INVALID_FIELD: 0, 0x02, "invalid field in command";
    ID_CONFLICT: 0, 0x03, "command id conflict";
    DATA_TRANSFER: 0, 0x04, "data transfer error";
    POWER_LOSS: 0, 0x05, "aborted: power loss notification";
    INTERNAL: 0, 0x06, "internal error";
    ABORTED: 0, 0x07, "aborted by request";
    ABORTED_SQ_DELETION: 0, 0x08, "aborted: submission queue deleted";
    INVALID_NAMESPACE: 0, 0x0b, "invalid namespace or format";
    SEQUENCE: 0, 0x0c, "command sequence error";
    SGL_SEGMENT: 0, 0x0d, "invalid SGL segment descriptor";
    SGL_LENGTH: 0, 0x0f, "data SGL length invalid";
    SGL_TYPE: 0, 0x11, "SGL descriptor type invalid";
    INVALID_PRP_OFFSET: 0, 0x13, "PRP offset invalid";
    SANITIZE_IN_PROGRESS: 0, 0x1d, "sanitize in progress";
    NAMESPACE_WRITE_PROTECTED: 0, 0x20, "namespace is write protected";
    INTERRUPTED: 0, 0x21, "command interrupted";
    TRANSIENT_TRANSPORT: 0, 0x22, "transient transport error";
    LBA_OUT_OF_RANGE: 0, 0x80, "LBA out of range";
    CAPACITY_EXCEEDED: 0, 0x81, "capacity exceeded";
    NAMESPACE_NOT_READY: 0, 0x82, "namespace not ready";
    RESERVATION_CONFLICT: 0, 0x83, "reservation conflict";
    INVALID_CQ: 1, 0x00, "completion queue invalid";
    INVALID_QUEUE_ID: 1, 0x01, "invalid queue identifier";
    INVALID_QUEUE_SIZE: 1, 0x02, "invalid queue size";
    ABORT_LIMIT: 1, 0x03, "abort command limit exceeded";
    EVENT_LIMIT: 1, 0x05, "asynchronous event request limit exceeded";
    INVALID_INTERRUPT_VECTOR: 1, 0x08, "invalid interrupt vector";
    INVALID_LOG_PAGE: 1, 0x09, "invalid log page";
    INVALID_FORMAT: 1, 0x0a, "invalid format";
    INVALID_QUEUE_DELETION: 1, 0x0c, "invalid queue deletion";
    FEATURE_NOT_CHANGEABLE: 1, 0x0e, "feature not changeable";
    CONFLICTING_ATTRIBUTES: 1, 0x80, "conflicting attributes";
    INVALID_PROTECTION_INFO: 1, 0x81, "invalid protection information";
    WRITE_TO_READ_ONLY: 1, 0x82, "attempted write to read only range";
    SIZE_LIMIT: 1, 0x83, "command size limit exceeded";
    WRITE_FAULT: 2, 0x80, "write fault";
    UNRECOVERED_READ: 2, 0x81, "unrecovered read error";
    GUARD_CHECK: 2, 0x82, "end-to-end guard check error";
    APPLICATION_TAG_CHECK: 2, 0x83, "end-to-end application tag check error";
    REFERENCE_TAG_CHECK: 2, 0x84, "end-to-end reference tag check error";
    COMPARE_FAILURE: 2, 0x85, "compare failure";
    ACCESS_DENIED: 2, 0x86, "access denied";
    DEALLOCATED: 2, 0x87, "deallocated or unwritten logical block";
}

impl Status {
    /// Status code type 2: media and data integrity.
    pub const MEDIA: u8 = 2;
    /// Status code type 3: path related.
    pub const PATH: u8 = 3;
    /// Status code type 7: vendor specific.
    pub const VENDOR: u8 = 7;

    const DO_NOT_RETRY: u16 = 1 << 14;
    const RETRY_DELAY: u16 = 3 << 11;

    /// Whether the command succeeded.
    #[inline]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Status code type.
    pub const fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Type and code alone, as the constants of this type are.
    pub const fn plain(self) -> Self {
        Self(self.0 & 0x7ff)
    }

    /// The error log has more about it.
    pub const fn more(self) -> bool {
        self.0 >> 13 & 1 == 1
    }

    /// The same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & Self::DO_NOT_RETRY != 0
    }

    /// CRD: after which of the controller's three delays the command may be repeated, 1 to 3; 0 is
    /// at once. [NVMe 4.2.3]
    pub const fn retry_delay(self) -> u8 {
        ((self.0 & Self::RETRY_DELAY) >> 11) as u8
    }

    /// The same, with delay `delay` of the three.
    pub const fn with_retry_delay(self, delay: u8) -> Self {
        Self(self.0 & !Self::RETRY_DELAY | (delay as u16) << 11 & Self::RETRY_DELAY)
    }

    /// The same, with do-not-retry set.
    pub const fn with_do_not_retry(self) -> Self {
        Self(self.0 | Self::DO_NOT_RETRY)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_status_says_its_words_and_its_numbers() {
        assert_eq!(
            Status::LBA_OUT_OF_RANGE.with_do_not_retry().to_string(),
            "LBA out of range (type 0, code 0x80, do not retry)"
        );
        assert_eq!(Status(7 << 8 | 0xc1).to_string(), "status (type 7, code 0xc1)");
    }

    #[test]
    fn do_not_retry_does_not_change_which_status_it_is() {
        assert_eq!(Status::WRITE_FAULT.with_do_not_retry().plain(), Status::WRITE_FAULT);
    }

    #[test]
    fn a_retry_delay_does_not_touch_its_neighbours() {
        let status = Status::INTERNAL.with_do_not_retry().with_retry_delay(3);
        assert_eq!(
            (status.retry_delay(), status.plain(), status.more()),
            (3, Status::INTERNAL, false)
        );
        assert_eq!(status.with_retry_delay(0), Status::INTERNAL.with_do_not_retry());
    }

    #[test]
    fn flags_alone_are_no_failure() {
        assert!(Status(1 << 13 | 1 << 14).is_success());
    }
}
