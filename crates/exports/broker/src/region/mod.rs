//! Memory of a client's own, in which nobody copies the bytes of its requests, whichever way they
//! take to a disk.
//!
//! # Shape
//! [`SharedMemory`] is a client's: a file without a name, made and sealed by it, whose descriptor
//! it sends over a socket in an [`ClientRequest::Offer`](crate::protocol::ClientRequest::Offer).
//! The server checks it ([`check`]) and maps it for the disk's device. The same bytes can be
//! lent to several:
//!
//! - to who exports a disk as a block device (`ring3 run --share SOCKET`), by
//!   [`SharedMemory::register`]: it registers them with the kernel, too. From then on the client's
//!   O_DIRECT requests on the block device, and on files of file systems on it, move no byte twice
//!   if they lie there in one piece. One region for each connection, taken back when the client
//!   asks for that or when the [`Loan`] ends;
//! - to a disk of the class, by
//!   [`Disk::register_region`](ring3_class::block::Disk::register_region): a [remote
//!   one](crate::client::RemoteDisk) as long as the client is connected, one that this process
//!   drives as long as it is open.
//!
//! A process that exports disks handles its clients by [`Clients`], and its [`Register`] registers
//! their memory.
//!
//! Requests to a block device name addresses, those to a disk of the class
//! [pieces](SharedMemory::piece).
//!
//! # Trust
//! The server believes nothing: neither size nor seals, and reads or writes none of the bytes
//! itself. But it can, and so can the device, at any time: whoever hands memory over trusts that
//! process with it. The seals keep the client from taking away what is mapped. A hole that it
//! punches has other pages: its requests miss, and the device keeps the old ones.

mod client;
mod clients;

use std::os::fd::{AsFd, OwnedFd};

pub use client::{Loan, SharedMemory};
pub use clients::{Clients, Register};
use ring3_class::Error;
use ring3_class::dma::{HUGE_PAGE, Region, admit};
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
    memfd_create,
};

/// The largest region: the kernel's offsets have 32 bits.
pub const MOST: u64 = 1 << 32;

/// Without the first two, the client could take away what is mapped; without the third, it could
/// seal it against writes later, so that no other process could map it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A sealed file of `bytes` bytes at least, mapped: of huge pages if the system has that many free,
/// and of small ones if not.
fn make(bytes: usize) -> Result<(OwnedFd, Region), Error> {
    let huge = rounded(bytes, HUGE_PAGE)?;
    file(huge, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).or_else(|_| make_small(bytes))
}

/// The same of small pages.
fn make_small(bytes: usize) -> Result<(OwnedFd, Region), Error> {
    let len = rounded(bytes, rustix::param::page_size())?;
    admit(len)?;
    file(len, MemfdFlags::empty())
}

/// `bytes`, up to whole pages of `page` bytes.
fn rounded(bytes: usize, page: usize) -> Result<usize, Error> {
    let len = bytes.max(1).checked_next_multiple_of(page).filter(|&len| len as u64 <= MOST);
    len.ok_or_else(|| Error::Invalid(format!("{bytes} bytes to share: from 1 to {MOST}")))
}

fn file(len: usize, pages: MemfdFlags) -> Result<(OwnedFd, Region), Error> {
    let failed = |error| Error::os(format!("making {len} bytes of memory to share"), error);
    let fd = memfd_create("ring3-share", pages | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed)?;
    ftruncate(&fd, len as u64).map_err(failed)?;
    fcntl_add_seals(&fd, SEALS).map_err(failed)?;
    let copy = fd.try_clone().map_err(|error| Error::os("duplicating memory", error))?;
    // This fails where huge pages are missing.
    Ok((fd, Region::from_fd(copy)?))
}

/// Maps what a client says to be `bytes` bytes of sealed memory. Fails, with what it is to do,
/// unless it is.
pub fn check(fd: &OwnedFd, bytes: u64) -> Result<Region, Error> {
    let refused = |why: String| Err(Error::Invalid(why));
    // Before anything else: what has seals is memory, and no file system of a stranger's is asked
    // for anything.
    let sealed = fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    if !sealed.contains(SEALS) {
        return refused(
            "it is no memory file that is sealed against shrinking, growing and further seals: \
            memfd_create with MFD_ALLOW_SEALING, then F_ADD_SEALS with F_SEAL_SHRINK, F_SEAL_GROW \
            and F_SEAL_SEAL"
                .into(),
        );
    }
    let stat = fstat(fd).map_err(|error| Error::os("looking at the memory", error))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refused("it is no memory file".into());
    }
    if sealed.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return refused(
            "it is sealed against writes: reads of the disk could not arrive there".into(),
        );
    }
    let page = rustix::param::page_size() as u64;
    if bytes == 0 || bytes > MOST || !bytes.is_multiple_of(page) {
        return refused(format!("{bytes} bytes: whole pages, and {MOST} bytes at most"));
    }
    if stat.st_size as u64 != bytes {
        return refused(format!(
            "it has {} bytes, and {bytes} are offered: all of it must be",
            stat.st_size
        ));
    }
    let copy =
        fd.as_fd().try_clone_to_owned().map_err(|error| Error::os("duplicating memory", error))?;
    let region = Region::from_fd(copy)?;
    // Pages that the client has not touched would be taken here, when they are pinned. Huge ones
    // were set aside.
    if !region.is_huge() {
        admit(bytes as usize)?;
    }
    Ok(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn refusal(fd: &OwnedFd, bytes: u64) -> String {
        check(fd, bytes).unwrap_err().to_string()
    }

    #[test]
    fn memory_that_a_client_makes_is_what_the_server_wants() {
        let (fd, region) = make(3 * PAGE as usize).unwrap();
        assert_eq!(check(&fd, region.len() as u64).unwrap().len(), region.len());
    }

    #[test]
    fn memory_that_could_be_taken_away_is_refused_with_what_to_do() {
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::GROW,
            SealFlags::SHRINK | SealFlags::GROW,
        ] {
            assert!(refusal(&memfd(PAGE, seals), PAGE).contains("F_ADD_SEALS"), "{seals:?}");
        }
    }

    #[test]
    fn what_is_no_memory_file_is_refused() {
        let (reader, _writer) = std::io::pipe().unwrap();
        for fd in [
            reader.into(),
            std::fs::File::open("/dev/zero").unwrap().into(),
            std::fs::File::open("/proc/self/exe").unwrap().into(),
        ] {
            assert!(refusal(&fd, PAGE).contains("no memory file"), "{fd:?}");
        }
    }

    #[test]
    fn memory_that_cannot_be_written_is_refused() {
        assert!(refusal(&memfd(PAGE, SEALS | SealFlags::WRITE), PAGE).contains("writes"));
        assert!(refusal(&memfd(PAGE, SEALS | SealFlags::FUTURE_WRITE), PAGE).contains("writes"));
    }

    #[test]
    fn a_size_that_is_not_the_files_or_none_of_whole_pages_is_refused() {
        let fd = memfd(2 * PAGE, SEALS);
        for bytes in [PAGE, 3 * PAGE, u64::MAX - PAGE + 1] {
            assert!(check(&fd, bytes).is_err(), "{bytes}");
        }
        assert!(refusal(&memfd(100, SEALS), 100).contains("whole pages"));
        assert!(refusal(&memfd(0, SEALS), 0).contains("whole pages"));
    }

    #[test]
    fn more_than_the_kernel_can_name_is_refused_before_it_is_mapped() {
        let bytes = MOST + PAGE;
        assert!(refusal(&memfd(bytes, SEALS), bytes).contains("at most"));
        assert!(make(bytes as usize).is_err() && make(usize::MAX).is_err());
    }
}
