//! Disks: one that ring3 drives for this program, and one that this program drives for others.
//!
//! # A disk that is opened
//! [`opened`] is the disk, and [`requests`] a queue of it: the program submits, rings and reaps in
//! batches. What a request needs was made when the queue was opened: it costs no allocation, no
//! lock and no mapping.
//!
//! # A disk that this program drives
//! Served on a socket, it is `remote:PATH` in other programs. [`queue`] is the disk as the server
//! of `ring3_broker` has it, with its one queue; [`shared`] and its [`lane`]s what lies between
//! that and the program, which calls what is here. The server has no thread: it takes turns in the
//! program's own loop, so that nobody is woken between a request and the driver. A disk that ring3d
//! takes is used by threads of the library's, and [`lent`] is what these and the program wake each
//! other by.
//!
//! Bytes of such a disk are copied once between a client's memory and the program's, which its
//! device reaches; of a disk that is lent, the kernel copies them there. A request costs no lock,
//! no allocation and, while clients and program are busy, no system call.
//!
//! # Trust
//! The program is trusted, as whoever loads a library is; other programs are not, and the server
//! does not trust them.

mod lane;
mod lent;
pub mod opened;
mod queue;
pub mod requests;
mod shared;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ring3_broker::server::{Access, DiskServer, EmbeddedServer, Options};
use ring3_class::Error;
use ring3_class::block::{Discard, Info, Operation};
use ring3_class::dma::SegmentRules;
use ring3_driver::registry::Offer;

use crate::device::Device;
use crate::dma::Buffer;
use crate::error::{done, fail, failed, hand_out, take_back};
use crate::leased::Leased;
use crate::log;
use lent::Lent;
use opened::OpenedDisk;
use queue::HostedDisk;
use shared::{DiskShared, Wanted};

/// A disk: one that this program drives (ring3_disk_new), or one that ring3 drives for it
/// (ring3_disk_open).
pub struct Disk(Side);

/// Who drives it.
enum Side {
    /// This program.
    Program(Box<DrivenDisk>),
    /// A driver of ring3's, or the server of `remote:PATH`.
    Ring3(OpenedDisk),
}

/// A disk that this program drives.
struct DrivenDisk {
    disk: Arc<HostedDisk>,
    shared: Arc<DiskShared>,
    server: Option<EmbeddedServer>,
    stopping: bool,
}

/// What a program says of its disk, or ring3 of one that was opened (ring3_disk_describe), whose
/// texts are valid until it is closed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiskInfo {
    /// Its maker's name for it; text.
    pub model: *const c_char,
    /// Its serial number; text.
    pub serial: *const c_char,
    /// Its firmware's revision; text.
    pub firmware: *const c_char,
    /// Blocks.
    pub blocks: u64,
    /// Bytes of each: a power of two, 512 at least.
    pub block_size: u32,
    /// Most bytes of one request, a block at least.
    pub max_transfer: u32,
    /// Bytes of a write that costs no read within the disk.
    pub optimal_io: u32,
    /// Most blocks of one request that writes zeroes; 0 if it cannot.
    pub max_write_zeroes_blocks: u32,
    /// Most blocks of one discard; 0 if it cannot.
    pub max_discard_blocks: u32,
    /// Bytes of the smallest piece that a discard frees.
    pub discard_granularity: u32,
    /// Most requests at once, 1 at least. Of an opened disk, 0: a queue says how many it holds.
    pub depth: u16,
    /// Writes may sit in a cache that loses them with the power: flushes mean something.
    pub volatile_cache: bool,
    /// A single write can be durable at its end.
    pub fua: bool,
    /// It refuses to be changed.
    pub read_only: bool,
    /// Its medium turns.
    pub rotates: bool,
}

/// Blocks to memory.
pub const RING3_READ: u32 = 0;
/// Memory to blocks.
pub const RING3_WRITE: u32 = 1;
/// All writes that have ended are to be durable. No blocks.
pub const RING3_FLUSH: u32 = 2;
/// The blocks are to read as zeroes.
pub const RING3_WRITE_ZEROES: u32 = 3;
/// The blocks' bytes are not needed any more.
pub const RING3_DISCARD: u32 = 4;

/// A request: of a client's, checked to be on the disk, not longer than it takes, and of what it
/// can do (ring3_disk_take); or of this program's to an opened disk, of any length
/// (ring3_disk_queue_submit).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DiskRequest {
    /// For ring3_disk_end. This program's own: what it likes, below 1 << 63.
    pub tag: u64,
    /// The first block.
    pub lba: u64,
    /// Where its bytes lie, in one piece; NULL if there are none. Of a driven disk, in the memory
    /// that it was made with; of an opened one, anywhere in a buffer of its own.
    pub data: *mut c_void,
    /// Blocks.
    pub blocks: u32,
    /// What to do: RING3_READ, ...
    pub operation: u32,
    /// A write is durable at its end.
    pub fua: bool,
}

/// Makes a disk that nobody uses yet. The `len` bytes at `offset` of `memory`, at multiples of
/// 4096, are where its requests' bytes lie: depth + 1 times max_transfer bytes at least. They are
/// the disk's until it is closed; `memory` stays the caller's, and outlives the disk.
///
/// # Safety
/// `info` and its texts are valid, and `disk` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_new(
    info: &DiskInfo,
    memory: &Buffer,
    offset: usize,
    len: usize,
    disk: *mut *mut Disk,
) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let text =
        |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned();
    let discard =
        Discard { max_blocks: info.max_discard_blocks, granularity: info.discard_granularity };
    let said = Info {
        model: text(info.model),
        serial: text(info.serial),
        firmware: text(info.firmware),
        block_size: info.block_size,
        blocks: info.blocks,
        max_transfer: info.max_transfer,
        segments: SegmentRules { align: 1, boundary: 1, max: u32::MAX },
        optimal_io: info.optimal_io.max(info.block_size),
        boundary: 0,
        volatile_cache: info.volatile_cache,
        fua: info.fua,
        max_write_zeroes_blocks: info.max_write_zeroes_blocks,
        discard: (discard.max_blocks > 0).then_some(discard),
        read_only: info.read_only,
        rotates: info.rotates,
    };
    // SAFETY: the caller's.
    unsafe {
        hand_out(DrivenDisk::new(said, info.depth, memory, (offset, len)).map(Disk::of), disk)
    }
}

/// Serves the disk to other programs at the socket `access`: a path, and behind it terms,
/// `PATH,clients=1,access=ro`, as `ring3 serve disk` takes them. From now on the program calls
/// ring3_disk_turn.
///
/// # Safety
/// `access` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_serve(disk: &mut Disk, access: *const c_char) -> c_int {
    let Some(disk) = disk.driven_mut() else { return not_driven() };
    // SAFETY: the caller's.
    match unsafe { CStr::from_ptr(access) }.to_string_lossy().parse::<Access>() {
        Ok(access) => done(disk.serve(access)),
        Err(text) => fail(libc::EINVAL, text),
    }
}

/// Gives the disk to ring3d, which has leased `device` to this program, the disk's, and makes a
/// block device of it. From now on the program calls ring3_disk_turn; when ring3d wants the driver
/// to end, that says -ESHUTDOWN: the program closes the disk, then the device, and ends. A program
/// that has lost the disk calls ring3_disk_stop.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_lend(disk: &Disk, device: &Device) -> c_int {
    let Some(disk) = disk.driven() else { return not_driven() };
    let Some(leased) = &device.leased else {
        return fail(
            libc::EINVAL,
            "the device is this program's own: ring3_disk_serve shares its disk".into(),
        );
    };
    done(disk.hand_to_supervisor(leased))
}

/// Ends the handle. A disk that this program drives is taken from whoever uses it; requests that
/// have not ended are lost to their clients. A device that was opened is given up when its queues
/// and buffers are closed, too.
///
/// # Safety
/// `disk` was made or opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_close(disk: *mut Disk) {
    // SAFETY: the caller's.
    unsafe { take_back(disk) };
}

/// What is readable, for poll and epoll, when ring3_disk_turn has something to do: a sleep on it
/// may also end with EINTR then. -ENOTCONN if the disk is not served.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_fd(disk: &Disk) -> c_int {
    let Some(disk) = disk.driven() else { return not_driven() };
    match (&disk.server, disk.shared.lent.get()) {
        (Some(server), _) => server.descriptor().as_raw_fd(),
        (None, Some(lent)) => lent.fd(),
        (None, None) => fail(libc::ENOTCONN, "the disk is not served".into()),
    }
}

/// Hears the disk's users, and tells them what has ended. Then ring3_disk_take until there is
/// nothing. 1 if there is more to do at once, 0 if the program may sleep until the descriptor is
/// readable or it has ended a request; -ESHUTDOWN after ring3_disk_stop, once the last has ended;
/// or what has ended the server, which ring3_error() says.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_turn(disk: &mut Disk) -> c_int {
    let Some(disk) = disk.driven_mut() else { return not_driven() };
    if let Some(lent) = disk.shared.lent.get() {
        return disk.lent_turn(lent);
    }
    let Some(server) = &mut disk.server else {
        return fail(libc::ENOTCONN, "the disk is not served".into());
    };
    match server.run_once() {
        Ok(_) if disk.stopping && server.left() == 0 => {
            fail(libc::ESHUTDOWN, "the disk was stopped".into())
        }
        Ok(more) => more.into(),
        Err(error) => failed(&error),
    }
}

/// The next request: 1, or 0 if there is none.
///
/// # Safety
/// `request` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_take(disk: &Disk, request: *mut DiskRequest) -> c_int {
    let Some(disk) = disk.driven() else { return not_driven() };
    let Some(Wanted { tag, operation, fua, blocks, lba, address }) =
        disk.shared.wanted.pop().and_then(Wanted::decode)
    else {
        return 0;
    };
    let operation = match operation {
        Operation::Read => RING3_READ,
        Operation::Write => RING3_WRITE,
        Operation::Flush => RING3_FLUSH,
        Operation::WriteZeroes => RING3_WRITE_ZEROES,
        Operation::Discard => RING3_DISCARD,
    };
    // SAFETY: the caller's.
    unsafe {
        request.write(DiskRequest {
            tag,
            lba,
            data: address as usize as *mut c_void,
            blocks,
            operation,
            fua,
        })
    };
    1
}

/// The request with `tag` has ended: well if `error` is 0, or with that errno. Its bytes are the
/// disk's again. Its user hears of it at the next ring3_disk_turn.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_end(disk: &Disk, tag: u64, error: c_int) {
    let Some(disk) = disk.driven() else { return };
    if !disk.shared.ended.push([tag, error.unsigned_abs().into()]) {
        tracing::error!("the disk's program ends {tag:#x}, and more requests than it has");
    }
}

/// Takes no further requests; those that were taken end first: see ring3_disk_turn.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_stop(disk: &mut Disk) {
    let Some(disk) = disk.driven_mut() else { return };
    disk.stopping = true;
    if let Some(server) = &mut disk.server {
        server.stop();
    }
    // ring3d has not asked for it: the program has no disk any more.
    disk.shared.lent.get().filter(|lent| !lent.is_stopped()).into_iter().for_each(Lent::lose);
}

/// The error for a function of driven disks.
fn not_driven() -> c_int {
    fail(
        libc::EINVAL,
        "the disk was opened by ring3_disk_open: this program does not drive it".into(),
    )
}

impl Disk {
    fn of(driven: DrivenDisk) -> Self {
        Self(Side::Program(Box::new(driven)))
    }

    fn driven(&self) -> Option<&DrivenDisk> {
        match &self.0 {
            Side::Program(driven) => Some(driven),
            Side::Ring3(_) => None,
        }
    }

    fn driven_mut(&mut self) -> Option<&mut DrivenDisk> {
        match &mut self.0 {
            Side::Program(driven) => Some(driven),
            Side::Ring3(_) => None,
        }
    }
}

impl DrivenDisk {
    fn new(
        info: Info,
        depth: u16,
        memory: &Buffer,
        (offset, len): (usize, usize),
    ) -> Result<Self, Error> {
        let disk = Arc::new(HostedDisk::new(info, depth, memory.part(offset, len)?)?);
        Ok(Self { shared: disk.shared().clone(), disk, server: None, stopping: false })
    }

    fn is_taken(&self) -> bool {
        self.server.is_some() || self.shared.lent.get().is_some()
    }

    fn hand_to_supervisor(&self, leased: &Leased) -> Result<(), Error> {
        let taken = || Error::Busy("the disk is served already".into());
        if self.is_taken() {
            return Err(taken());
        }
        // Before anybody opens its queue.
        self.shared.lent.set(Lent::new()?).map_err(|_| taken())?;
        let shared = self.shared.clone();
        let stop = move || shared.lent.get().into_iter().for_each(Lent::stop);
        leased.hand_to_supervisor(Offer::Disk(self.disk.clone()), Box::new(stop))
    }

    /// A turn with ring3d's threads, which take and give by themselves.
    fn lent_turn(&self, lent: &Lent) -> c_int {
        if self.shared.ended.len() > 0 {
            lent.wake_waiters();
        }
        lent.heard();
        if lent.is_stopped() || self.stopping {
            return fail(libc::ESHUTDOWN, "the disk was stopped".into());
        }
        0
    }

    fn serve(&mut self, access: Access) -> Result<(), Error> {
        if self.is_taken() {
            return Err(Error::Busy("the disk is served already".into()));
        }
        self.server =
            Some(DiskServer::bind(self.disk.clone(), vec![access], Options::default())?.nested()?);
        Ok(())
    }
}
