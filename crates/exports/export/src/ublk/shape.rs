//! What a ublk device is to be, and what becomes of it.

use super::uapi;

/// What becomes of a device whose server dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// It goes, with errors for what is in flight.
    #[default]
    None,
    /// It stays, and the next server is given what the dead one had. Requests wait meanwhile.
    Reissue,
    /// It stays. What the dead server had fails; what comes waits for the next one.
    Wait,
    /// It stays. What the dead server had fails, and what comes until there is a next one. Kernels
    /// from 6.13 on.
    Fail,
}

impl Recovery {
    pub(super) fn flags(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Reissue => uapi::F_USER_RECOVERY | uapi::F_USER_RECOVERY_REISSUE,
            Self::Wait => uapi::F_USER_RECOVERY,
            Self::Fail => uapi::F_USER_RECOVERY | uapi::F_USER_RECOVERY_FAIL_IO,
        }
    }

    pub(super) fn of(flags: u64) -> Self {
        let has = |flag| flags & flag != 0;
        match has(uapi::F_USER_RECOVERY) {
            false => Self::None,
            true if has(uapi::F_USER_RECOVERY_REISSUE) => Self::Reissue,
            true if has(uapi::F_USER_RECOVERY_FAIL_IO) => Self::Fail,
            true => Self::Wait,
        }
    }
}

/// What a device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queues; the kernel may give fewer.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// Bytes of each tag's buffer.
    pub buffer: u32,
    /// What becomes of it when its server dies.
    pub recovery: Recovery,
    /// Whether clients' memory can be registered with it; see [`Regions`](super::Regions).
    pub shared_memory: bool,
    /// Whether its commands are for many requests at once.
    pub batches: bool,
}

impl Shape {
    /// The kernel's flags for how requests come.
    pub(super) fn of_requests(self) -> u64 {
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        flag(self.shared_memory, uapi::F_SHMEM_ZC) | flag(self.batches, uapi::F_BATCH_IO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_device_is_read_from_the_flags_that_ask_for_it() {
        for recovery in [Recovery::None, Recovery::Reissue, Recovery::Wait, Recovery::Fail] {
            assert_eq!(Recovery::of(recovery.flags() | uapi::F_QUIESCE), recovery);
        }
    }
}
