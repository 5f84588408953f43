//! A driver that runs needs no system call that its manifest, its backend's or the loop's does not
//! list: the kernel ends the process at any other.

mod owner;
mod served;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::{Claim, OpenOptions, attach, claim};
use ring3_class::block::{Completion, IoError, Queue, Request};
use ring3_device::{Deadline, Device};
use ring3_driver::registry::{Driver, Offer, Opened, Settings};
use ring3_reactor::{Reactor, Registration};
use seccompiler::{apply_filter, compile_from_json};

/// Says to this program what to do behind the filter: the backend, the model, and a system call to
/// leave out.
const CHILD: &str = "RING3_TEST_FILTERED";

/// What the process around the driver calls: its end, and the standard library's check of each
/// descriptor that is closed in a build like this.
const PROCESS: [&str; 2] = ["exit_group", "fcntl"];

fn calls(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().unwrap();
    let calls = manifest["system_calls"]["run"].as_array().unwrap();
    calls.iter().map(|call| call.as_str().unwrap().into()).collect()
}

/// From here on this thread, and those that it starts, call nothing but `calls`.
fn confine(calls: &[String]) {
    let allowed: Vec<_> = calls.iter().map(|call| format!("{{\"syscall\": \"{call}\"}}")).collect();
    let json = format!(
        "{{\"it\": {{\"mismatch_action\": \"kill_process\", \"match_action\": \"allow\", \
         \"filter\": [{}]}}}}",
        allowed.join(",")
    );
    let filters =
        compile_from_json(json.as_bytes(), std::env::consts::ARCH.try_into().unwrap()).unwrap();
    apply_filter(&filters["it"]).unwrap();
}

/// Submits requests until the queue is full.
fn fill(queue: &mut dyn Queue, device: &Arc<dyn Device>, write: bool) {
    for token in 0..4u64 {
        let buffer = device.dma().arena().alloc_pages(4096).unwrap();
        let blocks = 4096 / queue.info().block_size;
        let request = if write { Request::write } else { Request::read };
        if queue.submit(request(token, token * 8, blocks, buffer)).is_err() {
            break;
        }
    }
}

/// Requests that are found by polling and by interrupt, alone and in a loop, time that passes, and
/// a good end.
fn work(Opened { offers, controller, .. }: Opened, device: &Arc<dyn Device>, mut reactor: Reactor) {
    let Some(Offer::Disk(disk)) = offers.first() else { panic!("no disk") };
    let mut queue = disk.open_queue(4).unwrap();
    for round in 0..100 {
        fill(&mut *queue, device, round % 2 == 0);
        let outcome = owner::finish(&mut *queue);
        assert!(
            outcome.completions.iter().all(|completion| completion.result == Ok::<(), IoError>(()))
        );
    }
    assert!(!queue.wait(Deadline::after(Duration::from_millis(30))).unwrap());
    let registration = Registration::new(&mut reactor, &queue).unwrap();
    for round in 0..100 {
        fill(&mut *queue, device, round % 2 == 0);
        queue.ring();
        let mut done: [Completion; 4] = Default::default();
        while queue.in_flight() > 0 {
            reactor.wait(&mut [(&registration, &mut queue)], Some(owner::PATIENCE)).unwrap();
            while reactor.next_event().is_some() {}
            queue.tick(Instant::now()).unwrap();
            let count = queue.reap(&mut done).unwrap();
            assert!(done[..count].iter().all(|completion| completion.result == Ok(())));
        }
    }
    registration.remove(&mut reactor).unwrap();
    drop((queue, offers, controller, reactor));
}

/// The device on the socket, and if it is leased, the claim of it.
fn device(uri: &str, backend: &str) -> (Option<Claim>, Arc<dyn Device>) {
    let (uri, options) = (uri.parse().unwrap(), OpenOptions::default());
    if backend != "lease" {
        return (None, ring3_backend::open(&uri, options).unwrap());
    }
    // Its thread was there before the filter, so that this does not hold it.
    let claim = claim(&uri, options).unwrap();
    let device = attach(claim.lease().unwrap(), None).unwrap();
    (Some(claim), device)
}

fn filtered(backend: &str, model: &str, without: &str) {
    served::served(model, |uri| {
        let (_claim, device) = device(uri, backend);
        let driver = Driver::of(&*device, None).unwrap();
        let opened = Driver::open(device.clone(), None, &Settings::default()).unwrap();
        let reactor = Reactor::new(4, Duration::from_micros(50)).unwrap();
        let mut allowed = calls(driver.manifest);
        allowed.extend(calls(ring3_reactor::MANIFEST));
        allowed.extend(calls(ring3_backend::manifest(backend).unwrap()));
        allowed.extend(PROCESS.map(String::from));
        allowed.retain(|call| call != without);
        confine(&allowed);
        work(opened, &device, reactor);
        std::process::exit(0);
    });
}

/// How this program ends, started anew with `test` alone, behind a filter `without` one of the
/// calls.
fn ending(test: &str, device: &str, without: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, format!("{device} {without}"))
        .output();
    let output = child.unwrap();
    println!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.status
}

/// `device` is a backend and a model.
fn lives_behind_its_filter(test: &str, device: &str) {
    if let Ok(words) = std::env::var(CHILD) {
        let [backend, model, without] = words.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{words}")
        };
        return filtered(backend, model, without);
    }
    assert!(
        ending(test, device, "").success(),
        "it needs a call that no manifest lists: the kernel's log has its number"
    );
    let without_registers = ending(test, device, "sendmsg");
    assert_eq!(
        without_registers.signal(),
        Some(rustix::process::Signal::SYS.as_raw()),
        "the filter lets everything pass"
    );
}

#[test]
fn nvme_runs_with_the_calls_of_the_manifests_alone() {
    lives_behind_its_filter(
        "nvme_runs_with_the_calls_of_the_manifests_alone",
        "vfio-user sim:nvme",
    );
}

#[test]
fn ahci_runs_with_the_calls_of_the_manifests_alone() {
    lives_behind_its_filter(
        "ahci_runs_with_the_calls_of_the_manifests_alone",
        "vfio-user sim:ahci",
    );
}

#[test]
fn ide_runs_with_the_calls_of_the_manifests_alone() {
    lives_behind_its_filter("ide_runs_with_the_calls_of_the_manifests_alone", "vfio-user sim:ide");
}

#[test]
fn virtio_disks_run_with_the_calls_of_the_manifests_alone() {
    lives_behind_its_filter(
        "virtio_disks_run_with_the_calls_of_the_manifests_alone",
        "vfio-user sim:virtio-blk",
    );
}

#[test]
fn nvme_runs_over_a_lease_with_the_calls_of_the_manifests_alone() {
    lives_behind_its_filter(
        "nvme_runs_over_a_lease_with_the_calls_of_the_manifests_alone",
        "lease sim:nvme",
    );
}
