//! Memory that a client has made and lends: requests to a remote disk and to one of this process
//! lie in the same bytes, and nobody copies them.

mod served;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ring3_broker::client::RemoteDisk;
use ring3_broker::memory;
use ring3_broker::protocol::{Answer, ClientRequest, VERSION};
use ring3_broker::region::SharedMemory;
use ring3_broker::server::Options;
use ring3_broker::wire::{Submission, place};
use ring3_class::block::{Data, Disk, ForeignAccess, Info, IoError, Queue, Request, execute, open};
use ring3_class::dma::{Arena, Dma, Foreign, Mode, Piece, Placed, StaticIommu};
use ring3_class::{Deadline, Error};
use ring3_conformance::block as conformance;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use served::{Gated, Raw, SOON, Served, ram, read, read_of, round_trip};

const BYTES: usize = 1 << 20;
const BLOCK: usize = 512;

fn filled(byte: u8) -> SharedMemory {
    let memory = SharedMemory::new(BYTES).unwrap();
    memory.region().write(0, &[byte; BYTES]).unwrap();
    memory
}

fn holds(memory: &SharedMemory, offset: usize, len: usize, byte: u8) -> bool {
    let mut bytes = vec![0; len];
    memory.region().read(offset, &mut bytes).unwrap();
    bytes.iter().all(|&found| found == byte)
}

/// Writes `from` to the disk's begin and reads it into `to`, both of `blocks` blocks; transfers
/// that were not copied, and that were.
fn there_and_back(disk: &dyn Disk, from: Piece, to: Piece) -> (u64, u64) {
    let (mut queue, blocks) =
        (open(disk, 4, ForeignAccess::default()).unwrap(), (from.len / BLOCK) as u32);
    for request in [Request::write(1, 0, blocks, from), Request::read(2, 0, blocks, to)] {
        assert_eq!(queue.execute(request, Deadline::after(SOON)).unwrap().result, Ok(()));
    }
    let stats = queue.stream_stats();
    (stats.mapped, stats.copied)
}

/// A disk whose users find their buffers in lent memory, which begins at `iova`.
struct Within {
    disk: Arc<dyn Disk>,
    dma: Dma,
}

impl Within {
    fn new(disk: Arc<dyn Disk>, memory: &SharedMemory) -> Self {
        let iova = disk.dma().arena().address(memory.region()).unwrap();
        let arena = Arena::new(memory.region().clone(), iova);
        Self {
            disk,
            dma: Dma::new(
                arena,
                Arc::new(StaticIommu::identity(iova..=iova + memory.len() as u64)),
            ),
        }
    }
}

impl Disk for Within {
    fn name(&self) -> String {
        self.disk.name()
    }
    fn info(&self) -> &Info {
        self.disk.info()
    }
    fn dma(&self) -> &Dma {
        &self.dma
    }
    fn max_queues(&self) -> u16 {
        self.disk.max_queues()
    }
    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        self.disk.open_queue(depth)
    }
}

fn conforms(disk: Arc<dyn Disk>, memory: &SharedMemory) {
    let options = conformance::Options { requests: 300, depth: 16, patience: SOON };
    let report = conformance::run(&Within::new(disk, memory), &options);
    assert!(report.passed(), "{report}");
}

#[test]
fn a_remote_disk_conforms_with_all_data_in_memory_that_its_client_registers() {
    let (served, memory) = (Served::ram(&[""]), SharedMemory::new(8 << 20).unwrap());
    let disk = served.client(0);
    disk.register_region(memory.region()).unwrap();
    conforms(Arc::new(disk), &memory);
}

#[test]
fn a_disk_of_this_process_conforms_with_all_data_in_memory_that_it_registers() {
    let (disk, memory) = (ram(), SharedMemory::new(8 << 20).unwrap());
    disk.register_region(memory.region()).unwrap();
    conforms(Arc::new(disk), &memory);
}

#[test]
fn requests_of_the_same_bytes_go_to_a_remote_disk_and_to_a_local_one_without_a_copy() {
    let (served, local, memory) = (Served::ram(&[""]), ram(), filled(0x5a));
    let remote = served.client(0);
    remote.register_region(memory.region()).unwrap();
    local.register_region(memory.region()).unwrap();
    let (from, to) = (memory.piece(0, 8 * BLOCK), memory.piece(64 << 10, 8 * BLOCK));
    for disk in [&remote as &dyn Disk, &local] {
        memory.region().write(64 << 10, &[0; 8 * BLOCK]).unwrap();
        assert_eq!(there_and_back(disk, from.clone(), to.clone()), (2, 0), "{}", disk.name());
        assert!(holds(&memory, 64 << 10, 8 * BLOCK, 0x5a), "{}", disk.name());
    }
}

#[test]
fn memory_of_another_is_copied_beside_registered_memory() {
    let (served, lent, kept) = (Served::ram(&[""]), filled(0x33), filled(0x44));
    let remote = served.client(0);
    remote.register_region(lent.region()).unwrap();
    assert_eq!(there_and_back(&remote, kept.piece(0, 8 * BLOCK), lent.piece(0, 8 * BLOCK)), (1, 1));
    assert!(holds(&lent, 0, 8 * BLOCK, 0x44) && holds(&lent, 8 * BLOCK, BLOCK, 0x33));
}

#[test]
fn a_request_that_is_to_be_copied_is_copied_from_registered_memory_as_well() {
    let (served, memory) = (Served::ram(&[""]), filled(0x21));
    let remote = served.client(0);
    remote.register_region(memory.region()).unwrap();
    let mut queue =
        open(&remote, 4, ForeignAccess { mode: Mode::Copy, ..ForeignAccess::default() }).unwrap();
    let end = queue
        .execute(Request::write(1, 0, 8, memory.piece(0, 8 * BLOCK)), Deadline::after(SOON))
        .unwrap();
    assert_eq!((end.result, queue.stream_stats().copied), (Ok(()), 1));
}

#[test]
fn several_regions_are_told_apart_and_a_region_that_is_registered_again_is_the_same() {
    let served = Served::ram(&[""]);
    let (remote, regions) = (served.client(0), [filled(1), filled(2), filled(3)]);
    for memory in regions.iter().chain(&regions) {
        remote.register_region(memory.region()).unwrap();
    }
    assert_eq!(remote.dma().arena().regions().count(), 4);
    let mut queue = open(&remote, 4, ForeignAccess::default()).unwrap();
    for (lba, memory) in (0..).zip(&regions) {
        let end = queue
            .execute(
                Request::write(lba, lba, 1, memory.piece(BYTES - BLOCK, BLOCK)),
                Deadline::after(SOON),
            )
            .unwrap();
        assert_eq!(end.result, Ok(()));
    }
    assert_eq!([0, 1, 2].map(|lba| read(&remote, lba)[0]), [1, 2, 3]);
}

#[test]
fn a_queue_that_was_open_before_takes_memory_that_is_registered_later() {
    let (served, memory) = (Served::ram(&[""]), filled(0x66));
    let remote = served.client(0);
    let mut queue = open(&remote, 4, ForeignAccess::default()).unwrap();
    remote.register_region(memory.region()).unwrap();
    let end = queue
        .execute(Request::write(1, 0, 1, memory.piece(0, BLOCK)), Deadline::after(SOON))
        .unwrap();
    assert_eq!((end.result, queue.stream_stats().mapped), (Ok(()), 1));
}

#[test]
fn a_server_that_copies_takes_no_memory_and_requests_that_lie_there_are_copied() {
    let served =
        Served::start(Arc::new(ram()), &[""], Options { copy: true, ..Options::default() });
    let (remote, memory) = (served.client(0), filled(0x77));
    let error = remote.register_region(memory.region()).unwrap_err();
    assert!(matches!(&error, Error::Busy(why) if why.contains("this server copies")), "{error}");
    assert_eq!(there_and_back(&remote, memory.piece(0, BLOCK), memory.piece(BLOCK, BLOCK)), (0, 2));
}

#[test]
fn memory_that_no_other_process_can_have_is_not_registered_with_a_remote_disk() {
    let (served, private) = (Served::ram(&[""]), Foreign::new(4096).unwrap());
    let error = served.client(0).register_region(private.region()).unwrap_err().to_string();
    assert!(error.contains("no file from its start"), "{error}");
}

#[test]
fn more_memory_than_a_client_may_have_is_refused_and_the_rest_of_it_may_be_registered() {
    let served = Served::ram(&[",memory=2M"]);
    let remote = RemoteDisk::connect(&served.path(0), BYTES).unwrap();
    let error = remote
        .register_region(SharedMemory::new(2 * BYTES).unwrap().region())
        .unwrap_err()
        .to_string();
    assert!(error.contains("memory="), "{error}");
    remote.register_region(filled(1).region()).unwrap();
    assert!(remote.register_region(filled(2).region()).is_err());
}

#[test]
fn memory_that_is_lost_with_its_server_is_not_given_to_a_request_again() {
    let disk = Arc::new(Gated::new());
    let mut served = Served::start(disk.clone(), &[""], Options::default());
    let (remote, memory) = (served.client(0), filled(1));
    remote.register_region(memory.region()).unwrap();
    let mut queue = remote.open_queue(4).unwrap();
    let arena = remote.dma().arena();
    let span = arena.span(arena.address(memory.region()).unwrap(), BLOCK).unwrap();
    disk.set(false);
    queue.submit(Request::read(1, 0, 1, Data::from(arena.list(&[span]).unwrap()))).unwrap();
    queue.ring();
    disk.wait_for(1);
    // The server waits for the disk, which has the request.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            disk.set(true);
        });
        served.stop().unwrap();
    });
    let end = loop {
        if let Some(end) = queue.reap_one().unwrap() {
            break end;
        }
        queue.wait(Deadline::after(SOON)).unwrap();
    };
    assert!(
        end.result.is_ok() || matches!((end.result, end.data), (Err(IoError::Gone), Data::None))
    );
}

/// Offers a raw client makes.
fn offer(raw: &Raw, bytes: u64, fds: &[BorrowedFd<'_>]) {
    raw.channel.send(&ClientRequest::Offer { version: VERSION, bytes }, fds).unwrap();
}

fn answer(raw: &Raw) -> Answer {
    raw.channel.receive().unwrap().unwrap().0
}

#[test]
fn memory_that_could_be_taken_away_or_sealed_against_writes_later_is_refused_and_the_client_stays()
{
    let served = Served::ram(&["", ""]);
    let raw = Raw::new(&served.path(0));
    let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&open, 8192).unwrap();
    let sealed = memory::make(8192).unwrap();
    let read_only =
        memfd_create("read only", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&read_only, 8192).unwrap();
    fcntl_add_seals(
        &read_only,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE,
    )
    .unwrap();
    let later = memfd_create("later", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&later, 8192).unwrap();
    fcntl_add_seals(&later, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    for (bytes, fd) in [
        (8192, open.as_fd()),
        (8192, read_only.as_fd()),
        (8192, later.as_fd()),
        (4096, sealed.as_fd()),
        (16384, sealed.as_fd()),
        (u64::MAX, sealed.as_fd()),
        (0, sealed.as_fd()),
    ] {
        offer(&raw, bytes, &[fd]);
        assert!(matches!(answer(&raw), Answer::Refused { .. }), "{bytes} of {fd:?}");
    }
    offer(&raw, 8192, &[sealed.as_fd()]);
    assert!(matches!(answer(&raw), Answer::Shared { .. }));
    round_trip(&served.client(1), 0, 1);
}

#[test]
fn an_offer_at_the_wrong_time_or_with_the_wrong_descriptors_is_its_clients_end() {
    let (served, sealed) = (Served::ram(&["", ""]), memory::make(8192).unwrap());
    let fd = sealed.as_fd();
    for (fds, why) in [(&[][..], "without a descriptor"), (&[fd, fd], "descriptors")] {
        let raw = Raw::new(&served.path(0));
        offer(&raw, 8192, fds);
        assert!(raw.ended().contains(why));
    }
    let (pipe, _writer) = std::io::pipe().unwrap();
    let raw = Raw::new(&served.path(0));
    offer(&raw, 8192, &[pipe.as_fd()]);
    assert!(raw.ended().contains("no memory"));
    let early = Raw::silent(&served.path(0));
    offer(&early, 8192, &[fd]);
    assert!(early.ended().contains("before it says hello"));
    let raw = Raw::new(&served.path(0));
    raw.channel.send(&ClientRequest::Revoke, &[]).unwrap();
    assert!(raw.ended().contains("as long as it is connected"));
    round_trip(&served.client(1), 0, 1);
}

#[test]
fn an_offer_of_another_version_is_refused() {
    let (served, sealed) = (Served::ram(&[""]), memory::make(8192).unwrap());
    let raw = Raw::new(&served.path(0));
    raw.channel
        .send(&ClientRequest::Offer { version: VERSION + 1, bytes: 8192 }, &[sealed.as_fd()])
        .unwrap();
    assert!(matches!(answer(&raw), Answer::Refused { reason } if reason.contains("version")));
}

#[test]
fn a_place_in_no_region_or_beyond_its_end_is_its_clients_end() {
    let (served, sealed) = (Served::ram(&["", ""]), memory::make(8192).unwrap());
    for (region, offset) in
        [(2, 0), (u32::from(u16::MAX), 0), (1, 8192), (1, 8191), (1, (1 << 48) - 1), (0, 1 << 47)]
    {
        let raw = Raw::new(&served.path(0));
        offer(&raw, 8192, &[sealed.as_fd()]);
        assert!(matches!(answer(&raw), Answer::Shared { .. }));
        let mut queue = raw.open(8);
        queue.put(read_of(1, (place(region, offset), 512)).encode());
        queue.show();
        assert!(raw.ended().contains("not in its memory"), "{region} {offset:#x}");
    }
    round_trip(&served.client(1), 0, 1);
}

#[test]
fn a_region_is_reached_by_its_number_and_a_hole_in_it_hurts_its_owner_alone() {
    let (served, sealed) = (Served::ram(&["", ""]), memory::make(8192).unwrap());
    let raw = Raw::new(&served.path(0));
    offer(&raw, 8192, &[sealed.as_fd()]);
    answer(&raw);
    let mut queue = raw.open(8);
    round_trip(&served.client(1), 0, 0x2f);
    queue.put(read_of(1, (place(1, 4096), 512)).encode());
    queue.show();
    assert!(queue.wait_for(1) && queue.end(0) == (1, 0));
    let mut byte = [0];
    rustix::io::pread(&sealed, &mut byte, 4096).unwrap();
    assert_eq!(byte, [0x2f]);
    fallocate(&sealed, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
    queue.put(
        Submission {
            operation: ring3_class::block::Operation::Write,
            ..read_of(2, (place(1, 4096), 512))
        }
        .encode(),
    );
    queue.show();
    assert!(queue.wait_for(2));
    round_trip(&served.client(1), 1, 0x30);
}

#[test]
fn a_region_of_one_who_dies_in_flight_is_the_devices_until_it_is_done_and_not_longer() {
    let disk = Arc::new(Gated::new());
    let served = Served::start(disk.clone(), &["", ""], Options::default());
    let (sealed, before) = (memory::make(8192).unwrap(), disk.ram.mappings());
    {
        let raw = Raw::new(&served.path(0));
        offer(&raw, 8192, &[sealed.as_fd()]);
        answer(&raw);
        let mut queue = raw.open(8);
        assert_eq!(disk.ram.mappings(), before + 2);
        disk.set(false);
        queue.put(read_of(1, (place(1, 0), 512)).encode());
        queue.show();
        disk.wait_for(1);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(
        disk.ram.mappings(),
        before + 2,
        "its region was taken from the device while a request was in flight"
    );
    disk.set(true);
    let deadline = Deadline::after(SOON);
    while disk.ram.mappings() != before {
        assert!(!deadline.expired(), "its region is still the device's");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn addresses_of_another_disks_memory_are_refused_by_the_client() {
    let (served, memory) = (Served::ram(&[""]), filled(1));
    let (remote, local) = (served.client(0), ram());
    remote.register_region(memory.region()).unwrap();
    let buffer = local.dma().arena().alloc_pages(BLOCK).unwrap();
    let end = execute(
        &mut *remote.open_queue(1).unwrap(),
        Request::read(1, 0, 1, buffer),
        Deadline::after(SOON),
    )
    .unwrap();
    assert_eq!(end.result, Err(IoError::Invalid));
}

#[test]
fn what_was_registered_for_good_is_a_region_of_which_nothing_is_allocated() {
    let (local, memory) = (ram(), filled(1));
    let free = local.dma().arena().free_bytes();
    local.register_region(memory.region()).unwrap();
    assert_eq!(local.dma().arena().free_bytes(), free);
    let last: Placed = local.dma().arena().regions().last().unwrap().clone();
    assert_eq!(last.region.id(), memory.region().id());
}
