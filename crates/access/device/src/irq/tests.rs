use std::sync::Mutex;

use rustix::event::{EventfdFlags, eventfd};

use super::*;

#[derive(Default)]
struct Journal(Mutex<Vec<&'static str>>);

impl IrqControl for Journal {
    fn mask(&self, _: u16) -> Result<(), Error> {
        self.0.lock().unwrap().push("mask");
        Ok(())
    }
    fn unmask(&self, _: u16) -> Result<(), Error> {
        self.0.lock().unwrap().push("unmask");
        Ok(())
    }
}

fn vector(kind: IrqKind) -> (Irq, OwnedFd, Arc<Journal>) {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let device = fd.try_clone().unwrap();
    let journal = Arc::new(Journal::default());
    let limit =
        StormLimit { count: 10, window: Duration::from_secs(5), hold: Duration::from_millis(20) };
    (Irq::new(fd, kind, 3, Some(journal.clone())).with_storm_limit(limit), device, journal)
}

fn raise(device: &OwnedFd, times: u64) {
    rustix::io::write(device, &times.to_ne_bytes()).unwrap();
}

#[test]
fn interrupts_that_come_together_are_counted_as_missed() {
    let (irq, device, _) = vector(IrqKind::MsiX);
    raise(&device, 3);
    irq.take().unwrap();
    assert_eq!(irq.stats(), IrqStats { count: 3, missed: 2, storms: 0 });
}

#[test]
fn a_uio_file_counts_on_from_what_it_said_when_it_was_opened_even_around_zero() {
    let (reader, device) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let irq = Irq::of_uio(reader, u32::MAX, Arc::new(Journal::default()));
    let says = |total: u32| rustix::io::write(&device, &total.to_ne_bytes()).unwrap();
    says(0);
    assert_eq!(irq.take().unwrap(), 1);
    says(3);
    assert_eq!((irq.take().unwrap(), irq.take().unwrap()), (3, 0));
    assert_eq!(irq.stats(), IrqStats { count: 4, missed: 2, storms: 0 });
}

#[test]
fn a_vector_behind_another_control_is_counted_in_its_own_way() {
    // A uio file says how often ever, in 4 bytes.
    let (file, kernel) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let journal = Arc::new(Journal::default());
    let irq = Irq::of_uio(file, 7, journal.clone()).behind(journal.clone()).unwrap();
    rustix::io::write(&kernel, &9u32.to_ne_bytes()).unwrap();
    assert_eq!((irq.take().unwrap(), irq.kind()), (2, IrqKind::Intx));
    irq.unmask().unwrap();
    assert_eq!(journal.0.lock().unwrap().as_slice(), ["unmask"]);
}

#[test]
fn a_storm_masks_the_vector_once() {
    let (irq, device, journal) = vector(IrqKind::MsiX);
    for _ in 0..3 {
        raise(&device, 11);
        irq.take().unwrap();
    }
    assert_eq!(
        (irq.stats().storms, journal.0.lock().unwrap().as_slice()),
        (1, ["mask"].as_slice())
    );
}

#[test]
fn interrupts_that_nobody_counted_for_long_are_no_storm() {
    let limit =
        StormLimit { count: 10, window: Duration::from_millis(1), hold: Duration::from_millis(20) };
    let (irq, device, journal) = vector(IrqKind::MsiX);
    let irq = irq.with_storm_limit(limit);
    std::thread::sleep(Duration::from_millis(50));
    // Two for each window on average.
    raise(&device, 100);
    irq.take().unwrap();
    raise(&device, 1);
    irq.take().unwrap();
    assert_eq!((irq.stats().storms, journal.0.lock().unwrap().len()), (0, 0));
}

#[test]
fn a_vector_that_storms_is_let_through_after_the_pause() {
    let (irq, device, journal) = vector(IrqKind::MsiX);
    raise(&device, 11);
    irq.take().unwrap();
    irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
    assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask", "unmask"]);
}

#[test]
fn unmasking_during_the_pause_takes_effect_at_its_end() {
    let (irq, device, journal) = vector(IrqKind::Intx);
    raise(&device, 11);
    irq.take().unwrap();
    irq.unmask().unwrap();
    assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask"]);
    irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
    assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask", "unmask"]);
}

#[test]
fn a_vector_that_its_owner_masked_stays_masked_after_the_pause() {
    let (irq, device, journal) = vector(IrqKind::MsiX);
    raise(&device, 11);
    irq.take().unwrap();
    irq.mask().unwrap();
    irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
    assert!(!journal.0.lock().unwrap().contains(&"unmask"));
}
