//! DPDK's testpmd in a guest, from the distribution's package.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_lab::{Cache, Guest, Need, prepare};

/// Of 2 MiB, for DPDK's memory, which is in these alone, and for our arena.
const HUGE_PAGES: u32 = 128;
/// MiB of the guest.
const MEMORY: u32 = 768;
/// How long testpmd takes to start, a link's coming up included.
const START: Duration = Duration::from_secs(5);
/// What it says.
const LOG: &str = "/tmp/testpmd";

/// Makes /dpdk a root in which testpmd runs.
pub const ROOT: &str = r"
mkdir -p /dpdk
tar -xf /dpdk.tar -C /dpdk
for folder in dev proc sys; do mkdir -p /dpdk/$folder; mount -o bind /$folder /dpdk/$folder; done
mkdir -p /dpdk/tmp /dpdk/var/run
";

/// A guest that has it, and room for it; a step that uses it begins with [`ROOT`].
pub fn with(guest: Guest) -> Result<Guest> {
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Dpdk], &mut |line| errln!("{line}"))?;
    let mut guest = guest.file("/dpdk.tar", &cache.path("dpdk/dpdk.tar"));
    (guest.memory_mib, guest.hugepages) = (MEMORY, HUGE_PAGES);
    Ok(guest)
}

/// testpmd on cards, until this is dropped.
///
/// It writes when its buffer is full, and at its end: nothing of it can be waited for but its end.
pub struct Testpmd(Child);

impl Testpmd {
    /// Starts it with more `options`; it forwards from now on, on one core.
    pub fn start(devices: &[Uri], options: &[&str]) -> Result<Self> {
        let mut command = Command::new("chroot");
        // Both of its threads are on the one processor; that of its prompt sleeps.
        command.args([
            "/dpdk",
            "/usr/bin/dpdk-testpmd",
            "--lcores",
            "(0,1)@0",
            "--no-telemetry",
            "--in-memory",
        ]);
        command.args(["--iova-mode=va", "-m", "64"]);
        for device in devices {
            if device.scheme != "vfio" {
                bail!("DPDK drives a card by VFIO, and {device} is none of it");
            }
            command.args(["-a", &device.target]);
        }
        command
            .args(["--", "--total-num-mbufs=4096", "--nb-cores=1", "--rxd=256", "--txd=256", "-i"])
            .args(options);
        let log = File::create(LOG).context(LOG)?;
        let child = command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).spawn();
        let mut started = Self(child.context("starting testpmd")?);
        std::thread::sleep(START);
        match started.0.try_wait()? {
            Some(_) => bail!(
                "testpmd does not start:\n{}",
                std::fs::read_to_string(LOG).unwrap_or_default()
            ),
            None => Ok(started),
        }
    }

    /// Types a line at its prompt.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.0.stdin.as_mut().context("testpmd has no input")?;
        writeln!(stdin, "{line}").context("testpmd has ended")
    }

    /// Packets that it has received each second of `time`, of all its cards.
    pub fn received(mut self, time: Duration) -> Result<f64> {
        for _ in 0..2 {
            self.say("show port stats all")?;
            std::thread::sleep(time);
        }
        self.stop();
        let said = std::fs::read_to_string(LOG).unwrap_or_default();
        rates(&said).with_context(|| format!("testpmd has not said what it has received:\n{said}"))
    }

    /// The process.
    pub fn process(&self) -> u32 {
        self.0.id()
    }

    fn stop(&mut self) {
        // One that has ended already hears nothing.
        let _ = self.say("stop").and_then(|()| self.say("quit"));
        let _ = self.0.wait();
    }
}

/// The sum of what the cards have received each second when that was shown last.
fn rates(said: &str) -> Option<f64> {
    let last = said.lines().filter(|line| line.contains("NIC statistics for port")).count() / 2;
    let rates = said.lines().filter_map(|line| {
        line.trim().strip_prefix("Rx-pps:")?.split_whitespace().next()?.parse::<f64>().ok()
    });
    let rates: Vec<f64> = rates.collect();
    (last > 0 && rates.len() == 2 * last).then(|| rates[last..].iter().sum())
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_all_cards_when_they_were_shown_last() {
        let shown = |rate: u32| {
            format!(
                "  ### NIC statistics for port 0  ###\n  Rx-pps:      {rate}          Rx-bps:   \
                5\n  Tx-pps:  7\n"
            )
        };
        assert_eq!(rates(&[shown(1), shown(2), shown(30), shown(40)].concat()), Some(70.0));
        assert_eq!((rates(""), rates(&shown(1))), (None, None));
    }
}
