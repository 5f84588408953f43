//! `ring3 serve net`: one card for several programs, as a stranger uses it: each in a network
//! namespace of its own, with an interface of its own, beside whoever is at the other end of the
//! cable.

#[path = "../../../exports/export/tests/namespace/mod.rs"]
mod namespace;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use namespace::Namespace;
use ring3_backend::OpenOptions;
use ring3_class::net::Mac;
use ring3_model::vfio_user::{Running, VfioUserServer};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take.
const SOON: Duration = Duration::from_secs(30);

fn ring3() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ring3"))
}

/// A process of ring3's that says when it is there, as JSON, and is ended with this.
struct Process {
    child: Child,
    facts: Value,
}

impl Process {
    fn start(command: &mut Command) -> Self {
        let mut child = command.arg("--json").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let facts = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { child, facts }
    }

    /// Ends it as a user does.
    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `device` on a socket in `folder` for each of `terms`, and what its clients call them.
fn serve(device: &str, folder: &Path, terms: &[&str]) -> (Process, Vec<String>) {
    let mut command = ring3();
    command.args(["serve", "net", "--device", device]);
    let paths: Vec<_> =
        (0..terms.len()).map(|index| format!("{}/{index}", folder.display())).collect();
    paths.iter().zip(terms).for_each(|(path, terms)| {
        command.arg("--socket").arg(format!("{path}{terms}"));
    });
    (Process::start(&mut command), paths.iter().map(|path| format!("remote:{path}")).collect())
}

fn net(args: &[&str]) -> Output {
    ring3().arg("net").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A network namespace with a card as an interface `net0` in it.
struct Place {
    namespace: Namespace,
    address: Ipv4Addr,
    card: Process,
}

impl Place {
    /// With `device` as `10.9.0.last`; `None` where there are no namespaces or TAPs for this user.
    fn new(device: &str, last: u8) -> Option<Self> {
        let namespace = Namespace::new().inspect_err(|why| println!("skipped: {why}")).ok()?;
        let mut command = ring3();
        command.args(["run", "net", "--name", "net0", "--device", device]);
        let card = namespace.within(|| Process::start(&mut command));
        let address = Ipv4Addr::new(10, 9, 0, last);
        namespace.ip(&format!("address add {address}/24 dev net0"));
        namespace.ip("link set net0 promisc on up");
        Some(Self { namespace, address, card })
    }

    fn mac(&self) -> Mac {
        serde_json::from_value(self.card.facts["mac"].clone()).unwrap()
    }

    /// Whether somebody at `to` answers an echo request. [RFC 792]
    fn pings(&self, to: Ipv4Addr) -> bool {
        let socket = self.namespace.within(|| raw(AddressFamily::INET, ipproto::ICMP));
        let deadline = Instant::now() + SOON;
        let address = SocketAddr::from((to, 0));
        while Instant::now() < deadline {
            // Type 8, with identifier and number 7, and the sum of that.
            let request = [8, 0, 0xf7, 0xf1, 0, 7, 0, 7];
            let _ = rustix::net::sendto(&socket, &request, SendFlags::DONTWAIT, &address);
            std::thread::sleep(Duration::from_millis(50));
            while let Some(packet) = receive(&socket) {
                if packet.get(12..16) == Some(&to.octets())
                    && packet.get(20..28) == Some(&[0, 0, 0xff, 0xf1, 0, 7, 0, 7])
                {
                    return true;
                }
            }
        }
        false
    }

    /// Sends `bytes` to `other` by TCP and gets them back.
    fn exchanges(&self, other: &Self, bytes: &[u8]) -> bool {
        let listener = other.namespace.within(|| TcpListener::bind((other.address, 0)).unwrap());
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = stream.try_clone().unwrap();
                std::io::copy(&mut reader, &mut stream).unwrap();
            });
            let mut stream = self.namespace.within(|| TcpStream::connect(address).unwrap());
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut writer = stream.try_clone().unwrap();
            scope.spawn(move || {
                writer.write_all(bytes).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            back == bytes
        })
    }

    /// All frames that are seen in there while `work` runs.
    fn sees(&self, work: impl FnOnce()) -> Vec<Vec<u8>> {
        // Everything, on every interface. [packet(7)]
        let every = Protocol::from_raw(std::num::NonZeroU32::new(u32::from(3u16.to_be())).unwrap());
        let socket = self.namespace.within(|| raw(AddressFamily::PACKET, every));
        let (over, mut seen) = (AtomicBool::new(false), Vec::new());
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    seen.extend(std::iter::from_fn(|| receive(&socket)));
                    std::thread::sleep(Duration::from_millis(1));
                }
                seen.extend(std::iter::from_fn(|| receive(&socket)));
            });
            let _ends = Ends(&over);
            work();
            drop(_ends);
            watch.join().unwrap();
        });
        seen
    }
}

/// Says that it is over, when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn raw(family: AddressFamily, protocol: Protocol) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol)).unwrap()
}

/// The next packet, if there is one; its first bytes.
fn receive(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 128];
    let (count, _) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
    bytes.truncate(count);
    Some(bytes)
}

/// Two models on one cable, each behind a socket of its own, as vfio-user has it.
fn pair(model: &str, folder: &Path) -> [(Running, String); 2] {
    [1, 2].map(|end| {
        let uri = format!("sim:{model},wire=cable/{},mac=52:54:00:00:00:0{end}", folder.display())
            .parse()
            .unwrap();
        let options = OpenOptions { arena: 4096, ..OpenOptions::default() };
        let socket = folder.join(format!("card{end}"));
        let running = VfioUserServer::bind(&socket, ring3_model::open(&uri, options).unwrap())
            .unwrap()
            .spawn()
            .unwrap();
        (running, format!("vfio-user:{}", socket.display()))
    })
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at / 3) as u8).collect()
}

#[test]
fn two_namespaces_share_a_card_and_reach_each_other_and_the_wire_and_see_nothing_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let [(_one, shared), (_other, whole)] = pair("e1000", folder.path());
    let (server, sockets) = serve(&shared, folder.path(), &["", ""]);
    let Some(a) = Place::new(&sockets[0], 1) else { return };
    let (b, peer) = (Place::new(&sockets[1], 2).unwrap(), Place::new(&whole, 3).unwrap());
    assert!(a.mac() != b.mac() && a.mac() != peer.mac());
    for (from, to) in [(&a, &b), (&b, &a), (&a, &peer), (&b, &peer), (&peer, &a), (&peer, &b)] {
        assert!(from.pings(to.address), "{} does not reach {}", from.address, to.address);
    }
    let data = bytes(2 << 20);
    for (from, to) in [(&a, &b), (&b, &peer)] {
        assert!(
            from.exchanges(to, &data),
            "{} and {} do not understand each other",
            from.address,
            to.address
        );
    }
    // Each looks at all that its card gives it, while the others talk.
    for (watcher, from, to) in [(&b, &a, &peer), (&a, &b, &peer), (&peer, &a, &b)] {
        let seen = watcher.sees(|| {
            assert!(watcher.pings(from.address) && from.exchanges(to, &data));
        });
        let own =
            |frame: &Vec<u8>| frame[..6] == watcher.mac().0 || frame[6..12] == watcher.mac().0;
        assert!(seen.iter().any(own), "it does not see its own");
        let strange =
            seen.iter().find(|frame| frame[0] & 1 == 0 && !own(frame) && frame[..6] != [0; 6]);
        assert!(strange.is_none(), "{} sees what is not for it: {strange:02x?}", watcher.address);
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn namespaces_in_two_vlans_of_one_card_reach_those_in_their_own_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, sockets) =
        serve("sim:virtio-net", folder.path(), &[",vlan=7,clients=2", ",vlan=8"]);
    let Some(a) = Place::new(&sockets[0], 1) else { return };
    let (b, c) = (Place::new(&sockets[0], 2).unwrap(), Place::new(&sockets[1], 3).unwrap());
    let seen = c.sees(|| assert!(a.pings(b.address) && a.exchanges(&b, &bytes(100_000))));
    let strange = seen.iter().find(|frame| frame[6..12] == a.mac().0 || frame[6..12] == b.mac().0);
    assert!(strange.is_none(), "VLAN 8 sees what is VLAN 7's: {strange:02x?}");
}

#[test]
fn one_that_is_killed_under_load_takes_nothing_of_the_others_and_its_place_is_free_again() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, sockets) = serve("sim:e1000", folder.path(), &["", "", ",clients=1"]);
    let Some(a) = Place::new(&sockets[0], 1) else { return };
    let b = Place::new(&sockets[1], 2).unwrap();
    for _ in 0..3 {
        let mut c = Place::new(&sockets[2], 3).unwrap();
        assert!(a.pings(c.address));
        std::thread::scope(|scope| {
            let talk = scope.spawn(|| a.exchanges(&b, &bytes(500_000)));
            // In the middle of whatever it does.
            c.card.child.kill().unwrap();
            assert!(talk.join().unwrap());
        });
        a.namespace.ip("neighbour flush dev net0");
    }
}

#[test]
fn what_a_part_of_a_card_is_is_said_and_the_end_of_its_server_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (server, sockets) =
        serve("sim:e1000", folder.path(), &[",mac=02:00:00:00:00:77,clients=1"]);
    assert_eq!(server.facts["addresses"][0][0], "02:00:00:00:00:77", "{}", server.facts);
    let card: Value =
        serde_json::from_slice(&net(&["info", "--device", &sockets[0], "--json"]).stdout).unwrap();
    assert_eq!(
        (&card["mac"], &card["shared"]),
        (&"02:00:00:00:00:77".into(), &true.into()),
        "{card}"
    );
    let said = text(
        &ring3().args(["blk", "check", "--destroy", "--device", &sockets[0]]).output().unwrap(),
    );
    assert!(said.contains("disk"), "{said}");
    assert_eq!(server.stop(), Some(0));
    let said = text(&net(&["info", "--device", &sockets[0]]));
    assert!(said.contains("ring3 serve"), "{said}");
}

#[test]
fn the_suite_passes_in_a_process_beside_the_drivers_with_a_peer_in_a_third() {
    let folder = tempfile::tempdir().unwrap();
    let [(_one, shared), (_other, whole)] = pair("virtio-net", folder.path());
    let (_server, sockets) = serve(&shared, folder.path(), &[""]);
    let output = net(&["check", "--device", &sockets[0], "--peer", &whole, "--packets", "100"]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn terms_that_make_no_sense_are_refused_with_what_would() {
    for (terms, says) in [
        ("vlan=0", "from 1 to 4094"),
        ("mac=01:00:00:00:00:01", "one card"),
        ("access=ro", "there are: mode"),
    ] {
        let output = ring3()
            .args([
                "serve",
                "net",
                "--device",
                "sim:e1000",
                "--socket",
                &format!("/tmp/none,{terms}"),
            ])
            .output()
            .unwrap();
        assert!(!output.status.success() && text(&output).contains(says), "{}", text(&output));
    }
    let output = ring3()
        .args(["serve", "net", "--device", "sim:nvme", "--socket", "/tmp/none"])
        .output()
        .unwrap();
    assert!(text(&output).contains("no network card"), "{}", text(&output));
}
