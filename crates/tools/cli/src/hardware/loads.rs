//! The steps that put a load on the device.

use std::time::{Duration, Instant};

use anyhow::Result;
use ring3_spec::nvme;
use serde_json::Value;

use super::look::Found;
use super::report::{Health, Kill, Measured, Performance, Reset, Temperature, Verify};
use super::steps::{GRACE, Known, READS};
use super::test::{End, Test};

const WRITES: [&str; 2] = ["randwrite-4k-qd1", "randwrite-4k-qd32"];
/// MiB of the disk that are written and verified with --destroy.
const WRITTEN: u64 = 256;
/// Data is verified by processes of this length; between two of them the temperature is read.
const SLICE: Duration = Duration::from_secs(60);

impl Test {
    pub(super) fn performance(&mut self, known: &mut Known) -> Result<End> {
        if self.is_card() {
            return Ok(End::Skipped("a card is measured with a second machine".into()));
        }
        if !self.is_plain() {
            let why = "the loads are of a controller's only disk, without --quirk";
            return Ok(End::Skipped(why.into()));
        }
        let mut loads = READS.to_vec();
        if self.args.destroy {
            loads.extend(WRITES);
        }
        let uri = self.place.uri.clone();
        let end = self.measure(&uri, Measured::Ring3, &loads)?;
        self.note_temperature("performance", known.class);
        Ok(end)
    }

    /// Puts each of `loads` on the device or the kernel's disk `target`.
    pub(super) fn measure(
        &mut self,
        target: &str,
        driver: Measured,
        loads: &[&str],
    ) -> Result<End> {
        let seconds = self.depth.seconds;
        let mut words: Vec<String> =
            ["blk", "bench", "--latency", "--json", "--device", target].map(str::to_owned).to_vec();
        words.extend(["--seconds".into(), seconds.to_string()]);
        for load in loads {
            words.extend(["--workload".into(), (*load).into()]);
        }
        if driver == Measured::Ring3 {
            let own = self.args.protection.words().split_whitespace().map(str::to_owned);
            words.extend(own);
            if self.args.destroy {
                words.push("--overwrite".into());
            }
        }
        let own = Duration::from_secs_f64(seconds * loads.len() as f64);
        let answer = self.ask(&words, own)?;
        let rows: Vec<_> = answer.values().iter().filter_map(|one| row(one, driver)).collect();
        let text: Vec<_> = rows.iter().map(line).collect();
        let whole = rows.len() == loads.len();
        self.report.performance.extend(rows);
        Ok(match answer.is_good() && whole {
            true => End::Passed(text.join("; ")),
            false => End::Failed(answer.why()),
        })
    }

    pub(super) fn kill(&mut self, known: &mut Known) -> Result<End> {
        if self.is_card() {
            return Ok(End::Skipped("the load for kills is one of disks".into()));
        }
        if let Some(why) = self.place.ends_with_its_driver() {
            return Ok(End::Skipped(why.into()));
        }
        if !self.is_plain() || known.disks != 1 {
            let why = "drivers are killed on a controller's only disk, without --quirk";
            return Ok(End::Skipped(why.into()));
        }
        let how = if self.args.destroy { "--overwrite" } else { "--read-only" };
        let kills = self.depth.kills;
        let words =
            self.words_without_protection(&format!("bench kill {how} --json --times {kills}"));
        let answer = self.ask(&words, GRACE)?;
        let value = answer.values().pop().unwrap_or_default();
        let Ok(mut kill) = serde_json::from_value::<Kill>(value) else {
            return Ok(End::Failed(answer.why()));
        };
        kill.kills = kills.into();
        let text = format!(
            "{kills} drivers killed, {} reads right, {} wrong; the next one reads after {:.0} ms",
            kill.reads, kill.mismatches, kill.recovery_ms_p50
        );
        let is_right = answer.is_good() && kill.mismatches == 0;
        self.report.kill = Some(kill);
        Ok(if is_right { End::Passed(text) } else { End::Failed(text) })
    }

    fn words_without_protection(&self, words: &str) -> Vec<String> {
        let mut all: Vec<String> = words.split(' ').map(str::to_owned).collect();
        all.extend(["--device".into(), self.place.uri.clone()]);
        all
    }

    pub(super) fn reset(&mut self, known: &mut Known) -> Result<End> {
        if self.is_card() {
            return Ok(End::Skipped("the load for resets is one of disks".into()));
        }
        let resets = self.depth.resets;
        let found = self.read(known, 0.0, resets, "reset")?;
        if let Some(why) = found.no_reset {
            return Ok(End::Skipped(why));
        }
        let longest = found.recovery_ms.iter().copied().fold(0.0, f64::max);
        let text = format!(
            "{} resets under reads, {} errors, {} regions changed; a read is done after \
            {longest:.0} ms at most",
            found.recovery_ms.len(),
            found.errors,
            found.mismatches
        );
        // A read that a reset has met may end with an error; what is wrong is data that changes,
        // and a device that does not come back.
        let is_right = found.mismatches == 0 && found.whole_at_end;
        self.report.reset = Some(Reset {
            resets: found.recovery_ms.len() as u64,
            recovery_ms: found.recovery_ms,
            passes: found.passes,
            errors: found.errors,
            mismatches: found.mismatches,
        });
        Ok(match is_right {
            true => End::Passed(text),
            false => End::Failed(format!("{text}: {}", found.first.unwrap_or_default())),
        })
    }

    pub(super) fn verify(&mut self, known: &mut Known) -> Result<End> {
        if self.is_card() {
            return Ok(End::Skipped("it is a card".into()));
        }
        let begin = Instant::now();
        let mut verify = Verify::default();
        let mut first = None;
        while begin.elapsed() < self.depth.verify && verify.errors + verify.mismatches == 0 {
            let left = self.depth.verify.saturating_sub(begin.elapsed()).min(SLICE);
            let found = match self.args.destroy && self.is_plain() {
                true => self.write_and_verify(known, left)?,
                false => self.read(known, left.as_secs_f64(), 0, "verify")?,
            };
            let changed = known.ours.iter().zip(&found.digests).filter(|(one, other)| one != other);
            let changed = if self.args.destroy { 0 } else { changed.count() as u64 };
            verify.passes += found.passes;
            verify.bytes += found.bytes;
            verify.errors += found.errors;
            verify.mismatches += found.mismatches + changed;
            first = first.or(found.first);
            self.note_temperature("verify", known.class);
        }
        verify.seconds = begin.elapsed().as_secs_f64();
        let text = format!(
            "{} MiB in {:.0} s, {} errors, {} wrong",
            verify.bytes >> 20,
            verify.seconds,
            verify.errors,
            verify.mismatches
        );
        let is_right = verify.errors + verify.mismatches == 0;
        self.report.verify = Some(verify);
        Ok(match (is_right, first) {
            (true, _) => End::Passed(text),
            (false, Some(first)) => End::Failed(format!("{text}: {first}")),
            (false, None) => End::Failed(text),
        })
    }

    /// Writes a part of the disk, and then writes and reads it at random; every read is checked.
    fn write_and_verify(&self, known: &Known, time: Duration) -> Result<Found> {
        let region = (known.capacity >> 20).clamp(1, WRITTEN);
        let common = format!("blk bench --json --overwrite --verify --region {region}");
        let count = region * 8;
        let fill = format!("{common} --workload seqwrite-128k-qd8 --count {count}");
        let seconds = time.as_secs_f64().max(1.0);
        let load = format!("{common} --workload randrw-4k-qd32 --seconds {seconds}");
        let mut found = Found::default();
        for command in [fill, load] {
            let answer = self.ask(&self.words(&command), time)?;
            let value = answer.values().pop().unwrap_or_default();
            let number = |name: &str| value[name].as_u64().unwrap_or(0);
            found.errors += number("errors");
            found.mismatches += number("mismatches");
            let bytes = if command.contains("128k") { 128 << 10 } else { 4096 };
            found.bytes += number("operations") * bytes;
            if !answer.is_good() {
                found.errors = found.errors.max(1);
                found.first.get_or_insert(answer.why());
            }
        }
        found.passes = 1;
        Ok(found)
    }

    /// Reads the temperature, if the device says it.
    pub(super) fn note_temperature(&mut self, after: &str, class: Option<u32>) {
        if class != Some(nvme::CLASS) {
            return;
        }
        let words = self.identity_words("nvme smart --json");
        let Ok(smart) = self.ask(&words, Duration::ZERO).and_then(|answer| answer.value()) else {
            return;
        };
        let health = self.report.health.get_or_insert_with(Health::default);
        if let Some(celsius) = smart["temperature_celsius"].as_i64() {
            health.temperatures.push(Temperature { after: after.into(), celsius });
        }
        health.smart = smart;
    }

    pub(super) fn temperature(&mut self, known: &mut Known) -> Result<End> {
        self.note_temperature("end", known.class);
        let Some(health) = &self.report.health else {
            return Ok(End::Skipped("ring3 reads the temperature of NVMe drives only".into()));
        };
        let all = health.temperatures.iter().map(|one| one.celsius);
        let text = match (all.clone().min(), all.max()) {
            (Some(lowest), Some(highest)) => format!("{lowest} to {highest} °C"),
            _ => return Ok(End::Failed("the drive has not said its health".into())),
        };
        let warnings = health.smart["warnings"].as_array().into_iter().flatten();
        let warnings: Vec<_> = warnings.filter_map(Value::as_str).collect();
        Ok(match &warnings[..] {
            [] => End::Passed(text),
            warnings => End::Failed(format!("{text}; the drive warns: {}", warnings.join(", "))),
        })
    }
}

/// One line of `ring3 blk bench --json`.
fn row(value: &Value, driver: Measured) -> Option<Performance> {
    let number = |name: &str| value[name].as_f64();
    Some(Performance {
        driver,
        workload: value["workload"].as_str()?.to_owned(),
        iops: number("iops")?,
        mib_s: number("mib_s")?,
        latency_us_p50: number("latency_us_p50"),
        latency_us_p99: number("latency_us_p99"),
    })
}

fn line(row: &Performance) -> String {
    let median = row.latency_us_p50.map(|p50| format!(", {p50:.1} us")).unwrap_or_default();
    format!("{} {:.0} IOPS{median}", row.workload, row.iops)
}
