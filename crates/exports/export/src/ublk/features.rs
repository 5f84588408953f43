//! What this kernel's ublk can do, decided by its answer and never by its version.

use super::uapi;

/// How to speak to the kernel's ublk, and what it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Command numbers are encoded as ioctls; kernels before 6.4 want them bare.
    pub encoded: bool,
    /// The kernel can refuse to stop a device that is open.
    pub safe_stop: bool,
    /// A disk that has users can change its size.
    pub resize: bool,
    /// START_USER_RECOVERY refuses until the kernel has cancelled all commands of a dead server.
    /// Taken from a feature of 6.16: 6.15 waits too, and does not say so.
    pub waits_for_cancellation: bool,
    /// Clients' memory can be registered, so that the kernel copies nothing of requests that lie in
    /// it.
    pub shared_memory: bool,
    /// Commands can be for many requests at once.
    pub batches: bool,
}

/// How the kernel is told of requests and their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commands {
    /// One command for each, with bare numbers.
    Bare,
    /// One command for each.
    Encoded,
    /// Many with one command.
    Batched,
}

impl Commands {
    /// One for each request, by [`Features::encoded`].
    pub fn single(encoded: bool) -> Self {
        if encoded { Self::Encoded } else { Self::Bare }
    }

    /// For many requests if `batches`, for one each otherwise.
    pub fn of(batches: bool, encoded: bool) -> Self {
        if batches { Self::Batched } else { Self::single(encoded) }
    }
}

impl Features {
    /// Those of a kernel that knows no GET_FEATURES, as far as `encoded` says.
    pub(super) fn none(encoded: bool) -> Self {
        Self {
            encoded,
            safe_stop: false,
            resize: false,
            waits_for_cancellation: false,
            shared_memory: false,
            batches: false,
        }
    }
}

impl Features {
    /// Reads the answer to an encoded `GET_FEATURES`: the feature bits, or the errno (positive).
    ///
    /// A kernel that does not know the command refuses it with EOPNOTSUPP or EINVAL, depending on
    /// whether it knows the encoding. It is spoken to in bare numbers, which all kernels up to 6.11
    /// understand and which later ones, having GET_FEATURES, are never asked. Any other errno is a
    /// real failure and is given back.
    pub fn decide(answer: Result<u64, i32>) -> Result<Self, i32> {
        match answer {
            Ok(bits) => {
                let has = |flag| bits & flag != 0;
                Ok(Self {
                    encoded: true,
                    safe_stop: has(uapi::F_SAFE_STOP_DEV),
                    resize: has(uapi::F_UPDATE_SIZE),
                    waits_for_cancellation: has(uapi::F_UPDATE_SIZE),
                    shared_memory: has(uapi::F_SHMEM_ZC),
                    batches: has(uapi::F_BATCH_IO),
                })
            }
            Err(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY) => Ok(Self::none(false)),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_6_1_is_spoken_to_in_bare_numbers() {
        let features = Features::decide(Err(libc::EOPNOTSUPP)).unwrap();
        assert!(!features.encoded && !features.safe_stop);
    }

    #[test]
    fn linux_6_12_has_encoding_and_nothing_else() {
        let features = Features::decide(Ok(0x1fe)).unwrap();
        assert_eq!(features, Features::none(true));
    }

    #[test]
    fn linux_7_2_has_safe_stop_and_resize_and_shared_memory_and_batches() {
        let features = Features::decide(Ok(0xf_ffff)).unwrap();
        assert!(
            features.safe_stop && features.resize && features.shared_memory && features.batches
        );
    }

    #[test]
    fn a_refused_permission_is_no_old_kernel() {
        assert_eq!(Features::decide(Err(libc::EPERM)), Err(libc::EPERM));
    }
}
