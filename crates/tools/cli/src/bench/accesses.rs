//! How often a driver touches its device's registers, counted by QEMU, which emulates them: its
//! trace events, with the host's time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ring3_bench::disk::{Controller, Event};

/// QEMU's events for one access each.
fn events(controller: Controller) -> &'static [&'static str] {
    match controller {
        Controller::Nvme => &["pci_nvme_mmio_read", "pci_nvme_mmio_write"],
        Controller::Ahci => &["ahci_mem_read", "ahci_mem_write"],
        Controller::Ide => &[
            "ide_ioport_read",
            "ide_ioport_write",
            "ide_status_read",
            "ide_ctrl_write",
            "ide_data_readw",
            "ide_data_writew",
            "ide_data_readl",
            "ide_data_writel",
            "bmdma_read",
            "bmdma_write",
            "bmdma_addr_read",
            "bmdma_addr_write",
        ],
    }
}

/// Counts the accesses of windows.
pub struct Accesses {
    controller: Controller,
    /// Without a name: nothing is left behind, however this ends.
    log: File,
    opened: Option<Duration>,
    /// Accesses per request in the last window.
    counted: Option<f64>,
}

impl Accesses {
    /// Counts what `controller`'s registers see.
    pub fn new(controller: Controller) -> Result<Self> {
        let log = tempfile::tempfile().context("making a file for QEMU's trace")?;
        Ok(Self { controller, log, opened: None, counted: None })
    }

    /// What QEMU must be told.
    pub fn arguments(&self) -> Vec<String> {
        let log = format!("/proc/{}/fd/{}", std::process::id(), self.log.as_raw_fd());
        let traced = events(self.controller)
            .iter()
            .flat_map(|event| ["-trace".to_owned(), (*event).to_owned()]);
        ["-msg", "timestamp=on", "-D", &log].map(str::to_owned).into_iter().chain(traced).collect()
    }

    /// Takes a window's ends, and adds what was counted to the measurement that follows.
    pub fn see(&mut self, event: Event) -> Event {
        match event {
            Event::Window { requests: None } => self.opened = Some(now()),
            Event::Window { requests: Some(requests) } => {
                self.counted =
                    self.opened.take().and_then(|from| self.count(from, now()).ok()).map(|count| {
                        // Requests and accesses are far fewer than 2^53.
                        count as f64 / requests.max(1) as f64
                    });
            }
            Event::Measured(measured) => {
                return Event::Measured(match self.counted.take() {
                    Some(count) => measured.with("accesses_per_op", count),
                    None => measured,
                });
            }
            _ => {}
        }
        event
    }

    fn count(&mut self, from: Duration, to: Duration) -> Result<usize> {
        let mut text = String::new();
        self.log.seek(SeekFrom::Start(0))?;
        self.log.read_to_string(&mut text)?;
        Ok(count(&text, events(self.controller), from, to))
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Lines `PROCESS@SECONDS:EVENT DETAILS` of the events between two times.
fn count(text: &str, events: &[&str], from: Duration, to: Duration) -> usize {
    let within = |line: &&str| {
        let (time, event) = line.split_once('@')?.1.split_once(':')?;
        let time = Duration::from_secs_f64(time.parse().ok()?);
        let event = event.split(' ').next()?;
        ((from..=to).contains(&time) && events.contains(&event)).then_some(())
    };
    text.lines().filter(|line| within(line).is_some()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_events_of_the_window_are_counted() {
        let text = "7@10.000001:pci_nvme_mmio_write addr 0x1008 data 0x1 size 4\n\
                    7@11.5:pci_nvme_mmio_write addr\n7@11.6:other x\n\
                    qemu: a warning\n7@11.7:pci_nvme_mmio_read addr 0x1c\n\
                    7@13:pci_nvme_mmio_read addr 0x1c\n";
        let seconds = Duration::from_secs;
        assert_eq!(count(text, events(Controller::Nvme), seconds(11), seconds(12)), 2);
    }
}
