//! Features: settings of a controller that are read and written by admin commands. [NVMe 5.1.25]

use crate::fields;

/// Volatile write cache. [NVMe 5.1.25.1.4]
pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
/// Number of queues. [NVMe 5.1.25.2.1]
pub const NUMBER_OF_QUEUES: u8 = 0x07;
/// Interrupt coalescing. [NVMe 5.1.25.2.2]
pub const INTERRUPT_COALESCING: u8 = 0x08;
/// Asynchronous event configuration. [NVMe 5.1.25.1.5]
pub const ASYNC_EVENTS: u8 = 0x0b;
/// Autonomous power state transitions: 256 bytes that the host gives, 0 switches them off. [NVMe
/// 5.1.25.1.6]
pub const POWER_STATE_TRANSITIONS: u8 = 0x0c;
/// Host behaviour support: 512 bytes that the host gives. [NVMe 5.1.25.1.14]
pub const HOST_BEHAVIOR: u8 = 0x16;

/// The first byte of [`HOST_BEHAVIOR`], ACRE: 1 lets statuses ask for a delay before a command is
/// repeated (CRD). [NVMe 5.1.25.1.14]
pub const HOST_BEHAVIOR_RETRY_DELAY: u8 = 1;
/// Value of [`VOLATILE_WRITE_CACHE`]: the cache is enabled. [NVMe 5.1.25.1.4]
pub const CACHE_ENABLED: u32 = 1 << 0;

/// Numbers of I/O queues, as asked for and as granted (a controller may grant more or fewer). [NVMe
/// 5.1.25.2.1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// I/O submission queues, 1 to 65535.
    pub submission: u16,
    /// I/O completion queues, 1 to 65535.
    pub completion: u16,
}

impl QueueCounts {
    /// As command dword 11 of set features, and as dword 0 of the completion: both counts less one.
    pub const fn to_dword(self) -> u32 {
        self.submission.saturating_sub(1) as u32 | (self.completion.saturating_sub(1) as u32) << 16
    }

    /// What such a dword says.
    pub const fn from_dword(dword: u32) -> Self {
        Self {
            submission: (dword as u16).saturating_add(1),
            completion: ((dword >> 16) as u16).saturating_add(1),
        }
    }
}

fields! {
    /// Value of [`ASYNC_EVENTS`]: which events are reported. [NVMe 5.1.25.1.5]
    pub struct AsyncEvents(u32) {
        /// Critical warnings of the SMART log, one bit each as in that log.
        critical_warnings, with_critical_warnings: 7..=0;
        /// Namespace attribute notices.
        namespace_changed, with_namespace_changed: 8..=8;
        /// Firmware activation notices.
        firmware_activation, with_firmware_activation: 9..=9;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_read_back_as_they_were_built() {
        let counts = QueueCounts { submission: 1, completion: 0xffff };
        assert_eq!(counts.to_dword(), 0xfffe_0000);
        assert_eq!(QueueCounts::from_dword(counts.to_dword()), counts);
    }
}
