//! What a driver process tells about itself.

use std::time::Duration;

use ring3_export::ublk::Stats;
use serde::Serialize;

use crate::disks::DiskExport;

/// One exported disk.
#[derive(Clone, Debug, Serialize)]
pub struct Exported {
    /// `/dev/ublkbN`, or `/dev/vdX`.
    pub device: String,
    /// N, of a ublk device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// By which whoever comes after a death goes on with it, of a VDUSE device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The disk's name: device and namespace.
    pub disk: String,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Queues, and so threads.
    pub queues: usize,
}

/// Figures of an export so far.
#[derive(Clone, Debug, Serialize)]
pub struct ExportStats {
    /// Which.
    #[serde(flatten)]
    pub exported: Exported,
    /// What it has done.
    #[serde(flatten)]
    pub stats: Stats,
}

/// The report of a process: written at its end, and on SIGUSR1.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device, as the user named it.
    pub device: String,
    /// Milliseconds from before the claim until the driver was ready.
    pub attach_ms: f64,
    /// Milliseconds from before the claim until all disks were there, their partitions looked for.
    pub ready_ms: Option<f64>,
    /// Milliseconds from before the claim until the first request had ended.
    pub first_request_ms: Option<f64>,
    /// The most resident memory so far in bytes, DMA memory included.
    pub peak_memory_bytes: Option<u64>,
    /// The exports.
    pub exports: Vec<ExportStats>,
}

/// When things happened, counted from before the claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartupTimes {
    /// The driver was ready.
    pub attached: Duration,
    /// All disks were there.
    pub ready: Option<Duration>,
}

impl Report {
    /// The report of now. Each export stands with its description and with when it began to start.
    pub fn new(
        device: String,
        times: StartupTimes,
        exports: &[(Exported, Duration, Stats)],
    ) -> Self {
        let first = |(_, began, stats): &(_, Duration, Stats)| {
            Some(*began + Duration::from_nanos(stats.first_request_ns?))
        };
        Self {
            device,
            attach_ms: milliseconds(times.attached),
            ready_ms: times.ready.map(milliseconds),
            first_request_ms: exports.iter().filter_map(first).min().map(milliseconds),
            peak_memory_bytes: ring3_process::peak_memory(),
            exports: exports
                .iter()
                .map(|(exported, _, stats)| ExportStats {
                    exported: exported.clone(),
                    stats: *stats,
                })
                .collect(),
        }
    }
}

impl Exported {
    /// Describes `export` of the disk with that name.
    pub fn new(export: &DiskExport, disk: &dyn ring3_class::block::Disk) -> Self {
        let info = disk.info();
        Self {
            device: export.path().display().to_string(),
            id: export.id(),
            name: export.name(),
            disk: disk.name(),
            bytes: info.capacity(),
            block_size: info.block_size,
            queues: export.queues(),
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
