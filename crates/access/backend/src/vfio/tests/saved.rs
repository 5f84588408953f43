//! A claim whose holder dies: the driver goes on, and another holder finds the device as it was.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_device::dma::{Pages, Region};
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Device, Error};
use ring3_lease::Channel;
use ring3_spec::pci;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::lease::{claimed, fence, start_on};
use super::nvme::Controller;
use super::{command_in_sysfs, guest_tests, soon};
use crate::{Claim, Lease, SavedClaim, attach};

/// Says to this program that it is the holder, with a socket to its store as its standard input.
const HOLDER: &str = "RING3_TEST_HOLDER";

fn channel(socket: OwnedFd) -> Channel {
    Channel::new(socket, Duration::from_secs(20), true).unwrap()
}

/// The holder's life: what it saves goes to the store, and so does the lease.
fn hold() -> ! {
    let store = Arc::new(channel(std::io::stdin().as_fd().try_clone_to_owned().unwrap()));
    let claim = claimed();
    let to = Arc::clone(&store);
    claim.on_change(move |saved| {
        let SavedClaim { facts, fds } = saved.unwrap();
        let names: Vec<&str> = fds.iter().map(|(name, _)| name.as_str()).collect();
        to.send(&(facts, names), &fds.iter().map(|(_, fd)| fd.as_fd()).collect::<Vec<_>>())
            .unwrap();
    });
    let lease = OwnedFd::from(claim.lease().unwrap());
    store.send(&(Value::Null, ["lease"]), &[lease.as_fd()]).unwrap();
    drop(lease);
    std::thread::sleep(Duration::from_secs(60));
    std::process::exit(1)
}

/// A holder in a process of its own, with what it has saved.
struct Holder {
    process: Child,
    store: Channel,
    saved: Option<SavedClaim>,
}

impl Holder {
    fn start(test: &str) -> (Self, Lease) {
        let (ours, theirs) = Channel::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("vfio::tests::saved::{test}"), "--ignored", "--nocapture"])
            .env(HOLDER, "1")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut holder = Self { process, store: channel(ours), saved: None };
        let lease = loop {
            let (facts, mut fds) = holder.receive().unwrap();
            match facts {
                Value::Null => break fds.remove(0).1.into(),
                facts => holder.saved = Some(SavedClaim { facts, fds }),
            }
        };
        (holder, lease)
    }

    fn receive(&self) -> Option<(Value, Vec<(String, OwnedFd)>)> {
        let ((facts, names), fds) = self.store.receive::<(Value, Vec<String>)>().unwrap()?;
        assert_eq!(names.len(), fds.len());
        Some((facts, names.into_iter().zip(fds).collect()))
    }

    /// Kills it when it has answered everything, and returns the last that it has saved.
    fn kill(mut self) -> SavedClaim {
        let saved = self.saved.as_ref().unwrap();
        let (_, turn) = saved.fds.iter().find(|(name, _)| name == "turn").unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(turn, PollFlags::IN)], Some(&now)).unwrap() > 0 {
            std::thread::yield_now();
        }
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        while let Some((facts, fds)) = self.receive() {
            self.saved = Some(SavedClaim { facts, fds });
        }
        self.saved.take().unwrap()
    }
}

fn or_hold() {
    if std::env::var_os(HOLDER).is_some() {
        hold();
    }
}

fn pages() -> Pages {
    Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap()
}

/// A driver at work.
struct Driven {
    controller: Controller<Arc<dyn Device>>,
    irqs: Vec<Irq>,
    /// Where it has mapped something.
    iova: u64,
}

/// A driver whose holder dies while it works, and the claim in the next holder.
fn orphaned(test: &str, kind: IrqKind, count: u16) -> (Driven, Claim) {
    let (holder, lease) = Holder::start(test);
    let (mut controller, irqs) =
        Controller::on(attach(lease, None).unwrap(), |device| &**device, kind, count);
    let mapping = controller.device.dma().map(pages()).unwrap();
    let iova = mapping.iova();
    std::mem::forget(mapping);
    assert_eq!(controller.identify(), 0x1b36);
    assert!(irqs[0].wait(soon()).unwrap() > 0);
    irqs[0].unmask().unwrap();
    let saved = holder.kill();
    // Nobody holds it but who keeps the descriptors: the device goes on, and signals its driver.
    assert_eq!(controller.identify(), 0x1b36);
    assert!(irqs[0].wait(soon()).unwrap() > 0);
    assert_ne!(command_in_sysfs("NVME") & pci::COMMAND_BUS_MASTER, 0);
    let since = Instant::now();
    let claim = Claim::adopt(saved).unwrap();
    println!("adopted in {:?}", since.elapsed());
    (Driven { controller, irqs, iova }, claim)
}

guest_tests! {
    fn a_driver_goes_on_when_its_holder_is_killed_and_the_next_one_fences_it() {
        or_hold();
        let test = "a_driver_goes_on_when_its_holder_is_killed_and_the_next_one_fences_it";
        let (Driven { mut controller, irqs, .. }, claim) = orphaned(test, IrqKind::MsiX, 2);
        assert!(claim.is_leased());
        assert!(matches!(claim.lease(), Err(Error::Busy(_))));
        // What is asked of the holder, the new one answers; nothing was reset.
        assert_ne!(
            controller.device.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER, 0,
        );
        assert_eq!(controller.identify(), 0x1b36);
        assert!(irqs[0].wait(soon()).unwrap() > 0);
        drop((controller, irqs));
        fence(&claim);
        let (mut next, irqs) = start_on(&claim, IrqKind::MsiX, 2);
        assert_eq!(next.identify(), 0x1b36);
        assert!(irqs[0].wait(soon()).unwrap() > 0);
        drop((next, claim));
        assert_eq!(command_in_sysfs("NVME") & pci::COMMAND_BUS_MASTER, 0);
    }

    fn a_pin_and_a_mapping_outlive_their_holder() {
        or_hold();
        let test = "a_pin_and_a_mapping_outlive_their_holder";
        let (Driven { mut controller, irqs, iova }, claim) = orphaned(test, IrqKind::Intx, 1);
        // The pin is masked by the kernel when it fires; the new holder opens it.
        irqs[0].unmask().unwrap();
        irqs[0].take().unwrap();
        controller.identify();
        assert!(irqs[0].wait(soon()).unwrap() > 0);
        drop((controller, irqs));
        fence(&claim);
        let next = attach(claim.lease().unwrap(), None).unwrap();
        next.dma().map_at(pages(), iova).unwrap();
    }
}
