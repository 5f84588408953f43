//! Recordings and what is made of them, over our models and over QEMU's.

mod paper;

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use paper::{Paper, recording};
use proptest::prelude::*;
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Data, Disk, Request, next};
use ring3_decorator::recording::{Event, Header, Recording, Register, clean};
use ring3_decorator::{Fault, Record, Replay, VirtualConfig};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::edu::{Edu, REACH};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_driver::{Interrupts, ata, nvme};
use ring3_spec::nvme::registers::CC;
use ring3_spec::{edu, pci};

const EDU: [&str; 2] = ["sim:edu", "qtest:edu"];

/// A recording that was made.
struct Tape(Vec<u8>);

impl Tape {
    fn open(&self) -> Recording {
        recording(&self.0)
    }
    fn header(&self) -> Header {
        self.open().header
    }
    fn events(&self) -> Vec<Event> {
        events(&self.0).unwrap()
    }
}

fn events(bytes: &[u8]) -> Result<Vec<Event>, Error> {
    let mut recording = Recording::read(Cursor::new(bytes.to_vec()))?;
    let mut events = Vec::new();
    while let Some(event) = recording.next_event()? {
        events.push(event);
    }
    assert!(recording.events().is_none_or(|count| count == events.len() as u64));
    Ok(events)
}

fn open(uri: &str) -> Arc<dyn Device> {
    let uri: Uri = uri.parse().unwrap();
    let below = if uri.target == "edu" { REACH } else { u64::MAX };
    ring3_backend::open(&uri, OpenOptions { arena: 4 << 20, below, ..OpenOptions::default() })
        .unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// What `job` does with `device`, recorded.
fn record<T>(device: Arc<dyn Device>, job: impl FnOnce(Arc<dyn Device>) -> T) -> (Tape, T) {
    let paper = Paper::default();
    let result = job(Arc::new(Record::new(device, paper.clone(), Vec::new()).unwrap()));
    (Tape(paper.text()), result)
}

fn replay<T>(recording: &Tape, job: impl FnOnce(Arc<dyn Device>) -> T) -> (Arc<Replay>, T) {
    let replay = Arc::new(Replay::new(recording.open()).unwrap());
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
        assert_eq!(&results[..], [479_001_600, 120, 1], "{uri}");
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
    assert_eq!(recording.events(), expected);
    assert_eq!(recording.header().device, "sim:edu");
}

/// The controller takes no identify command: what is left of the initialisation is registers.
fn nvme_start(device: Arc<dyn Device>) -> String {
    let options = nvme::Options { timeout: Duration::from_millis(80), ..nvme::Options::default() };
    nvme::Controller::open(device, options).err().unwrap().to_string()
}

fn nvme_recording() -> (Tape, String) {
    record(open("sim:nvme,fault=drop:identify:1:all"), nvme_start)
}

#[test]
fn the_nvme_drivers_initialisation_comes_to_the_same_end_with_its_recording() {
    let (recording, end) = nvme_recording();
    assert!(end.contains("an admin command took longer"), "{end}");
    assert!(
        recording.events().iter().any(
            |event| matches!(event, Event::Write(Register(0, at, 4), _) if *at == CC.offset())
        )
    );
    let (replay, again) = replay(&recording, nvme_start);
    assert_eq!((again, replay.check_end()), (end, Ok(())));
}

/// Through ports, a drive says what it is word by word.
fn ide_by_ports(device: Arc<dyn Device>) -> String {
    let options = ata::Options {
        level: ata::Level::Pio,
        interrupts: Interrupts::Polled,
        ..ata::Options::default()
    };
    let controller = ata::ide::Controller::open(device, options).unwrap();
    format!("{:?}", controller.drives()[0].info())
}

#[test]
fn a_driver_that_uses_no_memory_is_replayed_to_its_end() {
    let (recording, info) = record(open("sim:ide"), ide_by_ports);
    let (replay, again) = replay(&recording, ide_by_ports);
    assert_eq!((again, replay.check_end()), (info, Ok(())));
}

fn nvme_serial(device: Arc<dyn Device>) -> String {
    nvme::Controller::open(device, nvme::Options::default()).unwrap().identity().serial.clone()
}

fn ata_serial(device: Arc<dyn Device>) -> String {
    let controller = ata::Controller::open(device, ata::Options::default()).unwrap();
    controller.members()[0].identity.serial.clone()
}

fn ide_serial(device: Arc<dyn Device>) -> String {
    let options = ata::Options { level: ata::Level::Pio, ..ata::Options::default() };
    let controller = ata::ide::Controller::open(device, options).unwrap();
    controller.drives()[0].info().serial.clone()
}

/// All that a device has said: what it wrote to memory, and what its registers said.
fn said(events: &[Event]) -> Vec<u8> {
    let bytes = |event: &Event| match event {
        Event::Device(memory) => memory.bytes.clone(),
        Event::Read(Register(_, _, width), value) => {
            value.to_le_bytes()[..usize::from(*width)].to_vec()
        }
        _ => Vec::new(),
    };
    events.iter().flat_map(bytes).collect()
}

#[test]
fn a_cleaned_recording_has_no_serial_number_and_replays_to_its_end() {
    const SERIAL: &str = "RING3SIM";
    type Job = fn(Arc<dyn Device>) -> String;
    let devices: [(&str, Job); 3] =
        [("sim:nvme", nvme_serial), ("sim:ahci", ata_serial), ("sim:ide", ide_serial)];
    for (uri, job) in devices {
        let (recording, serial) = record(open(uri), job);
        assert_eq!(serial, SERIAL, "{uri}");
        let whose = ("sim:any".to_owned(), vec!["a".to_owned()]);
        let mut bytes = Vec::new();
        let changed = clean(recording.open(), &mut bytes, &[], whose).unwrap();
        assert!(changed > 0, "{uri}");
        let cleaned = Tape(bytes);
        let header = cleaned.header();
        assert_eq!((header.device, header.command), ("sim:any".into(), vec!["a".into()]));
        let swapped: Vec<u8> = SERIAL
            .bytes()
            .collect::<Vec<_>>()
            .chunks(2)
            .fold(Vec::new(), |all, pair| [&all[..], &[pair[1], pair[0]]].concat());
        let has = |events: &[Event], text: &[u8]| {
            said(events).windows(text.len()).any(|window| window == text)
        };
        let texts = [SERIAL.as_bytes(), &swapped[..]];
        assert!(texts.iter().any(|text| has(&recording.events(), text)), "{uri}");
        assert!(!texts.iter().any(|text| has(&cleaned.events(), text)), "{uri}");
        let (replay, again) = replay(&cleaned, job);
        assert_eq!(replay.check_end(), Ok(()), "{uri}");
        assert!(again.bytes().all(|byte| byte == b'0' || byte == b' '), "{uri}: {again}");
    }
}

#[test]
fn a_text_that_is_a_secret_is_removed_wherever_the_device_wrote_it() {
    let (recording, _) = record(open("sim:nvme"), nvme_serial);
    let whose = (String::new(), Vec::new());
    let mut bytes = Vec::new();
    clean(recording.open(), &mut bytes, &[b"simulated NVMe".to_vec()], whose).unwrap();
    let found =
        |tape: &Tape| said(&tape.events()).windows(14).any(|window| window == b"simulated NVMe");
    assert!(found(&recording) && !found(&Tape(bytes)));
}

#[test]
fn a_changed_driver_is_caught_at_the_first_write_that_is_different() {
    let (recording, end) = nvme_recording();
    let enable =
        |event: &&Event| matches!(event, Event::Write(Register(0, at, 4), _) if *at == CC.offset());
    let expected = recording.events().into_iter().filter(|event| enable(&event)).nth(1).unwrap();
    // The second write of CC has other entry sizes.
    let (replay, again) = replay(&recording, |device| {
        nvme_start(Arc::new(Fault::new(device, "set/0xf00000:write#0@0x14:2".parse().unwrap())))
    });
    let Some(divergence) = replay.divergence() else { panic!("not caught") };
    let Event::Write(register, value) = expected else { panic!() };
    assert_eq!(
        (divergence.expected.clone(), divergence.found.clone()),
        (Some(expected.clone()), Some(Event::Write(register, value | 0xf0_0000)))
    );
    assert_eq!(recording.events()[divergence.index as usize], expected);
    assert!(
        divergence.to_string().contains("written to CC, BAR 0 + 0x14, 4 bytes; the driver: 0xf"),
        "{divergence}"
    );
    assert!(again != end && again.contains("gone"), "{again}");
}

#[test]
fn a_driver_that_stops_early_is_told_what_was_next() {
    let (recording, _) = record(open("sim:edu"), factorials);
    let (replay, _) = replay(&recording, |device| drop(Edu::attach(device).unwrap()));
    let left = replay.check_end().unwrap_err();
    assert!(matches!((&left.expected, &left.found), (Some(Event::Write(..)), None)), "{left}");
    assert!(left.to_string().ends_with("the driver: nothing more"), "{left}");
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
    assert_eq!(
        (value, replay.divergence().unwrap().found),
        (u32::MAX, Some(Event::Read(Register(0, 8, 4), u64::MAX)))
    );
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
        let outer = Record::new(
            Arc::new(VirtualConfig::new(Arc::new(Fault::new(open(uri), plan)), |_| {})),
            paper.clone(),
            vec![],
        )
        .unwrap();
        let device: Arc<dyn Device> =
            Arc::new(Fault::new(Arc::new(outer), "drop:write#0@4".parse().unwrap()));
        let driver = Edu::attach(device.clone()).unwrap();
        assert_eq!(driver.version().unwrap(), (0, 0), "{uri}");
        assert!(driver.check_liveness(1).is_err());
        device.config_write(pci::BAR0, 4, u32::MAX).unwrap();
        drop((driver, device));
        let recording = Tape(paper.text());
        assert!(recording.events().contains(&Event::Read(Register(0, 0, 4), 0x10ed)));
        assert!(recording.events().contains(&Event::Write(Register(7, 0x10, 4), u32::MAX.into())));
        assert!(
            !recording
                .events()
                .iter()
                .any(|event| matches!(event, Event::Write(Register(0, 4, _), _))),
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
    let device = Arc::new(Record::new(open("sim:edu"), Stuck(hold.clone()), Vec::new()).unwrap());
    let (bar, start) = (device.bar(0).unwrap(), Instant::now());
    assert!((0..100_000).all(|_| bar.read32(0) & 0xff == 0xed));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(device.lost() > 50_000, "{}", device.lost());
    drop((bar, device));
    assert!(start.elapsed() < Duration::from_secs(60), "its end does not wait for ever, either");
    drop(held);
}

/// A file that takes so many bytes at most.
struct Small(Paper, usize);

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let free = self.1.saturating_sub(self.0.text().len()).min(bytes.len());
        if free == 0 {
            Err(std::io::ErrorKind::StorageFull.into())
        } else {
            self.0.write(&bytes[..free])
        }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_driver() {
    let paper = Paper::default();
    let device: Arc<dyn Device> =
        Arc::new(Record::new(open("sim:edu"), Small(paper.clone(), 400), Vec::new()).unwrap());
    let results: Vec<_> =
        (0..2000).map(|n| factorials(Arc::clone(&device))[usize::from(n % 2 == 1)]).collect();
    assert!(results.chunks(2).all(|pair| pair == [479_001_600, 120]));
    drop(device);
    let error = events(&paper.text()).unwrap_err();
    assert!(matches!(&error, Error::Claim(what) if what.contains("cut off")), "{error}");
}

fn small_recording() -> Vec<u8> {
    let paper = Paper::default();
    let _ = Record::new(open("sim:edu"), paper.clone(), Vec::new()).unwrap().config_read(0, 4);
    paper.text()
}

#[test]
fn a_recording_whose_process_was_killed_is_whole_up_to_its_end() {
    let whole = small_recording();
    let mut killed = whole.clone();
    // The last block is what says that it is the end.
    let last = (0..whole.len()).rev().find(|at| events(&whole[..*at]).is_ok()).unwrap();
    killed.truncate(last);
    assert_eq!(events(&killed).unwrap(), events(&whole).unwrap());
    let recording = |bytes: &[u8]| Recording::read(Cursor::new(bytes.to_vec())).unwrap();
    assert_eq!((recording(&killed).events(), recording(&whole).events()), (None, Some(1)));
}

#[test]
fn what_is_no_recording_or_not_whole_is_refused_with_the_reason() {
    let whole = small_recording();
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    let len = whole.len();
    for (bytes, says) in [
        (vec![], "it is empty".to_owned()),
        (b"{\"ring3-recording\":1}".to_vec(), "this is no recording".into()),
        (whole[..7].to_vec(), "this is no recording".into()),
        (changed(8, 9), "version 9; this program reads versions 2 to 4".into()),
        (whole[..len - 1].to_vec(), "cut off in the block".into()),
        (whole[..20].to_vec(), "cut off here".into()),
        (whole[..12].to_vec(), "before its header".into()),
        (changed(len - 1, whole[len - 1] ^ 1), "check sum".into()),
        (changed(12, 77), "no block begins here".into()),
        ([&whole[..], &whole[12..]].concat(), "behind its end".into()),
    ] {
        let error = events(&bytes).map(|events| events.len()).unwrap_err().to_string();
        assert!(error.contains(&says.replace("it is empty", "is empty")), "{says}: {error}");
    }
}

/// Bytes between nothing at all and a recording with a few of them changed.
fn files() -> impl Strategy<Value = Vec<u8>> {
    let good = nvme_recording().0.0;
    let len = good.len();
    let damaged = prop::collection::vec((0..len, any::<u8>()), 0..4).prop_map(move |changes| {
        let mut bytes = good.clone();
        changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), damaged]
}

#[test]
fn no_file_can_make_reader_cleaner_or_replay_panic() {
    let files = files();
    let pokes = prop::collection::vec((0..8u8, 0..64u64, any::<bool>()), 0..40);
    proptest!(ProptestConfig::with_cases(200), |(bytes in files, pokes in pokes)| {
        if let Ok(recording) = Recording::read(Cursor::new(bytes.clone())) {
            let _ = clean(recording, Vec::new(), &[b"text".to_vec()], Default::default());
        }
        let Ok(recording) = Recording::read(Cursor::new(bytes)) else { return Ok(()) };
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

/// Opens the disk of `device`, and writes and reads it with up to four requests at a time.
fn use_disk(device: Arc<dyn Device>) -> Vec<u8> {
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    let opened = Driver::open(device, None, &settings).unwrap();
    let Offer::Disk(disk) = &opened.offers[0] else { panic!("no disk") };
    let mut queue = disk.open_queue(4).unwrap();
    let size = disk.info().block_size as usize;
    let mut seen = Vec::new();
    for round in 0..6u64 {
        for block in 0..4 {
            let buffer = disk.dma().arena().alloc_pages(size).unwrap();
            buffer.fill((round * 4 + block) as u8);
            let request = if round % 2 == 0 {
                Request::write(block, block, 1, buffer)
            } else {
                Request::read(block, block, 1, buffer)
            };
            queue.submit(request).unwrap_or_else(|_| panic!());
        }
        queue.ring();
        for _ in 0..4 {
            let done = next(&mut *queue, soon()).unwrap();
            done.result.unwrap();
            let Data::Buffer(buffer) = done.data else { panic!() };
            let mut byte = [0];
            buffer.read(size - 1, &mut byte).unwrap();
            seen.push(byte[0]);
        }
    }
    seen
}

fn disks() -> [&'static str; 4] {
    [
        "sim:nvme,size=1M,delay=100us",
        "sim:ahci,ports=1,size=1M,delay=100us",
        "sim:ide,size=1M",
        "qtest:nvme",
    ]
}

#[test]
fn a_disk_is_used_in_the_same_way_with_its_recording_memory_and_interrupts_included() {
    for uri in disks() {
        let (recording, seen) = record(open(uri), use_disk);
        assert!(recording.events().iter().any(|event| matches!(event, Event::Device(_))), "{uri}");
        let (replay, again) = replay(&recording, use_disk);
        assert_eq!(
            replay.check_end().map_err(|divergence| divergence.to_string()),
            Ok(()),
            "{uri}"
        );
        assert_eq!(again, seen, "{uri}");
    }
}

#[test]
fn what_the_device_wrote_before_a_read_comes_with_that_read_and_not_while_the_driver_sleeps() {
    let copy = |device: Arc<dyn Device>, pause: Duration| {
        // The recorder looks at the memory of a driver with interrupts while that sleeps, which
        // this one did not.
        let irqs = device.irqs(IrqKind::Msi, 1).unwrap();
        let bar = device.bar(0).unwrap();
        device.set_bus_master(true).unwrap();
        let buffer = device.dma().arena().alloc_pages(4096).unwrap();
        buffer.fill(7);
        let transfer = |from: u64, to: u64, command: u64| {
            for (register, value) in
                [(edu::DMA_SOURCE, from), (edu::DMA_DESTINATION, to), (edu::DMA_COUNT, 64)]
            {
                bar.write64(register.offset(), value);
            }
            bar.write64(edu::DMA_COMMAND.offset(), edu::DMA_START | command);
        };
        transfer(buffer.iova(), edu::BUFFER, 0);
        buffer.fill(0);
        transfer(edu::BUFFER, buffer.iova(), edu::DMA_TO_MEMORY);
        std::thread::sleep(pause);
        let mut seen = [0; 2];
        buffer.read(0, &mut seen[..1]).unwrap();
        bar.read64(edu::DMA_COMMAND.offset());
        buffer.read(0, &mut seen[1..]).unwrap();
        drop(irqs);
        seen
    };
    let (recording, seen) = record(open("sim:edu"), |device| copy(device, Duration::ZERO));
    assert_eq!(seen, [0, 7]);
    let (replay, again) = replay(&recording, |device| copy(device, Duration::from_millis(30)));
    assert_eq!((again, replay.check_end()), (seen, Ok(())));
}

#[test]
fn a_driver_that_writes_something_else_to_memory_is_caught_where_it_does() {
    let (recording, _) = record(open("sim:nvme,size=1M"), use_disk);
    let (replay, _) = replay(&recording, |device| {
        // The first page of the arena is gone, so that the driver's queues lie elsewhere.
        let first = device.dma().arena().alloc_pages(4096).unwrap();
        assert!(Driver::open(device, None, &Settings::default()).is_err());
        drop(first);
    });
    let divergence = replay.divergence().unwrap();
    assert!(divergence.to_string().contains("written to ASQ, BAR 0 + 0x28"), "{divergence}");
}
