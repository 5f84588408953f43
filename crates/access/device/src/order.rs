//! The order between memory that a device reaches and its registers: the only place where it is
//! decided.
//!
//! Words in such memory are relaxed atomics, and registers are volatile words in mappings that the
//! kernel has made uncached. What orders them differs by machine:
//!
//! | | x86-64 | arm64 |
//! |---|---|---|
//! | [`hand_over`] | a release fence | `dmb osh` |
//! | [`take_back`] | an acquire fence | `dmb oshld` |
//! | [`exchange`] | a full fence | `dmb osh` |
//! | before each store to a register | nothing | `dmb osh` |
//! | between registers of one device | nothing | nothing |
//!
//! On x86-64 stores reach memory in order, and so do those to uncached memory; loads are not
//! reordered, of registers neither. Registers of one device are in order for one thread: uncached
//! there, and Device-nGnRE on arm64.
//!
//! A fence of the language orders what processors see of each other, the inner shareable domain of
//! arm64. A device is in the outer one, where it takes part in the order at all: a PCI Express
//! function whose transfers are coherent, as VFIO demands of them. [Linux,
//! Documentation/memory-barriers.txt, `arch/arm64/include/asm/barrier.h`]
//!
//! On arm64 each read of a register is followed, and each store preceded, by such a barrier, as the
//! kernel's `readl` and `writel` have it. So a driver that names no order between a register that
//! says that the device has stopped (CSTS.RDY, PxCMD.CR) and another use of its memory is right
//! there, too.
//!
//! A mapping for which the processor combines stores would need barriers between registers. There
//! is none.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the order of memory and device registers is done for x86-64 and arm64; elsewhere a driver \
     would hand a device what is not written yet. Another one needs a column in the table above"
);

#[cfg(any(loom, target_arch = "x86_64"))]
use std::sync::atomic::Ordering;

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(all(not(loom), target_arch = "x86_64"))]
use std::sync::atomic::fence;

/// All accesses to memory so far come before the store, to a register or to memory, that the caller
/// makes next and that hands the memory over.
#[inline]
pub fn hand_over() {
    #[cfg(any(loom, target_arch = "x86_64"))]
    fence(Ordering::Release);
    #[cfg(all(not(loom), target_arch = "aarch64"))]
    barrier();
}

/// What the device has said, in the register or the word of memory that was read last, comes before
/// all loads of memory that it gave back.
#[inline]
pub fn take_back() {
    #[cfg(any(loom, target_arch = "x86_64"))]
    fence(Ordering::Acquire);
    #[cfg(all(not(loom), target_arch = "aarch64"))]
    // SAFETY: the instruction orders accesses and does nothing else.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// All accesses so far come before all that follow: for who stores a word that the device reads,
/// and then loads one that it writes, where the device does the same the other way round.
#[inline]
pub fn exchange() {
    #[cfg(any(loom, target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "aarch64"))]
    barrier();
}

/// What comes before a store to a register that names no memory.
#[inline]
pub(crate) fn before_register() {
    #[cfg(all(not(loom), target_arch = "aarch64"))]
    barrier();
}

#[cfg(all(not(loom), target_arch = "aarch64"))]
#[inline]
fn barrier() {
    // SAFETY: the instruction orders accesses and does nothing else.
    unsafe { std::arch::asm!("dmb osh", options(nostack, preserves_flags)) };
}
