//! The kernel's worker, and the calls that set it up. [linux/vhost.h, linux/vhost_types.h]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use ring3_class::dma::Arena;
use ring3_spec::virtio::{VERSION_1, net::MRG_RXBUF};

use super::super::Error;
use super::ring::Ring;

/// Where the kernel makes them.
const PATH: &str = "/dev/vhost-net";
/// What is agreed upon: whose header is 12 bytes long, and a packet takes as many buffers as it
/// needs.
const FEATURES: u64 = VERSION_1 | MRG_RXBUF;
/// Regions of memory that the kernel knows at most, unless `max_mem_regions` of its module says
/// otherwise.
const REGIONS: usize = 64;

/// A call's number, whose argument is read (or written) in so many bytes. [asm-generic/ioctl.h]
const fn operation(direction: u64, number: u64, bytes: usize) -> libc::Ioctl {
    (direction << 30 | (bytes as u64) << 16 | 0xaf << 8 | number) as libc::Ioctl
}

const NONE: u64 = 0;
const WRITE: u64 = 1;
const READ: u64 = 2;
const GET_FEATURES: libc::Ioctl = operation(READ, 0x00, 8);
const SET_FEATURES: libc::Ioctl = operation(WRITE, 0x00, 8);
const SET_OWNER: libc::Ioctl = operation(NONE, 0x01, 0);
/// The head alone counts: its regions come behind it.
const SET_MEM_TABLE: libc::Ioctl = operation(WRITE, 0x03, 8);
const SET_VRING_NUM: libc::Ioctl = operation(WRITE, 0x10, 8);
const SET_VRING_ADDR: libc::Ioctl = operation(WRITE, 0x11, 40);
const SET_VRING_BASE: libc::Ioctl = operation(WRITE, 0x12, 8);
const SET_VRING_KICK: libc::Ioctl = operation(WRITE, 0x20, 8);
const SET_VRING_CALL: libc::Ioctl = operation(WRITE, 0x21, 8);
const NET_SET_BACKEND: libc::Ioctl = operation(WRITE, 0x30, 8);

/// `struct vhost_memory_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    device: u64,
    bytes: u64,
    process: u64,
    flags: u64,
}

/// `struct vhost_memory`.
#[repr(C)]
struct Memory {
    count: u32,
    padding: u32,
    regions: [Region; REGIONS],
}

/// `struct vhost_vring_addr`.
#[repr(C)]
struct Places {
    ring: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

const _: () = assert!(
    size_of::<Region>() == 32
        && size_of::<Memory>() == 8 + 32 * REGIONS
        && size_of::<Places>() == 40
);

/// A worker of the kernel's. It ends with its descriptor.
pub struct Device {
    file: File,
    /// It is this process's, for good.
    owned: bool,
}

impl Device {
    /// Fails with what mends it if this machine has none, or none for this process.
    pub fn open() -> Result<Self, Error> {
        let file =
            File::options().read(true).write(true).open(PATH).map_err(|error| {
                match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoVhost,
                    Some(libc::EACCES | libc::EPERM) => Error::VhostClosed,
                    _ => Error::os(PATH, error),
                }
            })?;
        let (device, mut offered) = (Self { file, owned: false }, 0u64);
        // SAFETY: the call writes eight bytes, which are there.
        let asked = unsafe { libc::ioctl(device.fd(), GET_FEATURES, &raw mut offered) };
        if asked == 0 && offered & FEATURES == FEATURES { Ok(device) } else { Err(Error::NoVhost) }
    }

    /// Tells it whose memory it uses, the calling process's, and where the regions of `arena` are
    /// in it: for a descriptor's address, the device's counts. One that was this process's before
    /// serves no ring.
    pub fn own(&mut self, arena: &Arena) -> Result<(), Error> {
        if !self.owned {
            // SAFETY: the call takes no argument.
            done(unsafe { libc::ioctl(self.fd(), SET_OWNER) }, "VHOST_SET_OWNER")?;
            self.owned = true;
        }
        self.set(SET_FEATURES, &FEATURES, "VHOST_SET_FEATURES")?;
        let mut memory = Memory { count: 0, padding: 0, regions: [Region::default(); REGIONS] };
        for placed in arena.regions() {
            let Some(region) = memory.regions.get_mut(memory.count as usize) else {
                return Err(Error::os(
                    "VHOST_SET_MEM_TABLE",
                    io::Error::other("the card's memory lies in too many regions"),
                ));
            };
            let process = placed.region.as_ptr() as u64;
            *region = Region {
                device: placed.iova,
                bytes: placed.region.len() as u64,
                process,
                flags: 0,
            };
            memory.count += 1;
        }
        self.set(SET_MEM_TABLE, &memory, "VHOST_SET_MEM_TABLE")
    }

    /// Gives it `ring`, which is its number `number`; it signals `call`.
    pub fn set_ring(&self, number: u32, ring: &Ring, call: BorrowedFd<'_>) -> Result<(), Error> {
        let [descriptors, available, used] = ring.places();
        self.set(SET_VRING_NUM, &[number, ring.size().into()], "VHOST_SET_VRING_NUM")?;
        self.set(SET_VRING_BASE, &[number, 0], "VHOST_SET_VRING_BASE")?;
        let places = Places { ring: number, flags: 0, descriptors, used, available, log: 0 };
        self.set(SET_VRING_ADDR, &places, "VHOST_SET_VRING_ADDR")?;
        self.set_file(SET_VRING_KICK, number, ring.kick().as_raw_fd(), "VHOST_SET_VRING_KICK")?;
        self.set_file(SET_VRING_CALL, number, call.as_raw_fd(), "VHOST_SET_VRING_CALL")
    }

    /// Starts ring `number` on a TAP's descriptor, or ends it: nothing of its memory is used
    /// afterwards.
    pub fn set_backend(&self, number: u32, tap: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        self.set_file(
            NET_SET_BACKEND,
            number,
            tap.map_or(-1, |tap| tap.as_raw_fd()),
            "VHOST_NET_SET_BACKEND",
        )
    }

    /// `struct vhost_vring_file`.
    fn set_file(
        &self,
        operation: libc::Ioctl,
        number: u32,
        file: RawFd,
        what: &str,
    ) -> Result<(), Error> {
        self.set(operation, &[number, file as u32], what)
    }

    /// A call that reads `value`.
    fn set<T>(&self, operation: libc::Ioctl, value: &T, what: &str) -> Result<(), Error> {
        // SAFETY: each operation that this is called with reads a value of the type that it is
        // called with.
        done(unsafe { libc::ioctl(self.fd(), operation, std::ptr::from_ref(value)) }, what)
    }

    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

fn done(result: libc::c_int, what: &str) -> Result<(), Error> {
    if result < 0 {
        Err(Error::os(format!("{PATH}: {what}"), io::Error::last_os_error()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_of_the_kernels_header() {
        assert_eq!(GET_FEATURES as u32, 0x8008_af00);
        assert_eq!(SET_OWNER as u32, 0xaf01);
        assert_eq!(SET_VRING_ADDR as u32, 0x4028_af11);
        assert_eq!(NET_SET_BACKEND as u32, 0x4008_af30);
    }
}
