//! `bench irq-delay`: from an interrupt's cause to its handler in the kernel, and from there to
//! whoever waits for it in a process, as in Table 4.2 of Weisbach 2011.
//!
//! # Method
//! A thread sets a cause in the card (82574L) as if it had come, by the register that is there for
//! it, a millisecond after the last one was seen; another thread waits for the interrupt as the
//! queues of our drivers do. Both read the time stamp counter, and between the two lies the
//! kernel's own event of the handler that wakes the process. That event takes about a thousand
//! instructions, which are in the delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::wait::Waiter;
use ring3_device::{Deadline, Device, Registers};
use ring3_spec::e1000::interrupt::{self, Causes, Vectors};
use ring3_spec::e1000::{BAR, BAR_BYTES};

use crate::Error;
use crate::report::Measurement;
use crate::trace::event::{Event, What};
use crate::trace::{Tracing, now};

/// Between what was seen and the next cause.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest that an interrupt may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the kernel calls the handler that wakes a process.
const HANDLER: &str = "vfio-msix[0]";

/// A card that nobody drives.
pub struct Card {
    name: String,
    registers: Registers,
    irq: Arc<Irq>,
    /// The card is given back after its interrupt.
    _device: Arc<dyn Device>,
}

impl Card {
    /// Takes `device`, which must be an 82574L, with one message for what was received.
    pub fn open(device: Arc<dyn Device>) -> Result<Self, Error> {
        let name = device.name().to_owned();
        let failed = |source| Error::Device { name: name.clone(), source };
        let registers =
            Registers::new(device.bar(BAR).map_err(failed)?, BAR_BYTES).map_err(failed)?;
        registers.write(interrupt::MASK_CLEAR, Causes::ALL);
        let irqs = device.irqs(IrqKind::MsiX, 1).map_err(failed)?;
        let irq = irqs
            .into_iter()
            .next()
            .ok_or_else(|| Error::Invalid(format!("{name}: it has no messages")))?;
        device.set_bus_master(true).map_err(failed)?;
        registers.write(interrupt::VECTORS, Vectors(0).with_receive0(Vectors::VALID));
        registers.write(interrupt::AUTO_CLEAR, cause());
        Ok(Self { name, registers, irq: Arc::new(irq), _device: device })
    }

    /// Raises `runs` interrupts, one after the other, and fills the numbers of `into` in.
    pub fn measure(&mut self, runs: u32, into: Measurement) -> Result<Measurement, Error> {
        let tracing = Tracing::of(&["irq/irq_handler_entry"])?;
        let (start, ticks) = (Instant::now(), now()?);
        let marks = self.raise(runs);
        self.registers.write(interrupt::MASK_CLEAR, Causes::ALL);
        let (elapsed, ticks) = (start.elapsed(), now()? - ticks);
        let events = tracing.stop()?;
        let micros = elapsed.as_secs_f64() * 1e6 / ticks.max(1) as f64;
        Ok(delays(&events, &marks?, micros, into))
    }

    /// Sets the cause and looks for it without an interrupt.
    pub fn measure_polled(&mut self, runs: u32, into: Measurement) -> Result<Measurement, Error> {
        let (start, began, mut took) = (Instant::now(), now()?, Vec::new());
        for _ in 0..runs {
            let (raised, deadline) = (now()?, Deadline::after(PATIENCE));
            self.registers.write(interrupt::CAUSE_SET, cause());
            while self.registers.take(interrupt::CAUSE).receive_queues() == 0 {
                if deadline.expired() {
                    return Err(self.silent());
                }
            }
            took.push((now()? - raised) as f64);
            self.registers.write(interrupt::ACKNOWLEDGE, Causes::ALL);
        }
        let micros = start.elapsed().as_secs_f64() * 1e6 / (now()? - began).max(1) as f64;
        took.iter_mut().for_each(|ticks| *ticks *= micros);
        Ok(quantiles(into, ["raise_us_p50", "raise_us_p99"], &mut took))
    }

    /// When each cause was set, and when the process knew.
    fn raise(&self, runs: u32) -> Result<Vec<(u64, u64)>, Error> {
        let (raised, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let (say, hear) = mpsc::channel();
        thread::scope(|scope| {
            let (raised, stop) = (&raised, &stop);
            let irq = self.irq.clone();
            scope.spawn(move || wait(irq, raised, stop, &say));
            let one = || {
                thread::sleep(PAUSE);
                // Its message has masked the last cause.
                self.registers.write(interrupt::MASK_SET, cause());
                let at = now()?;
                raised.store(true, Ordering::Release);
                self.registers.write(interrupt::CAUSE_SET, cause());
                let seen = hear.recv_timeout(PATIENCE).map_err(|_| self.silent())?;
                Ok((at, seen?))
            };
            let marks = (0..runs).map(|_| one()).collect();
            stop.store(true, Ordering::Release);
            marks
        })
    }

    fn silent(&self) -> Error {
        Error::Invalid(format!(
            "{}: a cause that was set is not seen within {} s",
            self.name,
            PATIENCE.as_secs()
        ))
    }
}

/// Frames were received in queue 0.
fn cause() -> Causes {
    Causes::NONE.with_receive_queues(1)
}

/// Waits as a queue does, and says when it knew.
fn wait(
    irq: Arc<Irq>,
    raised: &AtomicBool,
    stop: &AtomicBool,
    say: &mpsc::Sender<Result<u64, Error>>,
) {
    let mut waiter = Waiter::new(Some(irq), Duration::ZERO);
    while !stop.load(Ordering::Acquire) {
        let seen =
            match waiter.wait(Deadline::after(PATIENCE / 100), || raised.load(Ordering::Acquire)) {
                Ok(true) => now(),
                Ok(false) => continue,
                Err(source) => Err(Error::Device { name: "the interrupt".into(), source }),
            };
        raised.store(false, Ordering::Release);
        // Whoever has raised it listens, or has given up.
        if say.send(seen).is_err() {
            return;
        }
    }
}

/// What lies between causes, handlers and the process, in microseconds, of which a tick has so
/// many. A cause for which no handler ran before the process knew is left out: the process had not
/// gone to sleep.
fn delays(events: &[Event], marks: &[(u64, u64)], micros: f64, into: Measurement) -> Measurement {
    let is_handler =
        |event: &&Event| matches!(&event.what, What::Interrupt(name) if name.starts_with(HANDLER));
    let handlers: Vec<u64> = events.iter().filter(is_handler).map(|event| event.at).collect();
    let (mut kernel, mut process, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    for &(raised, seen) in marks {
        let next = handlers.partition_point(|&at| at < raised);
        let Some(&at) = handlers.get(next).filter(|&&at| at <= seen) else { continue };
        kernel.push((at - raised) as f64 * micros);
        process.push((seen - at) as f64 * micros);
        whole.push((seen - raised) as f64 * micros);
    }
    let mean = process.iter().sum::<f64>() / process.len().max(1) as f64;
    let complete = 100.0 * process.len() as f64 / marks.len().max(1) as f64;
    let into = into.with("complete_percent", complete).with("process_us_mean", mean);
    let into = quantiles(into, ["kernel_us_p50", "kernel_us_p99"], &mut kernel);
    let into = quantiles(into, ["process_us_p50", "process_us_p99"], &mut process);
    quantiles(into, ["raise_us_p50", "raise_us_p99"], &mut whole)
}

fn quantiles(into: Measurement, [half, most]: [&str; 2], values: &mut [f64]) -> Measurement {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        values
            .get(((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1)))
            .copied()
    };
    match (at(0.5), at(0.99)) {
        (Some(middle), Some(late)) => into.with(half, middle).with(most, late),
        _ => into,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(at: u64, name: &str) -> Event {
        Event { at, thread: 0, what: What::Interrupt(name.into()) }
    }

    #[test]
    fn a_delay_is_cut_where_the_handler_of_the_process_begins_and_what_nobody_slept_for_is_left_out()
     {
        let events = [
            handler(90, "vfio-msix[0](0000:02:00.0)"),
            handler(105, "eth0-rx-0"),
            handler(110, "vfio-msix[0](0000:02:00.0)"),
            handler(400, "vfio-msix[0](0000:02:00.0)"),
        ];
        let marks = [(100, 150), (300, 350)];
        let values =
            delays(&events, &marks, 2.0, Measurement::new(1, "irq-idle", "process")).values;
        assert_eq!(
            (values["kernel_us_p50"], values["process_us_mean"], values["raise_us_p99"]),
            (20.0, 80.0, 100.0)
        );
        assert_eq!(values["complete_percent"], 50.0);
    }

    #[test]
    fn ninety_nine_of_a_hundred_are_not_later_than_the_quantile() {
        let mut values: Vec<f64> = (1..=200).map(f64::from).rev().collect();
        let measured = quantiles(
            Measurement::new(1, "irq-idle", "process"),
            ["raise_us_p50", "raise_us_p99"],
            &mut values,
        );
        assert_eq!(
            (measured.values["raise_us_p50"], measured.values["raise_us_p99"]),
            (101.0, 199.0)
        );
        assert!(
            quantiles(Measurement::new(1, "irq-idle", "process"), ["a", "b"], &mut [])
                .values
                .is_empty()
        );
    }
}
