//! Recordings and what is made of them, over our models and over QEMU's.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::Disk;
use ring3_decorator::recording::{Event, Recording, Register};
use ring3_decorator::{Fault, Record, Replay, VirtualConfig};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::edu::{Edu, REACH};
use ring3_driver::{Interrupts, ata, nvme};
use ring3_spec::nvme::registers::CC;
use ring3_spec::{edu, pci};

const EDU: [&str; 2] = ["sim:edu", "qtest:edu"];

/// A file that a test can read.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn text(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
    fn recording(&self) -> Recording {
        Recording::read(&*self.text()).unwrap()
    }
}

fn open(uri: &str) -> Arc<dyn Device> {
    let uri: Uri = uri.parse().unwrap();
    let below = if uri.target == "edu" { REACH } else { u64::MAX };
    ring3_backend::open(&uri, OpenOptions { arena: 4 << 20, below, ..OpenOptions::default() }).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// What `job` does with `device`, recorded.
fn record<T>(device: Arc<dyn Device>, job: impl FnOnce(Arc<dyn Device>) -> T) -> (Recording, T) {
    let paper = Paper::default();
    let result = job(Arc::new(Record::new(device, paper.clone()).unwrap()));
    (paper.recording(), result)
}

fn replay<T>(recording: &Recording, job: impl FnOnce(Arc<dyn Device>) -> T) -> (Arc<Replay>, T) {
    let replay = Arc::new(Replay::new(recording.clone()).unwrap());
    let result = job(replay.clone());
    (replay, result)
}

/// Registers, an interrupt, a reset: all that needs no memory.
fn factorials(device: Arc<dyn Device>) -> Vec<u32> {
    let mut driver = Edu::attach(device.clone()).unwrap();
    let mut results = vec![driver.factorial(12, soon()).unwrap()];
    driver.wait_by(Some(IrqKind::Msi)).unwrap();
    results.push(driver.factorial(5, soon()).unwrap());
    device.reset().unwrap();
    results.push(u32::from(device.config_write(pci::BAR0, 4, 0).is_err()));
    results
}

#[test]
fn a_driver_of_registers_and_interrupts_does_the_same_with_the_recording_as_with_the_device() {
    for uri in EDU {
        let (recording, results) = record(open(uri), factorials);
        assert_eq!((&results[..], recording.lost()), (&[479_001_600, 120, 1][..], 0), "{uri}");
        let (replay, again) = replay(&recording, factorials);
        assert_eq!((again, replay.check_end()), (results, Ok(())), "{uri}");
    }
}

#[test]
fn a_recording_says_what_passed_in_order() {
    let (recording, _) = record(open("sim:edu"), |device| {
        let bar = device.bar(0).unwrap();
        bar.write32(edu::LIVENESS.offset(), 1);
        bar.read32(edu::LIVENESS.offset());
        device.set_bus_master(true).unwrap();
        device.config_write(pci::BAR0, 4, 7).unwrap_err();
        device.reset().unwrap();
        assert_eq!(device.irqs(IrqKind::Msi, 1).unwrap().len(), 1);
    });
    let liveness = Register(0, 4, 4);
    let expected = [
        Event::Write(liveness, 1),
        Event::Read(liveness, 0xffff_fffe),
        Event::BusMaster(true),
        Event::Write(Register(7, 0x10, 4), 7),
        Event::Refused,
        Event::Reset,
        Event::Irqs(IrqKind::Msi, 1),
    ];
    assert_eq!(recording.events, expected);
    assert_eq!(recording.header.device, "sim:edu");
}

/// The controller takes no identify command: what is left of the initialisation is registers.
fn nvme_start(device: Arc<dyn Device>) -> String {
    let options = nvme::Options { timeout: Duration::from_millis(80), ..nvme::Options::default() };
    nvme::Controller::open(device, options).err().unwrap().to_string()
}

fn nvme_recording() -> (Recording, String) {
    record(open("sim:nvme,fault=drop:identify:1:all"), nvme_start)
}

#[test]
fn the_nvme_drivers_initialisation_comes_to_the_same_end_with_its_recording() {
    let (recording, end) = nvme_recording();
    assert!(end.contains("an admin command took longer"), "{end}");
    assert!(recording.events.iter().any(|event| matches!(event, Event::Write(Register(0, at, 4), _) if *at == CC.offset())));
    let (replay, again) = replay(&recording, nvme_start);
    assert_eq!((again, replay.check_end()), (end, Ok(())));
}

/// Through ports, a drive says what it is word by word.
fn ide_by_ports(device: Arc<dyn Device>) -> String {
    let options = ata::Options { level: ata::Level::Pio, interrupts: Interrupts::Polled, ..ata::Options::default() };
    let controller = ata::ide::Controller::open(device, options).unwrap();
    format!("{:?}", controller.drives()[0].info())
}

#[test]
fn a_driver_that_uses_no_memory_is_replayed_to_its_end() {
    let (recording, info) = record(open("sim:ide"), ide_by_ports);
    let (replay, again) = replay(&recording, ide_by_ports);
    assert_eq!((again, replay.check_end()), (info, Ok(())));
}

#[test]
fn a_changed_driver_is_caught_at_the_first_write_that_is_different() {
    let (recording, end) = nvme_recording();
    let enable = |event: &&Event| matches!(event, Event::Write(Register(0, at, 4), _) if *at == CC.offset());
    let expected = recording.events.iter().filter(enable).nth(1).copied().unwrap();
    // The second write of CC has other entry sizes.
    let (replay, again) =
        replay(&recording, |device| nvme_start(Arc::new(Fault::new(device, "set/0xf00000:write#0@0x14:2".parse().unwrap()))));
    let Some(divergence) = replay.divergence() else { panic!("not caught") };
    let Event::Write(register, value) = expected else { panic!() };
    assert_eq!((divergence.expected, divergence.found), (Some(expected), Some(Event::Write(register, value | 0xf0_0000))));
    assert_eq!(recording.events[divergence.line - 2], expected);
    assert!(again != end && again.contains("gone"), "{again}");
}

#[test]
fn a_driver_that_stops_early_is_told_what_was_next() {
    let (recording, _) = record(open("sim:edu"), factorials);
    let (replay, _) = replay(&recording, |device| drop(Edu::attach(device).unwrap()));
    let left = replay.check_end().unwrap_err();
    assert!(matches!((left.expected, left.found), (Some(Event::Write(..)), None)), "{left}");
    assert!(left.to_string().starts_with(&format!("line {} of the recording: Write(", left.line)), "{left}");
}

#[test]
fn a_register_may_be_polled_more_or_less_often_than_it_was() {
    let (recording, _) = record(open("sim:edu"), |device| {
        let bar = device.bar(0).unwrap();
        bar.write32(4, 1);
        assert_eq!([bar.read32(4), bar.read32(4), bar.read32(4)], [!1; 3]);
        bar.write32(4, 2);
        bar.read32(4);
    });
    let (replay, ()) = replay(&recording, |device| {
        let bar = device.bar(0).unwrap();
        bar.write32(4, 1);
        assert_eq!(bar.read32(4), !1);
        bar.write32(4, 2);
        assert_eq!([bar.read32(4), bar.read32(4)], [!2; 2]);
    });
    assert_eq!(replay.check_end(), Ok(()));
}

#[test]
fn a_read_that_was_never_recorded_is_a_difference() {
    let (recording, _) = record(open("sim:edu"), |device| device.bar(0).unwrap().read32(0));
    let (replay, value) = replay(&recording, |device| device.bar(0).unwrap().read32(8));
    assert_eq!((value, replay.divergence().unwrap().found), (u32::MAX, Some(Event::Read(Register(0, 8, 4), u64::MAX))));
    assert_eq!(replay.bar(0).unwrap().read32(0), u32::MAX, "and the device is gone");
}

#[test]
fn a_fault_that_was_recorded_comes_back_without_its_rule() {
    let faulty = Fault::new(open("sim:nvme"), "clear/0x1:read#0@0x1c:1:all".parse().unwrap());
    let (recording, end) = record(Arc::new(faulty), nvme_start);
    assert!(end.contains("CSTS.RDY = 1"), "{end}");
    let (_, again) = replay(&recording, nvme_start);
    assert_eq!(again, end);
}

#[test]
fn decorators_stand_around_each_other_in_any_order() {
    for uri in EDU {
        let paper = Paper::default();
        let plan = "value/0x10ed:read#0@0:2".parse().unwrap();
        let outer =
            Record::new(Arc::new(VirtualConfig::new(Arc::new(Fault::new(open(uri), plan)), |_| {})), paper.clone()).unwrap();
        let device: Arc<dyn Device> = Arc::new(Fault::new(Arc::new(outer), "drop:write#0@4".parse().unwrap()));
        let driver = Edu::attach(device.clone()).unwrap();
        assert_eq!(driver.version().unwrap(), (0, 0), "{uri}");
        assert!(driver.check_liveness(1).is_err());
        device.config_write(pci::BAR0, 4, u32::MAX).unwrap();
        drop((driver, device));
        let recording = paper.recording();
        assert!(recording.events.contains(&Event::Read(Register(0, 0, 4), 0x10ed)));
        assert!(recording.events.contains(&Event::Write(Register(7, 0x10, 4), u32::MAX.into())));
        assert!(
            !recording.events.iter().any(|event| matches!(event, Event::Write(Register(0, 4, _), _))),
            "it was dropped outside"
        );
    }
}

/// A file that takes nothing until it may.
struct Stuck(Arc<Mutex<()>>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        drop(self.0.lock());
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        drop(self.0.lock());
        Ok(())
    }
}

#[test]
fn a_file_that_takes_nothing_stops_no_driver_and_what_is_lost_is_counted() {
    let hold = Arc::new(Mutex::new(()));
    let held = hold.lock().unwrap();
    let device = Arc::new(Record::new(open("sim:edu"), Stuck(hold.clone())).unwrap());
    let (bar, start) = (device.bar(0).unwrap(), Instant::now());
    assert!((0..100_000).all(|_| bar.read32(0) & 0xff == 0xed));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(device.lost() > 50_000, "{}", device.lost());
    drop((bar, device));
    assert!(start.elapsed() < Duration::from_secs(60), "its end does not wait for ever, either");
    drop(held);
}

#[test]
fn a_recording_with_losses_is_not_replayed() {
    let (mut recording, _) = record(open("sim:edu"), factorials);
    recording.events.push(Event::Lost(3));
    let error = Replay::new(recording).err().unwrap();
    assert!(error.to_string().contains("3 events are missing"), "{error}");
}

#[test]
fn a_line_that_was_being_written_is_ignored_and_other_rubbish_named_by_its_line() {
    let paper = Paper::default();
    let _ = Record::new(open("sim:edu"), paper.clone()).unwrap().config_read(0, 4);
    let text = String::from_utf8(paper.text()).unwrap();
    let events = |text: &str| Recording::read(text.as_bytes()).map(|recording| recording.events.len());
    assert_eq!((events(&text).unwrap(), events(&text[..text.len() - 1]).unwrap()), (1, 0));
    for (text, says) in [
        (String::new(), "line 1 of the recording: it is empty"),
        (format!("{text}[1,\"dance\"]\n"), "line 3"),
        (text.replace("recording\":1", "recording\":2"), "version 2; this program reads version 1"),
        (format!("{text}[{}]\n", " ".repeat(5000)), "longer than a line"),
    ] {
        let error = events(&text).unwrap_err();
        assert!(matches!(&error, Error::Protocol(what) if what.contains(says)), "{error}");
    }
}

/// Bytes between nothing at all and a recording with a few of them changed.
fn files() -> impl Strategy<Value = Vec<u8>> {
    let (recording, _) = nvme_recording();
    let mut lines = vec![serde_json::to_vec(&recording.header).unwrap()];
    lines.extend(recording.events.iter().take(60).map(|event| serde_json::to_vec(&(0, event)).unwrap()));
    let good = lines.into_iter().flat_map(|line| [line, vec![b'\n']]).flatten().collect::<Vec<u8>>();
    let len = good.len();
    let damaged = prop::collection::vec((0..len, any::<u8>()), 0..4).prop_map(move |changes| {
        let mut bytes = good.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), damaged]
}

#[test]
fn no_file_can_make_reader_or_replay_panic() {
    let files = files();
    proptest!(ProptestConfig::with_cases(200), |(bytes in files, pokes in prop::collection::vec((0..8u8, 0..64u64, any::<bool>()), 0..40))| {
        let Ok(recording) = Recording::read(&*bytes) else { return Ok(()) };
        let Ok(device) = Replay::new(recording) else { return Ok(()) };
        for (bar, offset, write) in pokes {
            let _ = (device.config_read(offset, 4), device.irqs(IrqKind::MsiX, bar.into()));
            if let Ok(bar) = device.bar(bar) {
                if write { bar.write32(offset, 1) } else { let _ = bar.read32(offset); }
            }
        }
        let _ = device.check_end();
    });
}
