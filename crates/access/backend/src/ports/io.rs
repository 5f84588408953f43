//! Port instructions, and the permission for them.
//!
//! The kernel gives the permission to a thread, which hands it to those that it starts. A thread
//! that was there before has none, and an instruction without permission is a signal that ends the
//! process; so each thread remembers what it has asked for, and asks before its first access.

use std::cell::RefCell;
use std::ops::Range;

thread_local! {
    /// Ranges that this thread may use.
    static ALLOWED: RefCell<Vec<Range<u32>>> = const { RefCell::new(Vec::new()) };
}

/// Lets the calling thread use `ports`; false if the kernel refuses (it wants the capability
/// CAP_SYS_RAWIO, and no lockdown).
#[inline]
pub(super) fn allow(ports: &Range<u32>) -> bool {
    ALLOWED.with_borrow_mut(|allowed| allowed.contains(ports) || ask(ports, allowed))
}

#[cfg(target_arch = "x86_64")]
#[cold]
fn ask(ports: &Range<u32>, allowed: &mut Vec<Range<u32>>) -> bool {
    // SAFETY: gives this thread a permission; it takes nothing away. What the ports do is their
    // device's business, not memory's.
    let given =
        unsafe { libc::ioperm(ports.start.into(), (ports.end - ports.start).into(), 1) } == 0;
    if given {
        allowed.push(ports.clone());
    }
    given
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(_: &Range<u32>, _: &mut Vec<Range<u32>>) -> bool {
    false
}

/// An integer that one access can carry.
pub(crate) trait Word: Copy {
    /// Every bit set.
    const ALL_ONES: Self;
    /// From its bytes in the order of the bus, the lowest first.
    fn from_le(bytes: &[u8]) -> Self;
    /// Its bytes in the order of the bus, filled up to 8 with zeros.
    fn to_le(self) -> [u8; 8];
}
macro_rules! word {
    ($($t:ty)*) => {$(
        impl Word for $t {
            const ALL_ONES: Self = <$t>::MAX;
            fn from_le(bytes: &[u8]) -> Self {
                bytes
                    .iter()
                    .rev()
                    .fold(0, |value, &byte| (u64::from(value) << 8 | u64::from(byte)) as $t)
            }
            fn to_le(self) -> [u8; 8] {
                u64::from(self).to_le_bytes()
            }
        }
    )*};
}
word!(u8 u16 u32);

/// A word that an instruction moves.
pub(crate) trait Port: Word {
    /// Reads `port`, which with the bytes behind it lies in `ports`; `None` if this thread may not.
    fn input(ports: &Range<u32>, port: u16) -> Option<Self>;
    /// Writes `port`, as above; false if this thread may not.
    fn output(self, ports: &Range<u32>, port: u16) -> bool;
    /// Reads as many words from `port` as fit into `bytes`; false if this thread may not.
    fn input_string(ports: &Range<u32>, port: u16, bytes: &mut [u8]) -> bool;
    /// Writes the words in `bytes` to `port`; false if this thread may not.
    fn output_string(ports: &Range<u32>, port: u16, bytes: &[u8]) -> bool;
}

macro_rules! port {
    ($($t:ty: $read:literal $write:literal $class:tt $reads:literal $writes:literal),*) => {$(
        impl Port for $t {
            #[inline]
            fn input(ports: &Range<u32>, port: u16) -> Option<Self> {
                if !allow(ports) {
                    return None;
                }
                let value: Self;
                // SAFETY: the thread has the permission for the range. `in` changes no memory and
                // no flags; that other accesses stay on their side of it is wanted, so it is not
                // `nomem`.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    std::arch::asm!(
                        $read, out($class) value, in("dx") port, options(nostack, preserves_flags),
                    );
                }
                #[cfg(not(target_arch = "x86_64"))]
                {
                    let _ = port;
                    value = Self::ALL_ONES;
                }
                Some(value)
            }

            #[inline]
            fn output(self, ports: &Range<u32>, port: u16) -> bool {
                if !allow(ports) {
                    return false;
                }
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    std::arch::asm!(
                        $write, in("dx") port, in($class) self, options(nostack, preserves_flags),
                    );
                }
                let _ = port;
                true
            }

            #[inline]
            fn input_string(ports: &Range<u32>, port: u16, bytes: &mut [u8]) -> bool {
                if !allow(ports) {
                    return false;
                }
                let (words, to) = (bytes.len() / size_of::<Self>(), bytes.as_mut_ptr());
                // SAFETY: as above, and it writes `words` words from `to` on, which lie in `bytes`.
                // The direction flag is clear.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    std::arch::asm!(
                        $reads, in("dx") port, inout("rcx") words => _, inout("rdi") to => _,
                        options(nostack, preserves_flags),
                    );
                }
                let _ = (port, words, to);
                true
            }

            #[inline]
            fn output_string(ports: &Range<u32>, port: u16, bytes: &[u8]) -> bool {
                if !allow(ports) {
                    return false;
                }
                let (words, from) = (bytes.len() / size_of::<Self>(), bytes.as_ptr());
                // SAFETY: as above, and it reads `words` words from `from` on, which lie in
                // `bytes`. The direction flag is clear.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    std::arch::asm!(
                        $writes, in("dx") port, inout("rcx") words => _, inout("rsi") from => _,
                        options(nostack, preserves_flags),
                    );
                }
                let _ = (port, words, from);
                true
            }
        }
    )*};
}
port!(
    u8: "in al, dx" "out dx, al" "al" "rep insb" "rep outsb",
    u16: "in ax, dx" "out dx, ax" "ax" "rep insw" "rep outsw",
    u32: "in eax, dx" "out dx, eax" "eax" "rep insd" "rep outsd"
);
