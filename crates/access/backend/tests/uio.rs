//! The way without protection, on QEMU's devices without an IOMMU: these tests run in a guest,
//! where they are root and may break things.
//!
//! On the host, the first of them boots one guest that runs them all; each then looks for its own
//! line in what came out. `RING3_TEST_KERNEL` chooses another kernel than the lab's usual one, such
//! as 7.2.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_backend::uio::{self, Uio};
use ring3_device::dma::HUGE_PAGE;
use ring3_device::irq::{IrqKind, IrqStats};
use ring3_device::{Bar, Deadline, Device, Error, poll_until};
use ring3_driver::edu;
use ring3_lab::{Cache, Guest, Iommu};
use ring3_pci::WARDEN;
use ring3_spec::{edu as spec, pci};

/// Set in the guest.
const MARK: &str = "RING3_IN_GUEST";
/// Set in the process that is to be killed.
const VICTIM: &str = "RING3_VICTIM";

/// Declares tests that run in the guest.
macro_rules! guest_tests {
    ($(fn $name:ident() $body:block)*) => {$(
        #[test]
        #[ignore = "boots a guest"]
        fn $name() {
            in_guest(stringify!($name), || $body)
        }
    )*};
}

fn in_guest(name: &str, act: impl FnOnce()) {
    if std::env::var_os(MARK).is_some() {
        return act();
    }
    static OUTPUT: OnceLock<String> = OnceLock::new();
    let output = OUTPUT.get_or_init(boot);
    assert!(
        output.lines().any(|line| line == format!("test {name} ... ok")),
        "in the guest:\n{output}"
    );
}

/// Boots a guest with all devices bound, runs every test of this file there, and returns what they
/// printed.
fn boot() -> String {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let bound = |id: &str, model: &str| ring3_lab::Device::new(id, model).bound("uio_pci_generic");
    let guest = Guest {
        iommu: Some(Iommu::None),
        vcpus: Some(1),
        memory_mib: 240,
        kernel_arguments: vec!["hugepages=16".into()],
        kernel: kernel(),
        ..Guest::new("uio-backend")
    };
    let guest = guest
        .device(bound("edu", "edu"))
        .device(bound("pulled", "edu"))
        .device(ring3_lab::Device { addr: Some("6".into()), ..bound("testdev", "pci-testdev") })
        .program(Path::new(&program))
        .variable(MARK, "1")
        .step(
            "tests",
            &format!("timeout 90 {name} --ignored --test-threads=1 2>&1 || dmesg | tail -n 20"),
        );
    // A guest that failed is not booted again by each test.
    match Cache::open().and_then(|cache| guest.run(&cache, &mut |_| {})) {
        Ok(outcome) => format!("{}{}", outcome.messages, outcome.output()),
        Err(error) => error.to_string(),
    }
}

/// The lab's usual kernel, or another.
fn kernel() -> String {
    std::env::var("RING3_TEST_KERNEL").unwrap_or_else(|_| ring3_lab::DEFAULT_KERNEL.into())
}

fn address(variable: &str) -> String {
    std::env::var(variable).unwrap()
}

fn try_claim(variable: &str, options: OpenOptions) -> Result<Uio, Error> {
    uio::open(&format!("uio:{}", address(variable)).parse().unwrap(), options)
}

fn options(arena: usize) -> OpenOptions {
    OpenOptions { arena, below: edu::REACH, unprotected: true, ..OpenOptions::default() }
}

/// Claims the device that the guest has under this name.
fn claim(variable: &str) -> Uio {
    try_claim(variable, options(1 << 20)).unwrap_or_else(|error| panic!("{error}"))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// The wardens that there are, by process id.
fn wardens() -> Vec<i32> {
    let processes = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_warden = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == WARDEN)
    };
    let is_alive = |pid: &i32| {
        !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default().contains(") Z ")
    };
    processes.filter(|pid| is_warden(pid) && is_alive(pid)).collect()
}

/// COMMAND as everybody else sees it.
fn command_in_sysfs(variable: &str) -> u16 {
    let config =
        std::fs::read(format!("/sys/bus/pci/devices/{}/config", address(variable))).unwrap();
    u16::from_le_bytes([config[4], config[5]])
}

guest_tests! {
    fn a_thousand_interrupts_come_and_none_is_lost() {
        let device = claim("EDU");
        let irq = device.irqs(IrqKind::Intx, 1).unwrap().pop().unwrap();
        let bar = device.bar(0).unwrap();
        for cause in 1..=1000 {
            bar.write32(spec::INTERRUPT_RAISE.offset(), cause);
            assert_eq!(irq.wait(soon()).unwrap(), 1);
            assert_eq!(bar.read32(spec::INTERRUPT_STATUS.offset()), cause);
            bar.write32(spec::INTERRUPT_ACKNOWLEDGE.offset(), cause);
            irq.unmask().unwrap();
        }
        assert_eq!(irq.stats(), IrqStats { count: 1000, missed: 0, storms: 0 });
    }

    fn a_pin_that_is_masked_signals_when_it_is_unmasked() {
        let device = claim("EDU");
        let irq = device.irqs(IrqKind::Intx, 1).unwrap().pop().unwrap();
        irq.mask().unwrap();
        device.bar(0).unwrap().write32(spec::INTERRUPT_RAISE.offset(), 1);
        assert_eq!(irq.wait(Deadline::after(Duration::from_millis(50))).unwrap(), 0);
        irq.unmask().unwrap();
        assert_eq!(irq.wait(soon()).unwrap(), 1);
    }

    fn an_interrupt_that_is_enabled_again_starts_at_nothing() {
        let device = claim("EDU");
        let bar = device.bar(0).unwrap();
        for _ in 0..3 {
            let irq = device.irqs(IrqKind::Intx, 1).unwrap().pop().unwrap();
            assert_eq!(irq.take().unwrap(), 0);
            bar.write32(spec::INTERRUPT_RAISE.offset(), 1);
            assert_eq!(irq.wait(soon()).unwrap(), 1);
            bar.write32(spec::INTERRUPT_ACKNOWLEDGE.offset(), 1);
        }
    }

    fn messages_are_unsupported() {
        let device = claim("EDU");
        let limits = device.irq_limits();
        assert_eq!((limits.intx, limits.msi, limits.msix), (1, 0, 0));
        assert!(matches!(device.irqs(IrqKind::Msi, 1), Err(Error::Unsupported(_))));
    }

    fn memory_is_one_piece_for_the_device_across_huge_pages() {
        let device = try_claim("EDU", options(4 * HUGE_PAGE)).unwrap();
        let dma = device.dma().clone();
        device.set_bus_master(true).unwrap();
        let bar = device.bar(0).unwrap();
        let base = dma.arena().iova();
        for page in 1..4 {
            let across = base + page * HUGE_PAGE as u64 - 1000;
            let pattern: Vec<u8> = (0..2000).map(|i| (i * 7 + page) as u8).collect();
            dma.write(across, &pattern).unwrap();
            transfer(&bar, across, 2000, 0);
            transfer(&bar, base, 2000, spec::DMA_TO_MEMORY);
            let mut back = vec![0; 2000];
            dma.read(base, &mut back).unwrap();
            assert_eq!(back, pattern);
        }
    }

    fn what_belongs_to_the_backend_is_not_written() {
        let device = claim("EDU");
        let command = device.config_read(pci::COMMAND, 2);
        assert!(
            device
                .config_write(pci::COMMAND, 2, command | u32::from(pci::COMMAND_BUS_MASTER))
                .is_err()
        );
        assert!(device.config_write(pci::BAR0, 4, 0).is_err());
        assert_eq!(device.config_read(pci::COMMAND, 2), command);
        device.config_write(0x3c, 1, 0x5a).unwrap();
        assert_eq!(device.config_read(0x3c, 1), 0x5a);
    }

    fn an_access_beyond_the_bar_reads_all_ones() {
        let device = claim("EDU");
        let bar = device.bar(0).unwrap();
        assert_eq!(
            (bar.read32(bar.len()), bar.read64(u64::MAX - 3), bar.read32(bar.len() - 2)),
            (u32::MAX, u64::MAX, u32::MAX),
        );
        assert!(matches!(device.bar(3), Err(Error::Unsupported(_))));
    }

    fn a_second_claim_is_busy_and_names_the_process() {
        let _first = claim("EDU");
        let error = try_claim("EDU", options(1 << 20)).err().unwrap();
        assert!(
            matches!(
                &error,
                Error::Busy(text) if text.contains(&format!("process {}", std::process::id())),
            ),
            "{error}",
        );
    }

    fn a_claim_that_is_given_up_leaves_no_warden_and_can_be_made_again() {
        for _ in 0..3 {
            assert_eq!(claim("EDU").bar(0).unwrap().read32(0) & 0xff, 0xed);
            assert_eq!(wardens(), [0; 0]);
        }
    }

    fn a_bar_keeps_the_claim_and_the_last_handle_stops_the_transfers() {
        let device = claim("EDU");
        device.set_bus_master(true).unwrap();
        let bar = device.bar(0).unwrap();
        drop(device);
        assert!(command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER != 0);
        drop(bar);
        assert!(command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER == 0);
    }

    fn without_its_warden_no_device_may_start_transfers() {
        let device = claim("EDU");
        let warden = poll_until(soon(), "its start", || Ok(wardens().first().copied())).unwrap();
        let warden = rustix::process::Pid::from_raw(warden).unwrap();
        rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
        poll_until(soon(), "its end", || Ok(wardens().is_empty().then_some(()))).unwrap();
        assert!(device.set_bus_master(true).unwrap_err().to_string().contains(WARDEN));
        assert!(command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER == 0);
    }

    fn a_reset_keeps_what_was_enabled() {
        let device = claim("EDU");
        device.set_bus_master(true).unwrap();
        device.reset().unwrap();
        assert_eq!(device.bar(0).unwrap().read32(0) & 0xff, 0xed);
        assert!(command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER != 0);
    }

    fn ports_are_reached_by_every_thread() {
        // BAR 1 is of ports. Writing a test's number to byte 0 selects it; its name stands from
        // byte 16 on. [QEMU, docs/specs/pci-testdev.rst]
        let (to_thread, from_here) = std::sync::mpsc::channel::<Bar>();
        // It is there before the ports are allowed, so it does not inherit the permission.
        let thread = std::thread::spawn(move || {
            let bar = from_here.recv().unwrap();
            (0..3).map(|at| bar.read8(16 + at)).collect::<Vec<_>>()
        });
        let bar = claim("TESTDEV").bar(1).unwrap();
        bar.write8(0, 0);
        assert_eq!(bar.read32(16).to_le_bytes()[..3], *b"por");
        assert_eq!(
            (bar.read8(bar.len()), bar.read64(bar.len() - 4) >> 32), (u8::MAX, u64::from(u32::MAX)),
        );
        to_thread.send(bar).unwrap();
        assert_eq!(thread.join().unwrap(), b"por");
    }

    fn a_function_that_is_pulled_is_gone_and_its_claim_ends_quietly() {
        let device = claim("PULLED");
        std::fs::write(format!("/sys/bus/pci/devices/{}/remove", address("PULLED")), "1").unwrap();
        assert_eq!(device.config_read(0, 2), u32::MAX);
        assert!(matches!(device.set_bus_master(false), Err(Error::Gone)));
        drop(device);
        assert_eq!(wardens(), [0; 0]);
    }

    fn the_transfer_of_a_killed_driver_does_not_reach_memory() {
        if std::env::var_os(VICTIM).is_some() {
            start_a_transfer_and_wait_for_the_end();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "the_transfer_of_a_killed_driver_does_not_reach_memory";
        let mut victim = command
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let iova = lines
            .find_map(|line| line.unwrap().split_once("transferring to ")?.1.parse::<u64>().ok())
            .unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        poll_until(
            Deadline::after(Duration::from_millis(100)), "the warden's end",
            || Ok(wardens().is_empty().then_some(())),
        ).unwrap();
        assert!(command_in_sysfs("EDU") & pci::COMMAND_BUS_MASTER == 0);
        // All the memory that the victim may have had, cleared by the kernel before it is seen
        // here.
        let ours = try_claim("EDU", options(HUGE_PAGE)).unwrap();
        let base = ours.dma().arena().iova();
        assert!(
            (base..base + HUGE_PAGE as u64).contains(&iova),
            "the kernel gave other pages: {base:#x}, not {iova:#x}",
        );
        // Longer than the device takes.
        std::thread::sleep(Duration::from_millis(300));
        let mut bytes = [0; 64];
        ours.dma().read(iova, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
    }
}

/// Starts a transfer between memory at `iova` and the device. [EDU, 0x80 to 0x98]
fn start(bar: &Bar, iova: u64, len: u64, direction: u64) {
    let to_memory = direction & spec::DMA_TO_MEMORY != 0;
    let (source, destination) = if to_memory { (spec::BUFFER, iova) } else { (iova, spec::BUFFER) };
    bar.write64(spec::DMA_SOURCE.offset(), source);
    bar.write64(spec::DMA_DESTINATION.offset(), destination);
    bar.write64(spec::DMA_COUNT.offset(), len);
    bar.write64(spec::DMA_COMMAND.offset(), spec::DMA_START | direction);
}

fn transfer(bar: &Bar, iova: u64, len: u64, direction: u64) {
    start(bar, iova, len, direction);
    poll_until(soon(), "a transfer", || {
        Ok((bar.read64(spec::DMA_COMMAND.offset()) & spec::DMA_START == 0).then_some(()))
    })
    .unwrap();
}

/// The device is asked to write to memory in 100 ms. [EDU, 0x98]
fn start_a_transfer_and_wait_for_the_end() -> ! {
    let device = claim("EDU");
    let (bar, buffer) = (device.bar(0).unwrap(), device.dma().arena().alloc(64, 64).unwrap());
    device.set_bus_master(true).unwrap();
    // What the device has in its memory, which is what it will write.
    buffer.fill(0x5a);
    transfer(&bar, buffer.iova(), 64, 0);
    buffer.fill(0);
    start(&bar, buffer.iova(), 64, spec::DMA_TO_MEMORY);
    println!("transferring to {}", buffer.iova());
    std::thread::sleep(Duration::from_secs(60));
    panic!("nobody killed it");
}
