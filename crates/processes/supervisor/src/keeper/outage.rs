//! How long users waited, and for what.

use std::time::{Instant, SystemTime};

use ring3_control::status::Outage;
use ring3_device::probes;

use crate::journal::seconds;

/// The cause of one that was wanted.
pub const UPGRADE: &str = "an upgrade";

/// The outage that goes on, if one does.
pub struct Record {
    device: String,
    began: Option<(Instant, Outage)>,
    last: f64,
}

impl Record {
    /// No outage of `device`.
    pub fn new(device: &str) -> Self {
        Self { device: device.into(), began: None, last: 0.0 }
    }

    /// Users begin to wait, unless they do.
    pub fn begin(&mut self, cause: &str) {
        probes::outage(&self.device, cause);
        let cause: String = cause.chars().take(200).collect();
        match &mut self.began {
            Some((_, outage)) => {
                outage.cause = format!("{}; then {cause}", outage.cause).chars().take(300).collect()
            }
            none => {
                let outage = Outage {
                    at: seconds(SystemTime::now()),
                    cause,
                    fence_ms: 0.0,
                    driver_ms: 0.0,
                    export_ms: 0.0,
                    total_ms: None,
                    reset: false,
                    adopted: false,
                };
                *none = Some((Instant::now(), outage));
            }
        }
    }

    /// The fence is over.
    pub fn fenced(&mut self, reset: bool) {
        probes::fence(&self.device, reset);
        self.mark(|outage, ms| (outage.fence_ms, outage.reset) = (ms, outage.reset | reset));
    }

    /// The driver drives a device that it has `adopted`, or one that it has started.
    pub fn driven(&mut self, adopted: bool) {
        probes::adopt(&self.device, adopted);
        self.mark(|outage, ms| (outage.driver_ms, outage.adopted) = (ms, adopted));
    }

    /// The kernel has given its half back.
    pub fn exported(&mut self) {
        self.mark(|outage, ms| outage.export_ms = ms);
    }

    /// Users wait no longer: they are served, or were told that they are not.
    pub fn end(&mut self, served: bool) -> Option<Outage> {
        let (began, mut outage) = self.began.take()?;
        probes::settled(&self.device, served);
        self.last = began.elapsed().as_secs_f64() * 1e3;
        outage.total_ms = served.then_some(self.last);
        Some(outage)
    }

    /// Milliseconds of the last one.
    pub fn last_ms(&self) -> f64 {
        self.last
    }

    fn mark(&mut self, set: impl FnOnce(&mut Outage, f64)) {
        if let Some((began, outage)) = &mut self.began {
            set(outage, began.elapsed().as_secs_f64() * 1e3);
        }
    }
}
