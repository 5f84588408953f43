//! ring3d with two simulated cards on a cable, each of whose drivers runs confined, and interfaces
//! in two network namespaces. Without /dev/net/tun, iproute2 or the right to make namespaces a test
//! is skipped, and says so. `--nocapture` shows what deaths cost.

#[path = "../../../exports/export/tests/namespace/mod.rs"]
mod namespace;
mod supervised;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use namespace::Namespace;
use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);
const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 2);

/// ring3d and its two cards: `one` is here, and `two` was moved there.
struct Bed {
    folder: tempfile::TempDir,
    here: Namespace,
    there: Namespace,
    ring3d: Child,
    /// By whom the other namespace is named.
    sleeper: Child,
}

impl Drop for Bed {
    fn drop(&mut self) {
        for child in [&mut self.ring3d, &mut self.sleeper] {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.folder.path().join("log")).unwrap_or_default());
        }
    }
}

impl Bed {
    fn new(model: &str, cable: &str) -> Result<Self, String> {
        let (here, there) = (Namespace::new()?, Namespace::new()?);
        let folder = tempfile::tempdir().unwrap();
        let throttle = if model == "e1000" { "throttle = \"adaptive\"\n" } else { "" };
        let device = |name: &str, number: u8| {
            format!(
                "[device.{name}]\n{throttle}match = {{ device = \
                 \"sim:{model},wire=cable/{cable},mac=52:54:00:00:00:0{number}\" \
                 }}\n[device.{name}.export]\nkind = \"tap\"\n[device.{name}.restart]\nburst = \
                 1000\n"
            )
        };
        fs::write(folder.path().join("cards.toml"), device("one", 1) + &device("two", 2)).unwrap();
        let [ring3d, driver] = supervised::programs();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(ring3d);
        command
            .arg("--config")
            .arg(folder.path().join("cards.toml"))
            .arg("--socket")
            .arg(folder.path().join("control"));
        command.arg("--program").arg(driver).stdout(Stdio::null()).stderr(log);
        let ring3d = here.within(|| command.spawn().unwrap());
        let sleeper = there.within(|| Command::new("sleep").arg("1000000").spawn().unwrap());
        let bed = Self { folder, here, there, ring3d, sleeper };
        ["one", "two"].iter().for_each(|name| drop(bed.ready(name)));
        bed.here.ip(&format!("link set two netns {}", bed.sleeper.id()));
        for (side, name, address) in [(&bed.here, "one", HERE), (&bed.there, "two", THERE)] {
            side.ip(&format!("address add {address}/24 dev {name}"));
            side.ip(&format!("link set {name} up"));
            eventually("a carrier", || {
                side.ip(&format!("-o link show {name}")).contains("LOWER_UP")
            });
        }
        Ok(bed)
    }

    fn ring3(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
        let output = command
            .args(words)
            .arg("--socket")
            .arg(self.folder.path().join("control"))
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    }

    fn status(&self, name: &str) -> Option<Value> {
        let (done, text) = self.ring3(&["status", name, "--json"]);
        done.then(|| serde_json::from_str::<Value>(&text).unwrap()[0].clone())
    }

    /// Waits until the card is driven, and the next driver waits.
    fn ready(&self, name: &str) -> Value {
        let is_ready = |status: &Value| {
            status["state"] == "running" && status["pid"] != 0 && status["standby"] != 0
        };
        let mut seen = Value::Null;
        eventually("a driver and its standby", || {
            seen = self.status(name).unwrap_or_default();
            is_ready(&seen)
        });
        seen
    }

    /// Kills the driver of `one`, and waits until another one drives.
    fn kill(&self) {
        let before = self.ready("one");
        let pid = before["pid"].as_i64().unwrap() as i32;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        eventually("another driver", || {
            self.status("one").is_some_and(|status| {
                status["restarts"] != before["restarts"] && status["state"] == "running"
            })
        });
    }

    /// Kills ring3d, whom nobody follows and in whose process the cards were: their drivers end,
    /// whatever they do.
    fn end(&mut self) {
        let pids = ["one", "two"].map(|name| self.ready(name)["pid"].clone());
        self.ring3d.kill().unwrap();
        let ended = |pid: &Value| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| {
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
            })
        };
        eventually("an end of both drivers", || pids.iter().all(ended));
    }

    /// What the kernel says of `one`: flags, index, MTU, address, and its addresses of IP, without
    /// what counts up.
    fn one(&self) -> String {
        self.here.ip("-o address show one") + &self.here.ip("-o link show one")
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `test` on two cards of `model`, or says that it is skipped.
fn on(model: &str, cable: &str, test: impl FnOnce(&Bed)) {
    match Bed::new(model, cable) {
        Ok(mut bed) => {
            test(&bed);
            bed.end();
        }
        Err(why) => println!("skipped: {why}"),
    }
}

/// Byte number `at` of a stream.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b1) >> 13) as u8
}

/// Numbered datagrams, one a millisecond, until `stop`; what of them has come, and the longest time
/// without one.
fn datagrams(bed: &Bed, stop: &AtomicBool) -> (u32, u32, Duration) {
    let socket = |side: &Namespace, address: Ipv4Addr| {
        side.within(|| UdpSocket::bind(SocketAddr::from((address, 7)))).unwrap()
    };
    let (from, to) = (socket(&bed.here, HERE), socket(&bed.there, THERE));
    to.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                from.send_to(&u32::to_ne_bytes(sent), (THERE, 7)).unwrap();
                sent += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            sent
        });
        let (mut came, mut longest, mut last) = (0, Duration::ZERO, Instant::now());
        while to.recv(&mut [0; 4]).is_ok() {
            came += 1;
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        (sender.join().unwrap(), came, longest)
    })
}

/// Sends a stream until `stop`, whose every byte is checked at the other end; its length.
fn stream(bed: &Bed, stop: &AtomicBool) -> usize {
    let listener = bed.there.within(|| TcpListener::bind((THERE, 9))).unwrap();
    let mut from = bed.here.within(|| TcpStream::connect((THERE, 9))).unwrap();
    from.set_write_timeout(Some(LONG)).unwrap();
    let (mut to, _) = listener.accept().unwrap();
    to.set_read_timeout(Some(LONG)).unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let piece: Vec<u8> = (sent..sent + 8192).map(byte).collect();
                from.write_all(&piece).unwrap();
                sent += piece.len();
            }
            sent
        });
        let (mut at, mut piece) = (0, [0; 8192]);
        loop {
            let count = to.read(&mut piece).unwrap();
            if count == 0 {
                break;
            }
            assert!(
                (at..).zip(&piece[..count]).all(|(at, &found)| found == byte(at)),
                "another byte near {at}"
            );
            at += count;
        }
        assert_eq!(sender.join().unwrap(), at);
        at
    })
}

#[test]
fn an_interface_its_carrier_and_its_connections_survive_its_drivers() {
    on("e1000", "survives", |bed| {
        eventually("addresses that nobody else has", || !bed.one().contains("tentative"));
        let before = bed.one();
        let monitor = bed.here.within(|| {
            let file = fs::File::create(bed.folder.path().join("monitor")).unwrap();
            Command::new("ip")
                .args(["-o", "monitor", "link", "address", "route"])
                .stdout(file)
                .spawn()
                .unwrap()
        });
        let stop = AtomicBool::new(false);
        let (bytes, (sent, came, longest)) = std::thread::scope(|scope| {
            let (stream, datagrams) =
                (scope.spawn(|| stream(bed, &stop)), scope.spawn(|| datagrams(bed, &stop)));
            std::thread::sleep(Duration::from_secs(1));
            for _ in 0..10 {
                bed.kill();
            }
            std::thread::sleep(Duration::from_secs(2));
            stop.store(true, Ordering::Relaxed);
            (stream.join().unwrap(), datagrams.join().unwrap())
        });
        let mut monitor = monitor;
        let _ = monitor.kill();
        let _ = monitor.wait();
        let said = fs::read_to_string(bed.folder.path().join("monitor")).unwrap();
        let status = bed.ready("one");
        let outages: Vec<_> = status["outages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|outage| outage["total_ms"].clone())
            .collect();
        println!(
            "10 deaths: {bytes} bytes of a connection; of {sent} datagrams, one a millisecond, {} \
            lost, {} ms without one; outages {outages:?} ms",
            sent - came,
            longest.as_millis()
        );
        assert_eq!(bed.one(), before);
        assert!(!said.contains("NO-CARRIER") && !said.contains("Deleted"), "{said}");
        assert!(bytes > 0 && came > 0);
        assert_eq!(status["restarts"], 10);
    });
}

#[test]
fn what_is_wanted_of_an_interface_reaches_its_confined_driver_wherever_the_interface_is() {
    on("e1000", "wanted", |bed| {
        let confined =
            fs::read_to_string(format!("/proc/{}/status", bed.ready("one")["pid"])).unwrap();
        assert!(
            confined.contains("CapEff:\t0000000000000000") && confined.contains("Seccomp:\t2"),
            "{confined}"
        );
        for (side, name) in [(&bed.here, "one"), (&bed.there, "two")] {
            side.ip(&format!("link set {name} mtu 9000"));
        }
        bed.there.ip("link set two address 52:54:00:00:00:77");
        let socket = |side: &Namespace, address: Ipv4Addr| {
            side.within(|| UdpSocket::bind(SocketAddr::from((address, 7)))).unwrap()
        };
        let (from, to) = (socket(&bed.here, HERE), socket(&bed.there, THERE));
        to.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        eventually("a datagram that needs all of the MTU and the new address", || {
            from.send_to(&[7; 8900], (THERE, 7)).unwrap();
            to.recv(&mut [0; 9000]).is_ok_and(|len| len == 8900)
        });
        bed.here.ip("link set one mtu 60000");
        eventually("an MTU that is set back", || bed.one().contains("mtu 9000"));
        let (done, status) = bed.ring3(&["status", "two"]);
        assert!(done && status.contains("52:54:00:00:00:77, MTU 9000"), "{status}");
    });
}

#[test]
fn an_interface_is_taken_when_it_is_down_and_made_anew_when_somebody_has_deleted_it() {
    on("virtio-net", "stopped", |bed| {
        let (done, why) = bed.ring3(&["stop", "one"]);
        assert!(!done && why.contains("it is up (ip link set one down)"), "{why}");
        bed.here.ip("link set one down");
        eventually("a stop", || bed.ring3(&["stop", "one"]).0);
        eventually("no interface", || bed.here.try_ip("link show one").is_err());
        assert!(bed.ring3(&["restart", "one"]).0);
        bed.ready("one");
        bed.here.ip("link delete one");
        eventually("another interface", || bed.here.try_ip("link show one").is_ok());
        bed.ready("one");
        assert!(bed.ring3(&["restart", "one"]).0 && bed.here.try_ip("link show one").is_ok());
    });
}
