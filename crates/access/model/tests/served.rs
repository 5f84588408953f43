//! A model on a socket, and clients that are not well.

mod raw_client;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use raw_client::{RawClient, Served, memory, serve};
use ring3_device::OpenOptions;
use ring3_model::vfio_user::VfioUserServer;
use ring3_spec::vfio_user::*;
use ring3_spec::{edu, pci};
use rustix::io::Errno;

const EINVAL: u32 = Errno::INVAL.raw_os_error() as u32;

fn bind(path: &Path) -> Result<VfioUserServer, ring3_device::Error> {
    VfioUserServer::bind(
        path,
        ring3_model::open(
            &"sim:edu".parse().unwrap(),
            OpenOptions { arena: 4096, ..Default::default() },
        )?,
    )
}

/// The teaching device, and a client that has agreed on a version, with bus mastering on.
fn driven() -> (Served, RawClient) {
    let served = serve("sim:edu");
    let client = served.client();
    client
        .write(
            CONFIG_REGION,
            pci::COMMAND,
            &(pci::COMMAND_MEMORY | pci::COMMAND_BUS_MASTER).to_le_bytes(),
        )
        .unwrap();
    (served, client)
}

fn is_alive(client: &RawClient) -> bool {
    client
        .read(0, edu::IDENTIFICATION.offset(), 4)
        .is_ok_and(|id| id == 0x0100_00edu32.to_le_bytes())
}

#[test]
fn a_client_reads_registers_and_configuration_space() {
    let (_served, client) = driven();
    assert!(is_alive(&client));
    let config = client.read(CONFIG_REGION, 0, 256).unwrap();
    assert_eq!(config[..2], 0x1234u16.to_le_bytes());
    let info =
        client.request(command::DEVICE_GET_INFO, &DeviceInfo::default().to_bytes(), &[]).unwrap();
    let (info, _) = DeviceInfo::take(&info).unwrap();
    assert_eq!(
        (info.regions, info.irqs, info.flags),
        (PCI_REGIONS, PCI_IRQS, DEVICE_PCI | DEVICE_RESETTABLE)
    );
}

#[test]
fn a_guests_kernel_sizes_and_places_the_bars_and_enables_messages() {
    let (_served, client) = driven();
    client.write(CONFIG_REGION, pci::BAR0, &[0xff; 4]).unwrap();
    assert_eq!(client.read(CONFIG_REGION, pci::BAR0, 4).unwrap(), 0xfff0_0000u32.to_le_bytes());
    client.write(CONFIG_REGION, pci::BAR0, &0xc030_0000u32.to_le_bytes()).unwrap();
    assert_eq!(client.read(CONFIG_REGION, pci::BAR0, 4).unwrap(), 0xc030_0000u32.to_le_bytes());
    let msi: u64 = client.read(CONFIG_REGION, pci::CAPABILITIES, 1).unwrap()[0].into();
    client.write(CONFIG_REGION, msi + pci::MSI_CONTROL, &pci::MSI_ENABLE.to_le_bytes()).unwrap();
    assert_eq!(client.read(CONFIG_REGION, msi + pci::MSI_CONTROL, 1).unwrap()[0] & 1, 1);
    // What the platform of the next driver finds is as after power-on.
    drop(client);
    let client = _served.client();
    assert_eq!(client.read(CONFIG_REGION, pci::BAR0, 4).unwrap(), 0xe000_0000u32.to_le_bytes());
    assert_eq!(client.read(CONFIG_REGION, msi + pci::MSI_CONTROL, 1).unwrap()[0] & 1, 0);
}

#[test]
fn with_decoding_off_the_registers_are_not_there() {
    let (_served, client) = driven();
    client.write(CONFIG_REGION, pci::COMMAND, &[0, 0]).unwrap();
    assert_eq!(client.read(0, 0, 4).unwrap(), [0xff; 4]);
}

#[test]
fn a_first_message_that_is_no_version_ends_the_connection() {
    let served = serve("sim:edu");
    for (command, body) in [
        (command::DEVICE_RESET, &[][..]),
        (77, &[1, 2, 3]),
        (command::VERSION, &[0, 0]),
        (command::VERSION, &[9, 0, 0, 0]),
    ] {
        let client = served.raw();
        assert_eq!(client.request(command, body, &[]), Err(EINVAL), "{command}");
        assert!(client.is_cut_off(), "{command}");
    }
    assert!(is_alive(&served.client()));
}

#[test]
fn garbage_ends_the_connection_and_the_next_client_is_served() {
    let served = serve("sim:edu");
    for garbage in [vec![0xff; 4096], vec![0; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![1]] {
        let mut client = served.raw();
        client.send_bytes(&garbage);
        drop(client);
        assert!(is_alive(&served.client()));
    }
}

#[test]
fn an_answer_that_nobody_asked_for_ends_the_connection() {
    let (_served, client) = driven();
    client
        .send(Header { id: 9, command: command::REGION_READ, len: 0, flags: REPLY, error: 0 }, &[]);
    assert!(client.is_cut_off());
}

#[test]
fn accesses_beyond_a_region_are_refused_and_the_client_lives() {
    let (_served, client) = driven();
    for (region, offset, count) in [
        (0, 1 << 20, 4),
        (0, u64::MAX, 4),
        (0, u64::MAX - 3, 8),
        (0, 0, 0),
        (7, 255, 2),
        (8, 0, 1),
        (99, 0, 4),
        (u32::MAX, 0, 4),
        (0, 0, u32::MAX),
    ] {
        let access = RegionAccess { offset, region, count };
        for command in [command::REGION_READ, command::REGION_WRITE] {
            assert_eq!(client.request(command, &access.to_bytes(), &[]), Err(EINVAL), "{access:?}");
        }
    }
    // A write with more or less data than it says.
    let access = RegionAccess { offset: 4, region: 0, count: 4 }.to_bytes();
    assert_eq!(
        client.request(command::REGION_WRITE, &[&access[..], &[0; 5]].concat(), &[]),
        Err(EINVAL)
    );
    assert_eq!(client.request(command::REGION_WRITE, &access, &[]), Err(EINVAL));
    assert!(is_alive(&client));
}

#[test]
fn an_access_of_the_most_bytes_is_answered() {
    let (_served, client) = driven();
    assert_eq!(client.read(0, 0, 1 << 20).unwrap().len(), 1 << 20);
}

#[test]
fn messages_that_are_too_short_or_unknown_are_refused_and_the_client_lives() {
    let (_served, client) = driven();
    for command in 1..16 {
        assert!(
            client.request(command, &[0; 3], &[]).is_err()
                || command == command::DEVICE_RESET
                || command == command::DEVICE_GET_INFO
        );
    }
    assert!(is_alive(&client));
}

#[test]
fn absurd_mappings_are_refused_and_the_client_lives() {
    let (_served, client) = driven();
    let file = memory(8192);
    let good =
        DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address: 0x10_0000, size: 4096 };
    let absurd = [
        DmaMap { size: 0, ..good },
        DmaMap { size: 1, ..good },
        DmaMap { size: 1 << 40, ..good },
        DmaMap { size: !4095, ..good },
        DmaMap { offset: 4096, size: 8192, ..good },
        DmaMap { offset: !4095, ..good },
        DmaMap { offset: 1, ..good },
        DmaMap { address: !4095, ..good },
        DmaMap { address: 1, ..good },
        DmaMap { address: 0xfee0_0000, ..good },
        DmaMap { flags: 0, ..good },
        DmaMap { flags: 1, ..good },
    ];
    for map in absurd {
        assert!(client.map(&map, Some(file.as_fd())).is_err(), "{map:?}");
    }
    assert_eq!(client.map(&good, None), Err(EINVAL));
    client.map(&good, Some(file.as_fd())).unwrap();
    assert_eq!(client.map(&good, Some(file.as_fd())), Err(Errno::EXIST.raw_os_error() as u32));
    for (address, size) in [(0x10_0000, 8192), (0x10_1000, 4096), (0, 0), (u64::MAX, u64::MAX)] {
        let unmap = DmaUnmap { argsz: 24, flags: 0, address, size };
        assert_eq!(
            client.request(command::DMA_UNMAP, &unmap.to_bytes(), &[]),
            Err(EINVAL),
            "{unmap:?}"
        );
    }
    assert!(is_alive(&client));
}

#[test]
fn a_file_that_may_shrink_is_refused_because_it_could_kill_the_server() {
    let (_served, client) = driven();
    let map =
        DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address: 0x10_0000, size: 4096 };
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let (no_file, _writer) = rustix::pipe::pipe().unwrap();
    for fd in [OwnedFd::from(file), unsealed, no_file] {
        assert_eq!(client.map(&map, Some(fd.as_fd())), Err(EINVAL));
    }
    assert!(is_alive(&client));
}

#[test]
fn mappings_without_end_are_refused() {
    let (_served, client) = driven();
    let file = memory(4096);
    let map = |number: u64| DmaMap {
        argsz: 32,
        flags: DMA_READ_WRITE,
        offset: 0,
        address: (number + 16) << 12,
        size: 4096,
    };
    let taken = (0..1000)
        .take_while(|&number| client.map(&map(number), Some(file.as_fd())).is_ok())
        .count();
    assert_eq!(taken, 256);
    let all = DmaUnmap { argsz: 24, flags: DMA_UNMAP_ALL, address: 0, size: 0 };
    client.request(command::DMA_UNMAP, &all.to_bytes(), &[]).unwrap();
    client.map(&map(0), Some(file.as_fd())).unwrap();
}

#[test]
fn interrupts_that_do_not_exist_are_refused_and_the_client_lives() {
    let (_served, client) = driven();
    let trigger = IRQ_DATA_EVENTFD | IRQ_TRIGGER;
    let requests = [
        (0, 0, 2),
        (0, 1, 1),
        (1, u32::MAX, 2),
        (1, 0, u32::MAX),
        (2, 0, 1),
        (3, 0, 1),
        (4, 0, 1),
        (5, 0, 0),
        (u32::MAX, 0, 1),
    ];
    for (index, start, count) in requests {
        let wish = SetIrqs { argsz: 20, flags: trigger, index, start, count };
        assert!(
            client.request(command::DEVICE_SET_IRQS, &wish.to_bytes(), &[]).is_err(),
            "{wish:?}"
        );
    }
    for flags in [0, trigger | IRQ_MASK, IRQ_TRIGGER, u32::MAX, IRQ_DATA_NONE | IRQ_TRIGGER] {
        let wish = SetIrqs { argsz: 20, flags, index: 0, start: 0, count: 1 };
        assert!(
            client.request(command::DEVICE_SET_IRQS, &wish.to_bytes(), &[]).is_err(),
            "{wish:?}"
        );
    }
    assert!(is_alive(&client));
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let (_served, client) = driven();
    let files: Vec<_> = (0..16).map(|_| memory(4096)).collect();
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    // More than a process may have open.
    for _ in 0..200 {
        client.request(command::DEVICE_RESET, &[], &fds).unwrap();
    }
    assert!(is_alive(&client));
}

#[test]
fn a_message_that_stops_half_way_does_not_keep_the_next_client_out() {
    let served = serve("sim:edu");
    let mut client = served.client();
    client.send_bytes(
        &Header { id: 1, command: command::REGION_WRITE, len: 1 << 20, flags: 0, error: 0 }
            .to_bytes(),
    );
    drop(client);
    assert!(is_alive(&served.client()));
}

#[test]
fn a_second_client_is_refused_as_long_as_the_first_is_there() {
    let (served, first) = driven();
    let second = served.raw();
    assert_eq!(second.agree(), Err(Errno::BUSY.raw_os_error() as u32));
    assert!(second.is_cut_off());
    assert!(is_alive(&first));
    drop(first);
    assert!(is_alive(&served.client()));
}

#[test]
fn a_second_client_that_says_nothing_does_not_keep_others_out() {
    let (served, first) = driven();
    // Accepted before or after the first goes: refused, or served until it should have said
    // something.
    let _silent = served.raw();
    drop(first);
    let until = Instant::now() + Duration::from_secs(60);
    while served.raw().agree().is_err() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_goes_leaves_a_quiet_device() {
    let (served, client) = driven();
    let file = memory(4096);
    client
        .map(
            &DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address: 0x10_0000, size: 4096 },
            Some(file.as_fd()),
        )
        .unwrap();
    drop(client);
    let client = served.client();
    let command = client.read(CONFIG_REGION, pci::COMMAND, 2).unwrap();
    assert_eq!(u16::from_le_bytes([command[0], command[1]]) & pci::COMMAND_BUS_MASTER, 0);
    // Nothing is mapped there any more.
    client
        .map(
            &DmaMap { argsz: 32, flags: DMA_READ_WRITE, offset: 0, address: 0x10_0000, size: 4096 },
            Some(file.as_fd()),
        )
        .unwrap();
}

#[test]
fn the_socket_is_for_its_user_alone_and_goes_with_the_server() {
    use std::os::unix::fs::PermissionsExt;
    let served = serve("sim:edu");
    assert_eq!(std::fs::metadata(&served.path).unwrap().permissions().mode() & 0o777, 0o600);
    let path = served.path.clone();
    let _folder = served.stop();
    assert!(!path.exists());
}

#[test]
fn a_dead_servers_socket_is_replaced_and_a_living_ones_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let first = bind(&path).unwrap();
    let error = bind(&path).err().unwrap().to_string();
    assert!(error.contains("somebody listens there"), "{error}");
    drop(first);
    assert!(!path.exists());
    // Somebody else's socket, whose queue is full.
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(bind(&path).err().unwrap().to_string().contains("somebody listens there"));
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(bind(&path).err().unwrap().to_string().contains("no socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn a_server_that_ends_does_not_remove_anothers_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let first = bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn a_path_that_is_too_long_or_leads_nowhere_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let long = bind(&folder.path().join("x".repeat(108))).err().unwrap().to_string();
    assert!(long.contains("at most 107 bytes"), "{long}");
    let nowhere = bind(&folder.path().join("no/such/folder")).err().unwrap().to_string();
    assert!(nowhere.contains("create its folder"), "{nowhere}");
    // A folder in which not even root can create anything.
    let read_only = bind(Path::new("/proc/ring3-socket")).err().unwrap().to_string();
    assert!(read_only.contains("/proc/ring3-socket"), "{read_only}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn no_message_kills_the_server(
        messages in prop::collection::vec(
            (0u16..20, prop::collection::vec(any::<u8>(), 0..64), 0u32..64), 1..20,
        )
    ) {
        let (served, client) = driven();
        for (command, body, flags) in messages {
            client.send(Header { id: 1, command, len: 0, flags, error: 0 }, &body);
        }
        drop(client);
        prop_assert!(is_alive(&served.client()));
    }
}
