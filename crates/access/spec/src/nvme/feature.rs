//! Features: settings of a controller that are read and written by admin commands. [NVMe 5.1.25]

use crate::{fields, layout};

/// Power management: the power state in bits 4:0. [NVMe 5.1.25.1.2]
pub const POWER_MANAGEMENT: u8 = 0x02;
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
/// Host memory buffer: memory of the host that the controller has for itself. [NVMe 5.1.25.2.4]
pub const HOST_MEMORY: u8 = 0x0d;
/// Host behaviour support: 512 bytes that the host gives. [NVMe 5.1.25.1.14]
pub const HOST_BEHAVIOR: u8 = 0x16;

/// The first byte of [`HOST_BEHAVIOR`], ACRE: 1 lets statuses ask for a delay before a command is
/// repeated (CRD). [NVMe 5.1.25.1.14]
pub const HOST_BEHAVIOR_RETRY_DELAY: u8 = 1;
/// Value of [`VOLATILE_WRITE_CACHE`]: the cache is enabled. [NVMe 5.1.25.1.4]
pub const CACHE_ENABLED: u32 = 1 << 0;

/// Value of [`POWER_STATE_TRANSITIONS`], APSTE: the table counts. [NVMe 5.1.25.1.6]
pub const TRANSITIONS_ENABLED: u32 = 1 << 0;
/// Value of [`HOST_MEMORY`], EHM: the controller may use the memory. [NVMe 5.1.25.2.4]
pub const HOST_MEMORY_ENABLED: u32 = 1 << 0;
/// Value of [`HOST_MEMORY`], MR: the memory is that which the controller had before it was reset,
/// with the same descriptors, and nobody has changed it. [NVMe 5.1.25.2.4]
pub const HOST_MEMORY_RETURNED: u32 = 1 << 1;

/// Power states that a controller can have, and so entries of the table of transitions.
pub const POWER_STATES: usize = 32;

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

fields! {
    /// An entry of the table of autonomous power state transitions: where the controller goes from
    /// the state that the entry is of; 0 is nowhere. [NVMe 5.1.25.1.6]
    pub struct Transition(u64) {
        /// ITPS: the state that it goes to, one that does not take commands.
        target, with_target: 7..=3;
        /// ITPT: how long it is idle before that, in milliseconds.
        idle_ms, with_idle_ms: 31..=8;
    }
}

/// The 256 bytes of a table of transitions, state 0 first.
pub fn transition_table(entries: &[Transition; POWER_STATES]) -> [u8; 8 * POWER_STATES] {
    let mut bytes = [0; 8 * POWER_STATES];
    for (place, entry) in bytes.chunks_exact_mut(8).zip(entries) {
        place.copy_from_slice(&entry.0.to_le_bytes());
    }
    bytes
}

/// What such bytes say.
pub fn transitions(bytes: &[u8; 8 * POWER_STATES]) -> [Transition; POWER_STATES] {
    core::array::from_fn(|state| {
        Transition(u64::from_le_bytes(core::array::from_fn(|at| bytes[8 * state + at])))
    })
}

layout! {
    /// An entry of the list of pieces of a host memory buffer. [NVMe 5.1.25.2.4]
    pub struct HostMemoryDescriptor[16] {
        /// BADD: its address, a multiple of the memory page (CC.MPS).
        address, set_address: u64 @ 0;
        /// BSIZE: memory pages.
        pages, set_pages: u32 @ 8;
    }
}

layout! {
    /// What get features returns of [`HOST_MEMORY`] besides its value. [NVMe 5.1.25.2.4]
    pub struct HostMemoryAttributes[4096] {
        /// HSIZE: memory pages.
        pages, set_pages: u32 @ 0;
        /// HMDLAL and HMDLAU: the address of the list.
        list, set_list: u64 @ 4;
        /// HMDLEC: entries of the list.
        entries, set_entries: u32 @ 12;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_transitions_is_read_back_as_it_was_built() {
        let mut entries = [Transition(0); POWER_STATES];
        entries[1] = Transition(0).with_target(4).with_idle_ms(2000);
        let bytes = transition_table(&entries);
        assert_eq!(bytes[8..12], [4 << 3, 0xd0, 0x07, 0]);
        assert_eq!(transitions(&bytes), entries);
    }

    #[test]
    fn queue_counts_are_read_back_as_they_were_built() {
        let counts = QueueCounts { submission: 1, completion: 0xffff };
        assert_eq!(counts.to_dword(), 0xfffe_0000);
        assert_eq!(QueueCounts::from_dword(counts.to_dword()), counts);
    }
}
