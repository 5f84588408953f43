//! What drivers may say over a lease, and what they may not.

use super::*;
use crate::lease::maps::{MAX_FILES, MAX_MAPS};

/// The two ends of a lease, the driver's without a driver.
fn raw(claim: &Claim) -> Channel {
    Channel::new(claim.lease().unwrap().into(), PATIENCE, true).unwrap()
}

fn ask(channel: &Channel, request: &Request, fds: &[std::os::fd::BorrowedFd<'_>]) -> Answer {
    channel.send(request, fds).unwrap();
    channel.receive().unwrap().unwrap().0
}

#[test]
fn what_makes_no_sense_is_refused_and_the_lease_goes_on() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    let refused = |request: &Request, fds: &[std::os::fd::BorrowedFd<'_>]| {
        let answer = ask(&channel, request, fds);
        assert!(matches!(answer, Answer::Refused(_)), "{request:?}: {answer:?}");
    };
    refused(&Request::Reset, &[]);
    refused(&Request::Hello { version: VERSION + 1 }, &[]);
    let Answer::Facts(facts) = ask(&channel, &Request::Hello { version: VERSION }, &[]) else {
        panic!("no facts")
    };
    let Memory { iova, len, .. } = facts.arena[0];
    let memory = Arc::new(Region::new(1 << 16).unwrap());
    let file = memory.fd().unwrap();
    let (loose, free) = (tempfile::tempfile().unwrap(), 1 << 20);
    loose.set_len(1 << 16).unwrap();
    let map = |iova, offset, len| Request::Map(Memory { iova, offset, len });
    refused(&map(free, 0, 4096), &[]);
    refused(&map(free, 0, 4096), &[loose.as_fd()]);
    refused(&map(free, 0, 4096), &[std::io::stdin().as_fd()]);
    let vast = rustix::fs::memfd_create("vast", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&vast, 1 << 42).unwrap();
    rustix::fs::fcntl_add_seals(&vast, SealFlags::SHRINK).unwrap();
    refused(&map(0x1_0000_0000, 0, 1 << 42), &[vast.as_fd()]);
    for (at, offset, len) in [
        (free, 0, 100),
        (free, 1 << 30, 4096),
        (free, u64::MAX, 4096),
        (free + 1, 0, 4096),
        (u64::MAX - 4095, 0, 8192),
        (iova, 0, 4096),
        (iova + len - 4096, 0, 8192),
        (0xfee0_0000, 0, 4096),
        (free, 0, u64::MAX),
        (free, 0, 0),
    ] {
        refused(&map(at, offset, len), &[file]);
    }
    refused(&Request::Unmap { iova, len }, &[]);
    refused(&Request::Unmap { iova: free, len: 4096 }, &[]);
    refused(&Request::Read { bar: 6, offset: 0, width: 4 }, &[]);
    refused(&Request::Read { bar: 0, offset: 0, width: 3 }, &[]);
    refused(&Request::Write { bar: 9, offset: 0, width: 4, value: 0, posted: false }, &[]);
    refused(&Request::ConfigWrite { offset: pci::BAR0, width: 4, value: 0 }, &[]);
    refused(&Request::ConfigWrite { offset: pci::COMMAND, width: 2, value: 0 }, &[]);
    refused(&Request::Irqs { kind: Kind::MsiX, count: u16::MAX }, &[]);
    refused(&Request::Irqs { kind: Kind::MsiX, count: MAX_FDS as u16 + 1 }, &[]);
    refused(&Request::Mask { vector: 0, masked: true }, &[]);
    for (offset, width) in [(u64::MAX, 4), (0, 0), (0, 255), (4096, 1)] {
        refused(&Request::ConfigRead { offset, width }, &[]);
        refused(&Request::ConfigWrite { offset, width, value: 0 }, &[]);
    }
    assert_eq!(
        ask(&channel, &Request::ConfigRead { offset: 4095, width: 4 }, &[]),
        Answer::Value(u32::MAX.into())
    );
    assert_eq!(
        ask(&channel, &Request::Read { bar: 0, offset: u64::MAX, width: 8 }, &[]),
        Answer::Value(u64::MAX)
    );
    channel
        .send(&Request::Write { bar: 7, offset: 0, width: 0, value: 0, posted: true }, &[])
        .unwrap();
    assert_eq!(ask(&channel, &map(free, 0, 4096), &[file]), Answer::Done);
    refused(&map(free, 0, 4096), &[file]);
    assert_eq!(ask(&channel, &Request::Unmap { iova: free, len: 4096 }, &[]), Answer::Done);
}

#[test]
fn what_is_no_message_ends_the_lease_and_not_the_claim() {
    let (claim, _handle) = claimed();
    for garbage in [
        &b"{"[..],
        b"\0\0\0\0",
        b"{\"hello\":{}}",
        b"\"unheard_of\"",
        b"{\"read\":{\"bar\":-1}}",
        &[b' '; 70_000],
    ] {
        let channel = raw(&claim);
        rustix::net::send(&channel, garbage, rustix::net::SendFlags::NOSIGNAL).unwrap();
        assert!(channel.receive::<Answer>().unwrap().is_none());
        claim.quiesce(fence()).unwrap();
    }
    Process::start(claim.lease().unwrap()).drive().write(1, 1);
}

#[test]
fn a_driver_that_dies_between_a_question_and_its_answer_takes_nothing_from_the_next_one() {
    let (_folder, _server, claim, _handle) = served();
    let version = Process::start(claim.lease().unwrap()).device.bar(0).unwrap().read32(8);
    for _ in 0..20 {
        claim.quiesce(fence()).unwrap();
        let dying = raw(&claim);
        assert!(matches!(ask(&dying, &Request::Hello { version: VERSION }, &[]), Answer::Facts(_)));
        for _ in 0..3 {
            dying.send(&Request::Read { bar: 0, offset: 0x14, width: 4 }, &[]).unwrap();
        }
        drop(dying);
        claim.quiesce(fence()).unwrap();
        assert_eq!(
            Process::start(claim.lease().unwrap()).device.bar(0).unwrap().read32(8),
            version
        );
    }
}

#[test]
fn what_is_no_lease_is_said_and_so_is_a_backend_without_any() {
    let error = attach(OwnedFd::from(tempfile::tempfile().unwrap()).into(), None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("no lease of a device") && error.contains("its holder has made"),
        "{error}"
    );
    for uri in ["uio:0000:01:00.0", "qtest:nvme"] {
        let error = claim(&uri.parse().unwrap(), options()).err().unwrap().to_string();
        assert!(error.contains("there is no lease of this backend"), "{error}");
    }
}

/// Says to this program that it is the driver's process of the test below, with the lease as its
/// standard input.
const CHILD: &str = "RING3_TEST_LEASED";

/// The life of the driver's process.
fn life() {
    use std::os::fd::AsFd;
    let lease: Lease = std::io::stdin().as_fd().try_clone_to_owned().unwrap().into();
    let mut driver = Process::start(lease).drive();
    driver.write(5, 0xaa);
    driver.begin(5, 0xbb);
    std::thread::sleep(PATIENCE);
}

/// What block 5 holds if a driver, whose write of 0xbb the device holds back, is killed, and the
/// next one has 0xcc in all of its memory when the device goes on.
fn outcome_of_a_kill(fenced: bool) -> Vec<u8> {
    let (_folder, _server, claim, handle) = served();
    handle.plan().add(Rule::io(Action::Hang, nvm::WRITE).nth(2));
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "lease::tests::messages::a_write_of_a_dead_driver_takes_the_next_ones_memory_to_the_disk_unless_it_is_fenced",
        ])
        .env(CHILD, "")
        .stdin(Stdio::from(OwnedFd::from(claim.lease().unwrap())))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while handle.held() == 0 && process.try_wait().unwrap().is_none() && since.elapsed() < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(handle.held(), 1);
    process.kill().unwrap();
    process.wait().unwrap();
    let lease =
        if fenced { claim.quiesce(fence()).and_then(|_| claim.lease()) } else { claim.hand_over() };
    let next = attach(lease.unwrap(), None).unwrap();
    let arena = next.dma().arena();
    let buffers: Vec<_> = std::iter::from_fn(|| arena.alloc_pages(4096).ok()).collect();
    buffers.iter().for_each(|buffer| buffer.fill(0xcc));
    handle.release();
    block(&handle, 5)
}

#[test]
fn a_write_of_a_dead_driver_takes_the_next_ones_memory_to_the_disk_unless_it_is_fenced() {
    if std::env::var_os(CHILD).is_some() {
        return life();
    }
    assert_eq!(outcome_of_a_kill(false), [0xcc]);
    assert_eq!(outcome_of_a_kill(true), [0xaa]);
}

#[test]
fn the_first_word_is_said_once_so_that_the_devices_descriptor_is_nothing_that_a_driver_can_ask_for()
{
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    let hello = || ask(&channel, &Request::Hello { version: VERSION }, &[]);
    assert!(matches!(hello(), Answer::Facts(_)));
    assert!(matches!(hello(), Answer::Refused(_)) && matches!(hello(), Answer::Refused(_)));
    assert!(matches!(
        ask(&channel, &Request::ConfigRead { offset: 0, width: 2 }, &[]),
        Answer::Value(_)
    ));
}

#[test]
fn a_driver_writes_what_its_manifest_lists_of_configuration_space_and_nothing_else() {
    let (claim, _handle) = claimed();
    let write = |channel: &Channel, offset, width| {
        ask(channel, &Request::ConfigWrite { offset, width, value: 0 }, &[])
    };
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    assert_eq!(write(&channel, 0x3c, 1), Answer::Done);
    claim.limit_config(vec![0x0c..0x0d, 0x0d..0x0e]);
    assert!(matches!(write(&channel, 0x3c, 1), Answer::Refused(_)));
    assert!(matches!(write(&channel, 0x0c, 4), Answer::Refused(_)));
    assert_eq!((write(&channel, 0x0c, 1), write(&channel, 0x0c, 2)), (Answer::Done, Answer::Done));
}

#[test]
fn a_driver_has_no_more_memory_mapped_than_its_share() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    let file = rustix::fs::memfd_create("much", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 1 << 31).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let map = |len| {
        ask(&channel, &Request::Map(Memory { iova: 1 << 32, offset: 0, len }), &[file.as_fd()])
    };
    let Answer::Refused(Refusal::Invalid(why)) = map((1 << 30) + 4096) else {
        panic!("it is mapped")
    };
    assert!(why.contains("more memory than a driver of this device may have"), "{why}");
}

/// A sealed file of `len` bytes.
fn sealed(len: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("pieces", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

/// Descriptors of this process for the file of `fd`.
fn descriptors_of(fd: &OwnedFd) -> usize {
    let file = rustix::fs::fstat(fd).unwrap();
    let same = |entry: &std::fs::DirEntry| {
        rustix::fs::stat(entry.path())
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (file.st_dev, file.st_ino))
    };
    std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(same).count()
}

#[test]
fn a_driver_that_maps_a_file_piece_by_piece_costs_its_holder_one_descriptor() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    let file = sealed(1 << 23);
    let before = descriptors_of(&file);
    for piece in 0..256 {
        let (iova, offset) = ((1 << 40) + piece * 4096, piece * 4096);
        assert_eq!(
            ask(&channel, &Request::Map(Memory { iova, offset, len: 4096 }), &[file.as_fd()]),
            Answer::Done
        );
    }
    assert_eq!(descriptors_of(&file), before + 1);
    claim.quiesce(fence()).unwrap();
    assert_eq!(descriptors_of(&file), before, "none is left when nothing is mapped");
}

#[test]
fn a_driver_has_no_more_files_and_no_more_ranges_mapped_than_its_share() {
    let (claim, _handle) = claimed();
    let channel = raw(&claim);
    ask(&channel, &Request::Hello { version: VERSION }, &[]);
    let map = |piece: u64, offset, file: &OwnedFd| {
        ask(
            &channel,
            &Request::Map(Memory { iova: (1 << 40) + piece * 4096, offset, len: 4096 }),
            &[file.as_fd()],
        )
    };
    let refused = |answer| {
        let Answer::Refused(Refusal::Invalid(why)) = answer else { panic!("{answer:?}") };
        why
    };
    let files: Vec<_> = (0..=MAX_FILES).map(|_| sealed(4 << 20)).collect();
    for (piece, file) in (0..).zip(&files[..MAX_FILES]) {
        assert_eq!(map(piece, 0, file), Answer::Done);
    }
    assert!(refused(map(MAX_FILES as u64, 0, &files[MAX_FILES])).contains("one more file"));
    for piece in MAX_FILES..MAX_MAPS {
        assert_eq!(map(piece as u64, piece as u64 * 4096, &files[0]), Answer::Done);
    }
    assert!(refused(map(MAX_MAPS as u64, 0, &files[0])).contains("too many mappings"));
}

#[test]
fn interrupts_of_a_model_are_counted_by_nobody_and_so_not_limited() {
    let (claim, _handle) = claimed();
    assert_eq!((claim.interrupts(), claim.limit_interrupts(1).unwrap()), (None, None));
}

#[test]
fn whether_a_function_can_go_around_its_translation_is_the_holders_word_and_one_that_says_nothing_means_yes()
 {
    let (claim, _handle) = claimed();
    let device = attach(claim.lease().unwrap(), None).unwrap();
    assert!(!device.dma().iommu().is_bypassable());
    let (silent, _handle) = claimed();
    let Answer::Facts(facts) = ask(&raw(&silent), &Request::Hello { version: VERSION }, &[]) else {
        panic!("no facts")
    };
    let mut facts = serde_json::to_value(facts).unwrap();
    facts.as_object_mut().unwrap().remove("bypassable").unwrap();
    assert!(serde_json::from_value::<ring3_lease::DeviceDescription>(facts).unwrap().bypassable);
}
