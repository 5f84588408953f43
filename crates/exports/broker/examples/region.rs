//! One piece of memory for every way to a disk: what is written the one way from there is read the
//! other way into it.
//!
//!     region /run/ring3/share /dev/ublkb0 /run/ring3/disk
//!
//! of `ring3 run nvme --device URI --share /run/ring3/share --socket /run/ring3/disk`. It
//! overwrites the disk's first MiB.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use ring3_broker::client::RemoteDisk;
use ring3_broker::region::SharedMemory;
use ring3_class::Deadline;
use ring3_class::block::{BlockQueue, Disk, ForeignAccess, Queue, Request, open};

/// Of each request.
const BYTES: usize = 128 << 10;
/// Requests, one behind the other on the disk.
const COUNT: usize = 8;
/// Where what is read lies, behind what is written.
const READ: usize = BYTES * COUNT;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [share, device, socket] = &words[..] else {
        return Err("usage: region SHARE DEVICE SOCKET".into());
    };
    let memory = SharedMemory::new(2 * READ)?;
    // The same bytes, lent twice.
    let loan = memory.register(Path::new(share))?;
    let remote = RemoteDisk::connect(Path::new(socket), 4 << 20)?;
    remote.register_region(memory.region())?;
    println!("lent to {} and {}", loan.disks().join(", "), remote.name());

    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(device)?;
    let mut queue = open(&remote, 8, ForeignAccess::default())?;
    for round in 0..2 {
        fill(&memory, round)?;
        for index in 0..COUNT {
            // The application's choice, request by request.
            let from_device = (index + round).is_multiple_of(2);
            let (from, to) = (index * BYTES, READ + index * BYTES);
            if from_device {
                write(&file, &memory, from, from)?;
                execute(&mut queue, &memory, true, (to, from))?;
            } else {
                execute(&mut queue, &memory, false, (from, from))?;
                read(&file, &memory, to, from)?;
            }
        }
        println!(
            "round {round}: {}",
            if is_same(&memory)? { "the same bytes" } else { "OTHER BYTES" }
        );
    }
    let stats = queue.stream_stats();
    println!("of the remote disk's: {} not copied, {} copied", stats.mapped, stats.copied);
    loan.revoke()?;
    println!("revoked");
    Ok(())
}

/// A request of the class at byte `disk` of the disk, whose data lie at byte `at` of the memory.
fn execute(
    queue: &mut BlockQueue,
    memory: &SharedMemory,
    reads: bool,
    (at, disk): (usize, usize),
) -> Result<(), Box<dyn Error>> {
    let block = queue.info().block_size as usize;
    let (lba, blocks, data) =
        ((disk / block) as u64, (BYTES / block) as u32, memory.piece(at, BYTES));
    let request = if reads {
        Request::read(1, lba, blocks, data)
    } else {
        Request::write(1, lba, blocks, data)
    };
    Ok(queue.execute(request, Deadline::after(Duration::from_secs(30)))?.result?)
}

/// A plain write of the block device. The pages go to the device as they are.
fn write(file: &File, memory: &SharedMemory, at: usize, disk: usize) -> Result<(), Box<dyn Error>> {
    // SAFETY: the bytes lie within the memory, which lives, and the kernel only reads them.
    let done = unsafe {
        libc::pwrite(file.as_raw_fd(), memory.as_ptr().add(at).cast(), BYTES, disk as i64)
    };
    whole(done)
}

/// A plain read of it.
fn read(file: &File, memory: &SharedMemory, at: usize, disk: usize) -> Result<(), Box<dyn Error>> {
    // SAFETY: the bytes lie within the memory, which lives and of which nobody has a reference.
    let done = unsafe {
        libc::pread(file.as_raw_fd(), memory.as_ptr().add(at).cast(), BYTES, disk as i64)
    };
    whole(done)
}

fn whole(done: isize) -> Result<(), Box<dyn Error>> {
    match done {
        -1 => Err(std::io::Error::last_os_error().into()),
        done if done as usize == BYTES => Ok(()),
        done => Err(format!("{done} bytes of {BYTES}").into()),
    }
}

fn fill(memory: &SharedMemory, round: usize) -> Result<(), Box<dyn Error>> {
    let bytes: Vec<u8> = (0..READ).map(|at| (at / 512 * 7 + at + round * 91) as u8).collect();
    memory.region().write(0, &bytes)?;
    Ok(memory.region().write(READ, &vec![0; READ])?)
}

fn is_same(memory: &SharedMemory) -> Result<bool, Box<dyn Error>> {
    let mut halves = [vec![0; READ], vec![0; READ]];
    for (half, at) in halves.iter_mut().zip([0, READ]) {
        memory.region().read(at, half)?;
    }
    Ok(halves[0] == halves[1])
}
