//! Cards as interfaces, in network namespaces that each test makes: two cards on a cable, an
//! interface of the kernel on each, and programs that use them by sockets. Without /dev/net/tun,
//! iproute2 or the right to make a namespace they are skipped, and say so.
//! `RING3_TEST_ENGINE=vhost` has all of them done by vhost-net; a test of its own does so in a
//! guest.

mod namespace;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use namespace::Namespace;
use ring3_backend::OpenOptions;
use ring3_class::net::{Cable, Link, Nic, Packet, QueueSettings};
use ring3_driver::registry::{Driver, Offer, Opened, Settings};
use ring3_export::tap::{
    Engine, Error, Interface, Limits, Options, Shape, Stats, TapExport, arena_bytes,
};
use ring3_lab::{Cache, Guest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const LONG: Duration = Duration::from_secs(60);
/// Of the some 2,900 frames of a stream of 4 MiB, at least so many are put to the one before. Most
/// come alone where a busy machine wakes the receiver for each; one that puts none together has 0.
const JOINED: u64 = 1;

/// An interface in a namespace of its own.
struct Side {
    export: Option<TapExport>,
    namespace: Namespace,
}

impl Side {
    fn new(nic: Arc<dyn Nic>, number: u8) -> Result<Self, String> {
        Self::with(nic, number, &Options { engine: engine(), ..Options::default() })
    }

    fn with(nic: Arc<dyn Nic>, number: u8, options: &Options) -> Result<Self, String> {
        let namespace = Namespace::new()?;
        let options = Options { name: Some("card".into()), ..options.clone() };
        let export = namespace.within(|| TapExport::start(nic, &options)).unwrap();
        namespace.ip("link set card up");
        namespace.ip(&format!("address add 10.9.8.{number}/24 dev card"));
        Ok(Self { export: Some(export), namespace })
    }

    fn stats(&self) -> Stats {
        self.export.as_ref().unwrap().stats()
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.export.take().unwrap().stop()
    }

    fn link(&self) -> String {
        self.namespace.ip("-o link show card")
    }

    /// Waits until `ip link` says `what` of the interface.
    fn wait_for(&self, what: &str) {
        eventually(what, || self.link().contains(what));
    }

    fn udp(&self, port: u16) -> UdpSocket {
        let socket =
            self.namespace.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket
    }
}

/// What the environment wants to have tested.
fn engine() -> Engine {
    match std::env::var("RING3_TEST_ENGINE").as_deref() {
        Ok("vhost") => Engine::Vhost,
        _ => Engine::Auto,
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The sides of a cable, 10.9.8.1 and 10.9.8.2, with a link.
fn sides(nics: [Arc<dyn Nic>; 2]) -> Result<[Side; 2], String> {
    let [one, other] = nics;
    let sides = [Side::new(one, 1)?, Side::new(other, 2)?];
    sides.iter().for_each(|side| side.wait_for("LOWER_UP"));
    Ok(sides)
}

/// Two ends of a cable in memory.
fn ends() -> (Cable, [Arc<dyn Nic>; 2]) {
    let (cable, one, other) = Cable::new(arena_bytes(1)).unwrap();
    (cable, [Arc::new(one), Arc::new(other)])
}

/// Two models on a cable of that name, with their drivers.
fn cards(model: &str, cable: &str) -> [Arc<dyn Nic>; 2] {
    [(); 2].map(|()| {
        let options = OpenOptions {
            arena: arena_bytes(1),
            below: u64::MAX,
            unprotected: false,
            memory: None,
        };
        let device = ring3_backend::open(
            &format!("sim:{model},wire=cable/{cable}").parse().unwrap(),
            options,
        )
        .unwrap();
        let Opened { offers, .. } = Driver::open(device, None, &Settings::default()).unwrap();
        match offers.into_iter().next() {
            Some(Offer::Nic(nic)) => nic,
            _ => panic!("no card"),
        }
    })
}

/// Runs `test` on two sides of `nics`, or says that it is skipped.
fn on(nics: [Arc<dyn Nic>; 2], test: impl FnOnce(&mut [Side; 2])) {
    match sides(nics) {
        Ok(mut sides) => test(&mut sides),
        Err(why) => println!("skipped: {why}"),
    }
}

fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 8, 2), port).into()
}

/// A call with a time limit ends with EINTR when the process was stopped for a moment. [signal(7)]
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Datagrams of `bytes` bytes go from the first side to the second and back, one at a time.
fn echo(sides: &[Side; 2], bytes: usize) {
    let (here, there) = (sides[0].udp(0), sides[1].udp(0));
    let to = address(there.local_addr().unwrap().port());
    let mut buffer = vec![0; 70_000];
    for round in 0..20 {
        let sent: Vec<u8> = (0..bytes).map(|at| (at * 7 + round) as u8).collect();
        here.send_to(&sent, to).unwrap();
        let (count, from) = uninterrupted(|| there.recv_from(&mut buffer)).unwrap();
        there.send_to(&buffer[..count], from).unwrap();
        let count = uninterrupted(|| here.recv(&mut buffer)).unwrap();
        assert!(buffer[..count] == sent, "{count} of {bytes} bytes came back");
    }
}

/// `bytes` bytes by TCP from the first side to the second.
fn stream(sides: &[Side; 2], bytes: usize) {
    stream_to(sides, address(9), bytes);
}

/// The same to an address of the second side.
fn stream_to(sides: &[Side; 2], to: SocketAddr, bytes: usize) {
    let listener = sides[1].namespace.within(|| TcpListener::bind(to)).unwrap();
    let byte = |at: usize| (at / 251) as u8;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream =
                sides[0].namespace.within(|| TcpStream::connect_timeout(&to, LONG)).unwrap();
            let data: Vec<u8> = (0..bytes).map(byte).collect();
            stream.set_write_timeout(Some(LONG)).unwrap();
            stream.write_all(&data).unwrap();
            // The end of the stream is not in what the card cuts.
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream.read_exact(&mut [0]).unwrap();
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut data = vec![0; bytes];
        stream.read_exact(&mut data).unwrap();
        stream.write_all(&[1]).unwrap();
        assert!(data.iter().enumerate().all(|(at, &got)| got == byte(at)), "other bytes came");
    });
}

#[test]
fn a_ping_and_its_answer_go_through_two_cards() {
    on(ends().1, |sides| {
        let reply = sides[0].namespace.within(|| ping(Ipv4Addr::new(10, 9, 8, 2)));
        assert_eq!(reply, b"are you there?");
    });
}

/// The data of the answer to an echo request. [RFC 792]
fn ping(to: Ipv4Addr) -> Vec<u8> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket,
    };
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    let mut request = [&[8, 0, 0, 0, 1, 2, 0, 1][..], b"are you there?"].concat();
    let sum = !ring3_class::net::sum(&request);
    request[2..4].copy_from_slice(&sum.to_be_bytes());
    sendto(&socket, &request, SendFlags::empty(), &SocketAddr::from((to, 0))).unwrap();
    loop {
        let limit = Timespec::try_from(LONG).unwrap();
        assert_eq!(
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)),
            Ok(1),
            "no answer"
        );
        let mut bytes = [0; 256];
        let (count, _) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        // The IPv4 header is 20 bytes; an answer is of type 0.
        if count > 28 && bytes[20] == 0 && bytes[24..26] == [1, 2] {
            return bytes[28..count].to_vec();
        }
    }
}

#[test]
fn datagrams_of_any_length_come_as_they_were_sent() {
    on(ends().1, |sides| {
        [1, 18, 1472, 1473, 30_000].into_iter().for_each(|bytes| echo(sides, bytes))
    });
}

#[test]
fn datagrams_go_through_the_driver_of_each_card() {
    for model in ["e1000", "virtio-net"] {
        on(cards(model, &format!("udp-{model}")), |sides| {
            [18, 1472, 4000].into_iter().for_each(|bytes| echo(sides, bytes))
        });
    }
}

#[test]
fn a_stream_arrives_whole_over_a_card_that_cuts_nothing() {
    on(ends().1, |sides| stream(sides, 4 << 20));
}

#[test]
fn a_card_that_cuts_is_handed_packets_of_many_frames() {
    for model in ["e1000", "virtio-net"] {
        on(cards(model, &format!("tcp-{model}")), |sides| {
            stream(sides, 4 << 20);
            let stats = sides[0].stats();
            assert!(
                stats.tx_bytes > 4 << 20 && stats.tx_bytes / stats.tx_packets > 2000,
                "{stats:?}"
            );
            assert_eq!(stats.tx_dropped, 0, "{stats:?}");
        });
    }
}

#[test]
fn what_a_stream_is_received_in_is_put_together() {
    for model in ["e1000", "virtio-net"] {
        on(cards(model, &format!("joined-{model}")), |sides| {
            stream(sides, 4 << 20);
            let stats = sides[1].stats();
            assert!(stats.rx_joined >= JOINED, "{stats:?}");
            assert_eq!(stats.rx_dropped, 0, "{stats:?}");
        });
    }
}

#[test]
fn a_stream_over_ipv6_and_one_in_a_vlan_are_put_together_and_arrive_whole() {
    on(ends().1, |sides| {
        for (number, side) in sides.iter().enumerate() {
            side.namespace.ip(&format!("address add fd00::{}/64 dev card nodad", number + 1));
        }
        stream_to(sides, "[fd00::2]:9".parse().unwrap(), 4 << 20);
        let stats = sides[1].stats();
        assert!(stats.rx_joined >= JOINED, "{stats:?}");
    });
    on(cards("e1000", "joined-vlan"), |sides| {
        for (number, side) in sides.iter().enumerate() {
            if let Err(error) =
                side.namespace.try_ip("link add link card name tagged type vlan id 7")
            {
                return println!("skipped: {error}");
            }
            side.namespace.ip("link set tagged up");
            side.namespace.ip(&format!("address add 10.9.7.{}/24 dev tagged", number + 1));
        }
        stream_to(sides, (Ipv4Addr::new(10, 9, 7, 2), 9).into(), 4 << 20);
        let stats = sides[1].stats();
        assert!(stats.rx_joined >= JOINED, "{stats:?}");
    });
}

#[test]
fn the_interface_has_the_cards_address_and_gets_a_carrier_when_the_cable_is_plugged() {
    let (cable, nics) = ends();
    on(nics, |sides| {
        assert!(sides[1].link().contains("02:00:00:00:00:02"), "{}", sides[1].link());
        cable.plug(false);
        sides[0].wait_for("NO-CARRIER");
        cable.plug(true);
        sides[0].wait_for("LOWER_UP");
        echo(sides, 100);
    });
}

#[test]
fn the_interface_says_how_fast_the_cards_link_is() {
    on(cards("e1000", "speed"), |sides| {
        eventually("1000 Mb/s", || speed(&sides[0].namespace, "card") == "1000\n");
    });
}

#[test]
fn an_interface_that_was_renamed_says_its_speed_and_another_one_of_its_old_name_does_not() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(why) => return println!("skipped: {why}"),
    };
    let shape =
        |name: &str| Shape { name: Some(name.into()), queues: 1, owner: None, persist: false };
    let own = namespace.within(|| Interface::open(&shape("card"))).unwrap();
    namespace.ip("link set card name other");
    let _foreign = namespace.within(|| Interface::open(&shape("card"))).unwrap();
    namespace
        .within(|| own.set_speed(&Link { up: true, speed: Some(2500), full_duplex: Some(true) }));
    namespace.ip("link set other up");
    namespace.ip("link set card up");
    assert_eq!(speed(&namespace, "other"), "2500\n");
    assert_ne!(speed(&namespace, "card"), "2500\n");
}

#[test]
fn an_interface_that_was_moved_to_another_namespace_is_served_on_and_what_its_users_want_there_is_heard()
 {
    let (cable, nics) = ends();
    on(nics, |sides| {
        let there = Namespace::new().unwrap();
        sides[1].namespace.ip(&format!("link set card netns {}", there.path()));
        let _before = std::mem::replace(&mut sides[1].namespace, there);
        sides[1].namespace.ip("link set card name moved");
        sides[1].namespace.ip("link set moved up");
        sides[1].namespace.ip("address add 10.9.8.2/24 dev moved");
        sides[0].namespace.ip("neighbour flush all");
        echo(sides, 100);
        sides[1].namespace.ip("link set moved promisc on");
        eventually("everything", || gets_through(sides, b"not for anybody"));
        sides[1].namespace.ip("link set moved mtu 20000");
        eventually("its MTU set back", || {
            sides[1].namespace.ip("-o link show moved").contains("mtu 1500")
        });
        cable.plug(false);
        eventually("no carrier", || {
            sides[1].namespace.ip("-o link show moved").contains("NO-CARRIER")
        });
        cable.plug(true);
        eventually("a carrier", || {
            sides[1].namespace.ip("-o link show moved").contains("LOWER_UP")
        });
        echo(sides, 100);
        assert!(!poll_ended(&sides[1]), "the export has ended");
        sides[1].namespace.ip("link delete moved");
        eventually("its end", || poll_ended(&sides[1]));
        assert!(matches!(sides[1].stop(), Err(Error::Deleted(_))));
    });
}

/// Whether the side's export has ended by itself.
fn poll_ended(side: &Side) -> bool {
    let ended = side.export.as_ref().unwrap().ended();
    poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&Timespec::default())) == Ok(1)
}

/// What the kernel says of an interface; another namespace's are in a sysfs of its own.
fn speed(namespace: &Namespace, name: &str) -> String {
    let script = format!("mount -t sysfs sysfs /sys && cat /sys/class/net/{name}/speed");
    let output = namespace
        .within(|| Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_mtu_that_is_set_reaches_the_card_and_one_that_is_not_its_own_is_set_back() {
    on(ends().1, |sides| {
        for side in sides.iter() {
            side.namespace.ip("link set card mtu 9000");
        }
        // The cards' queues are opened anew, and what comes meanwhile is lost.
        eventually("a frame of 9,000 bytes", || {
            let (here, there) = (sides[0].udp(0), sides[1].udp(0));
            let to = address(there.local_addr().unwrap().port());
            there.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            here.send_to(&[1; 8972], to).unwrap();
            there.recv(&mut [0; 9000]).is_ok_and(|count| count == 8972)
        });
        let packets = sides[0].stats().tx_packets;
        echo(sides, 8972);
        let sent = sides[0].stats().tx_packets - packets;
        assert!((20..40).contains(&sent), "{sent} packets for 20 datagrams");
        sides[0].namespace.ip("link set card mtu 20000");
        sides[0].wait_for("mtu 9000");
    });
}

#[test]
fn an_address_that_is_set_is_the_cards() {
    on(ends().1, |sides| {
        sides[1].namespace.ip("link set card address 02:00:00:00:00:77");
        sides[0].namespace.ip("neighbour flush all");
        eventually("an answer at the new address", || {
            let (here, there) = (sides[0].udp(0), sides[1].udp(0));
            let to = address(there.local_addr().unwrap().port());
            there.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            here.send_to(b"hello", to).unwrap();
            there.recv(&mut [0; 10]).is_ok()
        });
        assert!(sides[0].namespace.ip("neighbour show 10.9.8.2").contains("02:00:00:00:00:77"));
    });
}

/// Whether a datagram of the first side to 239.1.2.3 gets through the card of the second, whoever
/// wants it there.
fn gets_through(sides: &[Side; 2], word: &[u8]) -> bool {
    sides[0].namespace.ip("route replace 239.0.0.0/8 dev card");
    gets_to(sides, word, "239.1.2.3:77")
}

/// The same of a datagram to any address.
fn gets_to(sides: &[Side; 2], word: &[u8], to: &str) -> bool {
    use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket};
    // All frames, in network order, and without asking the card for more. [packet(7)]
    let all = Protocol::from_raw(std::num::NonZeroU32::new(0x0300).unwrap());
    let frames = sides[1]
        .namespace
        .within(|| socket(AddressFamily::PACKET, SocketType::RAW, Some(all)))
        .unwrap();
    let here = sides[0].udp(0);
    here.send_to(word, to).unwrap();
    let end = Instant::now() + Duration::from_millis(300);
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).unwrap();
        if poll(&mut [PollFd::new(&frames, PollFlags::IN)], Some(&left)) == Ok(0) {
            return false;
        }
        let mut bytes = [0; 2000];
        let (count, _) = recv(&frames, &mut bytes, RecvFlags::empty()).unwrap();
        if bytes[..count].windows(word.len()).any(|part| part == word) {
            return true;
        }
    }
}

#[test]
fn a_group_comes_through_the_cards_filter_once_somebody_has_joined_it() {
    on(ends().1, |sides| {
        assert!(!gets_through(sides, b"nobody wants this"));
        let member = sides[1].udp(77);
        member
            .join_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::new(10, 9, 8, 2))
            .unwrap();
        eventually("the group", || gets_through(sides, b"this is wanted"));
        member
            .leave_multicast_v4(&Ipv4Addr::new(239, 1, 2, 3), &Ipv4Addr::new(10, 9, 8, 2))
            .unwrap();
        eventually("the group's end", || !gets_through(sides, b"this is not wanted any more"));
    });
}

#[test]
fn a_listener_to_everything_opens_the_cards_filter() {
    on(ends().1, |sides| {
        sides[1].namespace.ip("link set card promisc on");
        eventually("everything", || gets_through(sides, b"not for anybody"));
        sides[1].namespace.ip("link set card promisc off");
        eventually("its end", || !gets_through(sides, b"not for anybody again"));
    });
}

#[test]
fn the_address_of_what_is_stacked_on_the_interface_comes_through_the_cards_filter() {
    on(ends().1, |sides| {
        let (other, to) = ("02:00:00:00:00:99", "10.9.8.9:77");
        sides[0].namespace.ip(&format!("neighbour replace 10.9.8.9 lladdr {other} dev card"));
        assert!(!gets_to(sides, b"for nobody", to));
        if let Err(error) = sides[1]
            .namespace
            .try_ip(&format!("link add link card name upper address {other} type macvlan"))
        {
            return println!("skipped: {error}");
        }
        sides[1].namespace.ip("link set upper up");
        eventually("the upper interface's packets", || gets_to(sides, b"for the upper one", to));
    });
}

#[test]
fn a_card_that_hangs_is_recovered_under_its_interface() {
    on(cards("e1000,fault=hang:send:40", "hang"), |sides| stream(sides, 1 << 20));
}

#[test]
fn an_interface_on_which_nothing_happens_wakes_no_thread_that_moves_packets() {
    on(ends().1, |sides| {
        sides.iter().for_each(|side| drop(side.namespace.ip("link set card down")));
        std::thread::sleep(Duration::from_millis(500));
        let before = sides[0].stats().sleeps;
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(sides[0].stats().sleeps, before);
    });
}

#[test]
fn an_interface_that_is_deleted_ends_its_export_with_its_name() {
    on(ends().1, |sides| {
        sides[0].namespace.ip("link delete card");
        let limit = Timespec::try_from(LONG).unwrap();
        let export = sides[0].export.as_ref().unwrap();
        assert_eq!(poll(&mut [PollFd::new(&export.ended(), PollFlags::IN)], Some(&limit)), Ok(1));
        assert!(matches!(sides[0].stop(), Err(Error::Deleted(name)) if name == "card"));
    });
}

#[test]
fn an_interface_goes_with_its_export_and_stays_without_a_carrier_if_that_is_wished() {
    let (_cable, [one, other]) = ends();
    let Ok(namespace) = Namespace::new().inspect_err(|why| println!("skipped: {why}")) else {
        return;
    };
    let start = |nic: &Arc<dyn Nic>, persist| {
        let options = Options {
            name: Some("card".into()),
            persist,
            owner: Some(54321),
            ..Options::default()
        };
        namespace.within(|| TapExport::start(nic.clone(), &options))
    };
    start(&one, false).unwrap().stop().unwrap();
    assert!(!namespace.ip("-o link").contains("card"));
    start(&one, true).unwrap().stop().unwrap();
    assert!(namespace.ip("-d -o link show card").contains("user 54321"));
    namespace.ip("link set card up");
    assert!(namespace.ip("-o link show card").contains("NO-CARRIER"));
    let again = start(&one, false).unwrap();
    assert!(matches!(start(&other, false), Err(Error::Busy(name)) if name == "card"));
    again.stop().unwrap();
    namespace.ip("link delete card");
    namespace.ip("tuntap add dev card mode tun");
    assert!(matches!(start(&one, false), Err(Error::Taken { name, .. }) if name == "card"));
}

#[test]
fn packets_for_which_a_card_has_no_buffer_are_in_the_statistics_of_its_export() {
    let (_cable, [one, other]) = ends();
    let to = one.info().mac.0;
    let Ok(side) = Side::new(one, 1).inspect_err(|why| println!("skipped: {why}")) else { return };
    side.wait_for("LOWER_UP");
    let mut queue = other.open_queues(1, &QueueSettings::default()).unwrap().remove(0);
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&other.info().mac.0);
    // For experiments [IEEE 802], so nobody answers.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut packet = Packet::new(other.dma().arena().alloc(128, 64).unwrap(), 0);
    let mut sent = 0;
    eventually("a loss", || {
        for _ in 0..10_000 {
            packet.fill(&frame).unwrap();
            let mut batch = [std::mem::take(&mut packet)];
            assert_eq!(queue.tx_provide(&mut batch).count, 1);
            assert_eq!(queue.tx_return(&mut batch).unwrap(), 1);
            [packet] = batch;
            sent += 1;
        }
        side.stats().rx_missed > 0
    });
    eventually("each packet is counted once", || {
        let Stats { rx_packets, rx_dropped, rx_missed, .. } = side.stats();
        rx_packets + rx_dropped + rx_missed == sent
    });
}

#[test]
fn an_mtu_that_the_card_does_not_take_is_refused_before_there_is_an_interface() {
    let (_cable, [one, _]) = ends();
    let Err(error) = TapExport::start(one, &Options { mtu: Some(9001), ..Options::default() })
    else {
        panic!("started")
    };
    assert!(error.to_string().contains("68 to 9000"), "{error}");
}

#[test]
fn under_load_packets_go_by_vhost_net_and_afterwards_by_calls_again_and_none_is_lost() {
    if !std::path::Path::new("/dev/vhost-net").exists() {
        return println!("skipped: /dev/vhost-net is missing");
    }
    // Any packets are enough, however little that is to do and however few come together, which is
    // the machine's doing: an echo is a smaller load than a stream.
    let limits = Limits { busy: 0, together: 1, ..Limits::default() };
    let (_cable, [one, other]) = ends();
    let options = Options { engine: Engine::Auto, limits, ..Options::default() };
    let (one, other) = match (Side::with(one, 1, &options), Side::with(other, 2, &options)) {
        (Ok(one), Ok(other)) => (one, other),
        (one, other) => return println!("skipped: {:?} {:?}", one.err(), other.err()),
    };
    let sides = [one, other];
    sides.iter().for_each(|side| side.wait_for("LOWER_UP"));
    eventually("vhost-net", || {
        stream(&sides, 4 << 20);
        sides.iter().all(|side| side.stats().switches > 0)
    });
    eventually("calls again", || {
        echo(&sides, 100);
        std::thread::sleep(Duration::from_millis(200));
        sides.iter().all(|side| side.stats().switches > 1)
    });
    stream(&sides, 4 << 20);
    for side in &sides {
        let stats = side.stats();
        assert!(stats.switches >= 2 && stats.tx_dropped + stats.rx_dropped == 0, "{stats:?}");
    }
}

#[test]
#[ignore = "boots a guest: make test"]
fn everything_here_holds_by_vhost_net_in_a_guest() {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let run = format!("RING3_TEST_ENGINE=vhost {name} --test-threads=1 2>&1");
    let mut guest = ["tun", "vhost_net", "8021q", "macvlan"]
        .into_iter()
        .fold(Guest::new("vhost"), Guest::module);
    guest = guest.program(&program).program(std::path::Path::new("/bin/ip")).step("suite", &run);
    guest.time_limit = Duration::from_secs(900);
    if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
        guest.kernel = kernel;
    }
    let outcome = Cache::open().and_then(|cache| guest.run(&cache, &mut |_| {})).unwrap();
    let output = outcome.output();
    println!("{output}");
    assert!(outcome.succeeded(), "{}{output}", outcome.messages);
    assert!(output.contains("test result: ok") && !output.contains("skipped"), "{output}");
}
