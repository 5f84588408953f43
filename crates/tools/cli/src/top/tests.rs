//! The screen, by a terminal of the test's own, and looks at a ring3d that the test plays.

use std::sync::{Arc, Mutex};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ring3_control::admin::VERSION;
use ring3_control::status::{DiskStatus, InterfaceStatus, Outage, State};
use ring3_lease::Channel;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
};

use super::*;

fn device(name: &str, work: u64) -> DeviceStatus {
    let disk = DiskStatus {
        path: format!("/dev/ublkb-{name}"),
        link: None,
        bytes: 1 << 30,
        disk: "vfio:0000:01:00.0 namespace 1".into(),
        block_size: 512,
        queues: 1,
        reads: 1000 * work,
        writes: 500 * work,
        bytes_read: work << 22,
        bytes_written: work << 21,
        io_ms: 150 * work,
        in_flight: 0,
        errors: 0,
        partitions: Vec::new(),
        table: None,
    };
    DeviceStatus {
        name: name.into(),
        device: "vfio:0000:01:00.0".into(),
        driver: "nvme".into(),
        state: State::Running,
        since: 0,
        pid: 1,
        standby: 2,
        disks: vec![disk],
        interfaces: Vec::new(),
        restarts: 0,
        upgrades: 0,
        last_end: None,
        outages: Vec::new(),
        interrupts: 700 * work,
        iommu_faults: 0,
        cpu_ms: 250 * work,
        memory: 0,
        shared_hits: 0,
        unlimited: Vec::new(),
    }
}

/// Of a card that has lost nine packets.
fn interface() -> InterfaceStatus {
    InterfaceStatus {
        name: "lan".into(),
        index: 7,
        mac: "02:00:00:00:00:01".into(),
        mtu: 1500,
        queues: 1,
        up: true,
        carrier: true,
        rx_packets: 0,
        rx_bytes: 0,
        rx_dropped: 0,
        tx_packets: 0,
        tx_bytes: 0,
        tx_dropped: 0,
        rx_missed: 2,
        rx_errors: 3,
        tx_lost: 4,
    }
}

fn failed(name: &str) -> DeviceStatus {
    let outage = Outage {
        at: 0,
        cause: String::new(),
        fence_ms: 0.0,
        driver_ms: 0.0,
        export_ms: 0.0,
        total_ms: Some(41.25),
        reset: false,
        adopted: false,
    };
    DeviceStatus {
        state: State::Failed,
        restarts: 6,
        iommu_faults: 3,
        outages: vec![outage],
        disks: Vec::new(),
        interfaces: vec![interface()],
        ..device(name, 1)
    }
}

fn rows() -> Vec<Rates> {
    let since = Duration::from_secs(2);
    vec![
        rates(Some(&device("scratch", 1)), &device("scratch", 3), since),
        rates(Some(&failed("archive")), &failed("archive"), since),
        rates(None, &DeviceStatus { state: State::BackingOff, ..device("new", 9) }, since),
    ]
}

/// What a terminal of that size shows.
fn picture(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line =
        |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> Wish {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn rates_are_what_was_done_between_two_looks() {
    let row = &rows()[0];
    assert_eq!((row.iops, row.mib_per_s, row.latency_ms), (1500.0, 6.0, Some(0.1)));
    assert_eq!((row.interrupts_per_s, row.cpu_percent, row.outage_ms), (700.0, 25.0, None));
    // A process that has begun anew counts from 0.
    let since = Duration::from_secs(1);
    assert_eq!(rates(Some(&device("a", 9)), &device("a", 1), since).interrupts_per_s, 700.0);
    assert_eq!(rates(None, &device("a", 9), since).iops, 0.0);
}

#[test]
fn a_screen_has_a_line_for_each_device() {
    let mut screen = Screen::default();
    screen.update(rows());
    let expected = [
        "ring3 top: 1 of 3 devices running, 1500 IOPS, by DEVICE",
        " DEVICE           STATE            IOPS     MIB/S   LAT MS  CPU %    IRQ/S RESTARTS \
        OUTAGE MS  FAULTS    LOST",
        ">archive          failed              0       0.0        -    0.0        0        6      \
        41.2       3       9",
        " new              backing off         0       0.0        -    0.0        0        \
         0         -       0       0",
        " scratch          running          1500       6.0    0.100   25.0      700        \
         0         -       0       0",
        "q quit  s sort  r restart  up/down select",
    ];
    assert_eq!(picture(&mut screen, 120, 6), expected);
    let lines = screen::lines(&rows());
    assert_eq!(lines[0], expected[1][1..]);
    assert_eq!(lines[1], expected[4][1..]);
}

#[test]
fn a_small_terminal_shows_what_matters_most_and_none_is_too_small() {
    let mut screen = Screen::default();
    screen.update(rows());
    assert_eq!(picture(&mut screen, 40, 4)[2], ">archive          failed              0");
    for (width, height) in [(0, 0), (1, 1), (5, 2), (80, 1), (80, 3), (18, 24), (500, 3)] {
        picture(&mut screen, width, height);
    }
}

#[test]
fn a_selected_device_stays_selected_and_in_sight_among_a_hundred() {
    let many = |work: fn(u64) -> u64| {
        (0..100).map(move |n| {
            rates(
                Some(&device(&format!("d{n:03}"), 0)),
                &device(&format!("d{n:03}"), work(n)),
                Duration::from_secs(1),
            )
        })
    };
    let mut screen = Screen::default();
    screen.update(many(|n| n).collect());
    press(&mut screen, KeyCode::End);
    assert!(picture(&mut screen, 80, 10)[8].starts_with(">d099"));
    // By IOPS, the busiest first.
    press(&mut screen, KeyCode::Char('s'));
    press(&mut screen, KeyCode::Char('s'));
    assert!(picture(&mut screen, 80, 10)[2].starts_with(">d099"));
    screen.update(many(|n| 200 - n).collect());
    assert!(picture(&mut screen, 80, 10).iter().any(|line| line.starts_with(">d099")));
    for _ in 0..200 {
        press(&mut screen, KeyCode::Down);
    }
    screen.update(many(|n| n).take(3).collect());
    assert!(picture(&mut screen, 80, 10).iter().any(|line| line.starts_with(">d00")));
}

#[test]
fn a_restart_is_asked_about_and_done_only_after_a_yes() {
    let mut screen = Screen::default();
    assert_eq!(press(&mut screen, KeyCode::Char('r')), Wish::Nothing);
    screen.update(rows());
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(picture(&mut screen, 80, 6)[5], "restart new? its I/O waits meanwhile (y/n)");
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Wish::Nothing);
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(press(&mut screen, KeyCode::Char('y')), Wish::Restart("new".into()));
    screen.say("new serves again");
    assert_eq!(picture(&mut screen, 80, 6)[5], "new serves again");
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Wish::Quit);
    assert_eq!(screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Wish::Quit);
}

#[test]
fn figures_of_a_ring3d_that_is_gone_are_said_to_be_old_and_nothing_is_restarted_by_them() {
    let mut screen = Screen::default();
    screen.update(rows());
    screen.lose("ring3d has closed the connection");
    assert_eq!(picture(&mut screen, 80, 6)[5], "old figures: ring3d has closed the connection");
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(press(&mut screen, KeyCode::Char('y')), Wish::Nothing);
    screen.update(rows());
    assert!(picture(&mut screen, 80, 6)[5].starts_with("q quit"));
}

/// A ring3d whose devices do something between any two looks; it serves as many connections as
/// `lives` says, one look or command each after the first.
fn play(folder: &Path, connections: u32, looks: u32) -> (PathBuf, Arc<Mutex<Vec<Command>>>) {
    let path = folder.join("control");
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut work = 0;
        for _ in 0..connections {
            let channel = Channel::new(accept(&socket).unwrap(), LOOK, true).unwrap();
            for _ in 0..=looks {
                let Ok(Some((command, _))) = channel.receive::<Command>() else { break };
                let reply = match &command {
                    Command::Hello { .. } => Reply::Hello { version: VERSION, pid: 1 },
                    Command::Status => {
                        work += 1;
                        Reply::Status(vec![device("scratch", work)])
                    }
                    Command::Restart { name } if name == "scratch" => Reply::Done,
                    _ => Reply::Refused("there is no such device; ring3 status lists them".into()),
                };
                heard.lock().unwrap().push(command);
                channel.send(&reply, &[]).unwrap();
            }
        }
    });
    (path, asked)
}

#[test]
fn a_ring3d_that_dies_is_asked_anew_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = play(folder.path(), 2, 2);
    let mut looks = Looks::new(&path).unwrap();
    assert!(looks.next().unwrap()[0].iops > 0.0);
    // It has closed the connection; the next look fails, and the one after it meets the next
    // ring3d.
    assert!(looks.next().is_err());
    assert!(looks.next().unwrap()[0].iops > 0.0);
}

#[test]
fn a_restart_says_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (path, asked) = play(folder.path(), 2, 1);
    assert_eq!(restart(&path, "scratch".into()).recv().unwrap(), "scratch serves again");
    assert_eq!(asked.lock().unwrap().last(), Some(&Command::Restart { name: "scratch".into() }));
    assert!(restart(&path, "other".into()).recv().unwrap().contains("ring3 status lists them"));
}

#[test]
fn without_a_ring3d_it_is_said_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let error = Looks::new(&folder.path().join("none")).err().unwrap();
    assert!(format!("{error:#}").contains("start ring3d"), "{error:#}");
}
