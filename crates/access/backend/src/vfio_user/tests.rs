//! Servers that are not well, and one that is.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ring3_device::Deadline;
use ring3_driver::edu::{self, Edu};
use ring3_model::vfio_user::{Channel, Running, VfioUserServer};
use ring3_model::{BarLayout, Bus, Identity, Model, Platform, SimDevice};

use super::*;

const OPTIONS: OpenOptions =
    OpenOptions { arena: 1 << 20, below: edu::REACH, unprotected: false, memory: None };
const PATIENCE: Duration = Duration::from_secs(20);

/// A model on a socket.
fn serve(model: &str) -> (tempfile::TempDir, PathBuf, Running) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let device =
        ring3_model::open(&model.parse().unwrap(), OpenOptions { arena: 4096, ..OPTIONS }).unwrap();
    let server = VfioUserServer::bind(&path, device).unwrap().spawn().unwrap();
    (folder, path, server)
}

fn device(path: &std::path::Path) -> Result<Arc<dyn Device>, Error> {
    open(&format!("vfio-user:{}", path.display()).parse().unwrap(), OPTIONS)
        .map(|device| Arc::new(device) as Arc<dyn Device>)
}

/// What opening says of a server that does `serve` with its one client.
fn refusal(serve: impl FnOnce(UnixStream) + Send + 'static) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let error = device(&path).err().unwrap();
    server.join().unwrap();
    error
}

/// Answers the first request with `flags`, `error` and `body`.
fn answers(flags: u32, error: u32, body: &'static [u8]) -> Error {
    refusal(move |stream| {
        let channel = Channel::new(stream, PATIENCE).unwrap();
        let (request, _) = channel.receive().unwrap().unwrap();
        channel.send(Header { flags, error, ..request }, [body, &[]], &[]).unwrap();
        let _ = channel.receive();
    })
}

#[test]
fn the_teaching_device_does_everything_behind_a_socket() {
    let (_folder, path, _server) = serve("sim:edu");
    let mut steps = Vec::new();
    edu::self_test(device(&path).unwrap(), Some(0xfff_f000), &mut |fact| steps.push(fact.step))
        .unwrap();
    assert!(
        steps.contains(&"DMA, MSI") && steps.contains(&"DMA, INTx") && steps.contains(&"reset"),
        "{steps:?}"
    );
    assert_eq!(class_of(path.to_str().unwrap()), Some(0xff00));
}

#[test]
fn kinds_of_interrupts_take_turns_behind_a_socket() {
    let (_folder, path, _server) = serve("sim:edu");
    let mut edu = Edu::attach(device(&path).unwrap()).unwrap();
    for kind in [IrqKind::Intx, IrqKind::Msi, IrqKind::Intx] {
        edu.wait_by(Some(kind)).unwrap();
        edu.raise(0x10);
        assert_eq!(edu.wait_interrupt(Deadline::after(PATIENCE)).unwrap(), 0x10);
    }
}

#[test]
fn a_message_that_comes_while_it_is_masked_is_delivered_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let model = Arc::new(
        ring3_model::nvme::open(
            &"sim:nvme".parse().unwrap(),
            OpenOptions { arena: 4096, ..OPTIONS },
        )
        .unwrap(),
    );
    let handle = model.handle();
    let _server = VfioUserServer::bind(&path, model).unwrap().spawn().unwrap();
    let device = device(&path).unwrap();
    device.set_bus_master(true).unwrap();
    let irqs = device.irqs(IrqKind::MsiX, 2).unwrap();
    irqs[1].mask().unwrap();
    // A write is posted; the read comes behind it.
    device.config_read(0, 2);
    handle.raise(1);
    handle.raise(0);
    assert_eq!((irqs[0].take().unwrap(), irqs[1].take().unwrap()), (1, 0));
    irqs[1].unmask().unwrap();
    assert_eq!(irqs[1].wait(Deadline::after(PATIENCE)).unwrap(), 1);
}

const SLOW: Duration = Duration::from_millis(50);

/// A device that counts what is written to them, and takes its time.
#[derive(Default)]
struct Slow(u64);

impl Model for Slow {
    fn identity(&self) -> Identity {
        let bars = vec![
            BarLayout { index: 0, len: 16, ports: true },
            BarLayout { index: 1, len: 16, ports: false },
        ];
        Identity {
            vendor: 1,
            device: 1,
            revision: 0,
            class: 0,
            bars,
            pins: 0,
            msi: 0,
            msix: None,
            express: false,
            dma_bits: 32,
        }
    }
    fn read(&mut self, _: &Bus, _: u8, _: u64, _: usize) -> u64 {
        self.0
    }
    fn write(&mut self, _: &Bus, _: u8, _: u64, _: usize, _: u64) {
        std::thread::sleep(SLOW);
        self.0 += 1;
    }
    fn reset(&mut self, _: &Bus) {}
}

#[test]
fn a_write_to_a_port_has_happened_when_it_returns_and_one_to_memory_before_the_next_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let model = SimDevice::new(
        "sim:slow",
        Slow::default(),
        &Platform { arena: 4096, ..Platform::default() },
    )
    .unwrap();
    let _server = VfioUserServer::bind(&path, Arc::new(model)).unwrap().spawn().unwrap();
    let device = device(&path).unwrap();
    assert_eq!(
        (device.bar_info(0).unwrap().ports, device.bar_info(1).unwrap().ports, device.bar_info(2)),
        (true, false, None)
    );
    let since = Instant::now();
    device.bar(0).unwrap().write8(0, 1);
    assert!(since.elapsed() >= SLOW);
    let memory = device.bar(1).unwrap();
    memory.write32(0, 1);
    assert_eq!(memory.read32(0), 2);
}

#[test]
fn what_belongs_to_the_backend_is_not_a_drivers_to_write() {
    let (_folder, path, _server) = serve("sim:edu");
    let device = device(&path).unwrap();
    assert!(device.config_write(pci::BAR0, 4, 0).is_err());
    assert!(device.config_write(pci::COMMAND, 2, 0).is_err());
    device.config_write(0x3c, 1, 7).unwrap();
    assert_eq!(device.config_read(0x3c, 1), 7);
}

#[test]
fn a_server_that_ends_takes_the_device_with_it() {
    let (_folder, path, server) = serve("sim:edu");
    let device = device(&path).unwrap();
    let (bar, irqs) = (device.bar(0).unwrap(), device.irqs(IrqKind::Msi, 1).unwrap());
    assert_ne!(bar.read32(0), u32::MAX);
    drop(server);
    assert!(device.removal().unwrap().wait(Deadline::after(PATIENCE)).unwrap() > 0);
    assert_eq!(
        (bar.read32(0), bar.read64(0x80), device.config_read(0, 2)),
        (u32::MAX, u64::MAX, u32::MAX)
    );
    bar.write32(4, 1);
    assert!(
        matches!(device.reset(), Err(Error::Gone))
            && matches!(device.set_bus_master(true), Err(Error::Gone))
    );
    assert!(matches!(device.irqs(IrqKind::Msi, 1), Err(Error::Gone)));
    drop(irqs);
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let since = Instant::now();
    let error = refusal(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert!(error.to_string().contains("does not answer as a vfio-user server"), "{error}");
    assert!(since.elapsed() < PATIENCE);
}

#[test]
fn another_version_is_refused_with_both() {
    let error = answers(REPLY, 0, &[1, 0, 5, 0]);
    assert!(
        matches!(&error, Error::Unsupported(text) if text.contains("1.5") && text.contains("0.1")),
        "{error}"
    );
}

#[test]
fn a_server_that_serves_somebody_else_is_busy() {
    let (_folder, path, _server) = serve("sim:edu");
    let first = device(&path).unwrap();
    let error = device(&path).err().unwrap();
    assert!(matches!(&error, Error::Busy(text) if text.contains("another process")), "{error}");
    drop(first);
    device(&path).unwrap();
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    assert!(matches!(answers(REPLY, 0, &[]), Error::Protocol(_)));
    assert!(matches!(answers(0, 0, &[0, 0, 1, 0]), Error::Protocol(_)));
    assert!(answers(REPLY | ERROR, 22, &[]).to_string().contains("its log says why"));
    assert!(matches!(answers(REPLY | ERROR, u32::MAX, &[]), Error::Os { .. }));
}

#[test]
fn nobody_there_is_said_with_what_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let missing = device(&path).err().unwrap().to_string();
    drop(UnixListener::bind(&path).unwrap());
    let dead = device(&path).err().unwrap().to_string();
    assert!(
        [&missing, &dead].iter().all(|error| error.contains("ring3 model")),
        "{missing} {dead}"
    );
    assert_eq!(class_of(path.to_str().unwrap()), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    /// After a good version, anything.
    #[test]
    fn no_answer_kills_the_client(
        answers in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..64), any::<bool>()), 0..12,
        )
    ) {
        let error = refusal(move |stream| {
            let channel = Channel::new(stream.try_clone().unwrap(), PATIENCE).unwrap();
            let mut good = vec![(vec![0, 0, 1, 0], true)];
            good.extend(answers);
            for (body, framed) in good {
                let Ok(Some((request, _))) = channel.receive() else { return };
                let sent = if framed {
                    channel.send(Header { flags: REPLY, ..request }, [&body, &[]], &[])
                } else {
                    (&stream)
                        .write_all(&body)
                        .and_then(|()| stream.shutdown(std::net::Shutdown::Write))
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        prop_assert!(!error.to_string().is_empty());
    }
}
