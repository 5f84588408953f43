//! An NVMe disk of the kernel's past its block layer: commands for `/dev/ngXnY` through io_uring.
//!
//! References:
//! - [NVMe-NVM] NVM Command Set Specification 1.0, 3.2.4 (Read), 3.2.6 (Write)
//! - [uapi] linux/nvme_ioctl.h: `struct nvme_uring_cmd`, `NVME_URING_CMD_IO`, `NVME_IOCTL_ID`

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use io_uring::{cqueue, opcode, squeue, types};

use super::buffers::Buffers;
use super::file::{FileOptions, open};
use super::ring::Ring;
use super::{Done, Target};
use crate::Error;

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)` [uapi]
const COMMAND_IO: u32 = 0xc048_4e80;
/// `_IO('N', 0x40)` [uapi]
const NAMESPACE_ID: libc::c_ulong = 0x4e40;

/// [NVMe-NVM 3.2.4, 3.2.6]
const READ: u8 = 0x02;
const WRITE: u8 = 0x01;

/// `struct nvme_uring_cmd` [uapi]
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Command {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    rsvd2: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

/// The namespace's character device, with a ring of large entries and a registered buffer for each
/// slot.
pub struct Passthrough {
    ring: Ring<squeue::Entry128, cqueue::Entry32>,
    /// Open as long as commands may be made: exclusively if they write.
    _block: File,
    capacity: u64,
    namespace: u32,
    block_shift: u32,
}

/// The character device that takes commands for the namespace whose block device is `block`:
/// /dev/ng0n1 for /dev/nvme0n1.
pub fn generic_device(block: &Path) -> PathBuf {
    let name = block.file_name().unwrap_or_default().to_string_lossy();
    block.with_file_name(name.replacen("nvme", "ng", 1))
}

impl Passthrough {
    /// Opens the namespace whose block device is `block` for `depth` requests of up to `bytes`
    /// bytes. One that is mounted is refused if it is to be written: what is open here is past the
    /// kernel's own check.
    pub fn open(block: &Path, depth: u16, bytes: u32, write: bool) -> Result<Self, Error> {
        Self::waiting(block, (depth, bytes), write, false)
    }

    /// The same, with the kernel polling the device for completions: its driver needs queues for
    /// that (nvme.poll_queues).
    pub fn polled(block: &Path, depth: u16, bytes: u32, write: bool) -> Result<Self, Error> {
        Self::waiting(block, (depth, bytes), write, true)
    }

    fn waiting(
        block: &Path,
        (depth, bytes): (u16, u32),
        write: bool,
        polls: bool,
    ) -> Result<Self, Error> {
        let path = generic_device(block);
        let name = path.display().to_string();
        let (guard, capacity) = open(block, FileOptions { write, direct: true })?;
        let opened = OpenOptions::new().read(true).write(write).open(&path);
        let file = opened.map_err(|error| {
            Error::os(format!("opening {name}, which takes NVMe commands (Linux 5.19)"), error)
        })?;
        // SAFETY: the request takes no argument and returns the namespace's number.
        let namespace = unsafe { libc::ioctl(file.as_raw_fd(), NAMESPACE_ID) };
        let namespace = u32::try_from(namespace)
            .map_err(|_| Error::os(format!("number of {name}"), std::io::Error::last_os_error()))?;
        let block_shift = block_size(block)?.trailing_zeros();
        Ok(Self {
            ring: Ring::over(
                file,
                name,
                (depth, Buffers::new(usize::from(depth), bytes as usize)?),
                polls,
            )?,
            _block: guard,
            capacity,
            namespace,
            block_shift,
        })
    }
}

fn block_size(block: &Path) -> Result<u32, Error> {
    let name = block.file_name().unwrap_or_default();
    let file = Path::new("/sys/class/block").join(name).join("queue/logical_block_size");
    let text = fs::read_to_string(&file)
        .map_err(|error| Error::os(format!("reading {}", file.display()), error))?;
    let size = text.trim().parse().ok().filter(|size: &u32| size.is_power_of_two());
    size.ok_or_else(|| {
        Error::format(file.display().to_string(), format!("{text:?} is no block size"))
    })
}

impl Command {
    /// A read or a write of `len` bytes at `offset`, in blocks of 2^`shift`.
    fn transfer(namespace: u32, shift: u32, write: bool, offset: u64, addr: u64, len: u32) -> Self {
        let place = offset >> shift;
        Self {
            opcode: if write { WRITE } else { READ },
            nsid: namespace,
            addr,
            data_len: len,
            cdw10: place as u32,
            cdw11: (place >> 32) as u32,
            // The number of blocks less one.
            cdw12: (len >> shift).saturating_sub(1),
            ..Self::default()
        }
    }

    /// As it stands in a large entry.
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        // SAFETY: the structure is plain integers without padding, shorter than the array, and both
        // are valid for its length.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const *self).cast(),
                bytes.as_mut_ptr(),
                size_of::<Self>(),
            )
        };
        bytes
    }
}

impl Target for Passthrough {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.ring.depth()
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        let addr = self.ring.memory.slot(usize::from(slot)) as u64;
        let command = Command::transfer(self.namespace, self.block_shift, write, offset, addr, len);
        let entry = opcode::UringCmd80::new(types::Fixed(0), COMMAND_IO)
            .cmd(command.bytes())
            .buf_index(Some(slot))
            .build();
        self.ring.push(&entry.user_data(u64::from(slot)))
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        self.ring.proceed()
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        // 0, the device's status, or an error number below 0.
        Ok(self.ring.finished().map(|(slot, result)| Done { slot, ok: result == 0 }))
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.ring.memory.fill(slot, bytes)
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        self.ring.memory.copy_out(slot, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_told_in_blocks_and_their_number_less_one() {
        let command = Command::transfer(1, 9, false, 5 << 40, 0x1000, 4096);
        assert_eq!((command.opcode, command.nsid, command.data_len), (2, 1, 4096));
        assert_eq!((command.cdw10, command.cdw11, command.cdw12), (0x8000_0000, 2, 7));
    }

    #[test]
    fn fields_stand_where_the_kernel_reads_them() {
        let bytes = Command::transfer(7, 12, true, 4096, 0x1122_3344, 8192).bytes();
        assert_eq!((bytes[0], bytes[4]), (1, 7));
        assert_eq!(bytes[24..28], [0x44, 0x33, 0x22, 0x11]);
        assert_eq!((bytes[36..38].to_vec(), bytes[40], bytes[48]), (vec![0, 0x20], 1, 1));
    }

    #[test]
    fn the_character_device_has_the_numbers_of_the_block_device() {
        assert_eq!(generic_device(Path::new("/dev/nvme3n12")), Path::new("/dev/ng3n12"));
    }

    #[test]
    fn a_disk_that_is_not_there_is_an_error_that_names_it() {
        let error =
            Passthrough::open(Path::new("/dev/no-such-nvme0n1"), 1, 4096, false).err().unwrap();
        assert!(error.to_string().contains("/dev/no-such-nvme0n1"), "{error}");
    }
}
