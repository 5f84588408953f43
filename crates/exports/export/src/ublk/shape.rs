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
}

impl Recovery {
    pub(super) fn flags(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Reissue => uapi::F_USER_RECOVERY | uapi::F_USER_RECOVERY_REISSUE,
        }
    }

    pub(super) fn of(flags: u64) -> Self {
        if flags & uapi::F_USER_RECOVERY == 0 { Self::None } else { Self::Reissue }
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
        for recovery in [Recovery::None, Recovery::Reissue] {
            assert_eq!(Recovery::of(recovery.flags() | uapi::F_UPDATE_SIZE), recovery);
        }
    }
}
