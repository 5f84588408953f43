//! What a device has done between two looks.

use std::time::Duration;

use ring3_control::status::{DeviceStatus, DiskStatus, InterfaceStatus, State};
use serde::Serialize;

/// A device, and how busy it was. The field names are stable: docs/json.md describes them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    pub name: String,
    pub state: State,
    /// Requests of disks and packets of interfaces.
    pub iops: f64,
    pub mib_per_s: f64,
    /// Milliseconds of a request that has ended; `None`: none has.
    pub latency_ms: Option<f64>,
    pub interrupts_per_s: f64,
    /// 100: one processor.
    pub cpu_percent: f64,
    pub restarts: u64,
    pub iommu_faults: u64,
    /// Packets that its card has lost, since its driver began.
    pub lost: u64,
    /// Of the last driver that died; `None`: none has, or it was not followed by another yet.
    pub outage_ms: Option<f64>,
}

/// What `after` has done since `before`, which was `since` ago. A device that was not there then
/// has done nothing.
pub fn rates(before: Option<&DeviceStatus>, after: &DeviceStatus, since: Duration) -> Rates {
    let per_second = |count: u64| count as f64 / since.as_secs_f64().max(1e-3);
    let of_device = |count: fn(&DeviceStatus) -> u64| {
        before.map_or(0, |before| grown(count(before), count(after)))
    };
    let of_disks = |count: fn(&DiskStatus) -> u64| {
        let of_disk = |disk: &DiskStatus| {
            let old = before?.disks.iter().find(|old| old.path == disk.path)?;
            Some(grown(count(old), count(disk)))
        };
        after.disks.iter().filter_map(of_disk).sum::<u64>()
    };
    let of_interfaces = |count: fn(&InterfaceStatus) -> u64| {
        let of_interface = |interface: &InterfaceStatus| {
            let old = before?.interfaces.iter().find(|old| old.index == interface.index)?;
            Some(grown(count(old), count(interface)))
        };
        after.interfaces.iter().filter_map(of_interface).sum::<u64>()
    };
    let packets =
        of_interfaces(|interface| interface.rx_packets.saturating_add(interface.tx_packets));
    let packet_bytes =
        of_interfaces(|interface| interface.rx_bytes.saturating_add(interface.tx_bytes));
    let disk_bytes = of_disks(|disk| disk.bytes_read.saturating_add(disk.bytes_written));
    let ended = of_disks(|disk| disk.reads.saturating_add(disk.writes));
    let io_ms = of_disks(|disk| disk.io_ms);
    Rates {
        name: after.name.clone(),
        state: after.state,
        iops: per_second(ended.saturating_add(packets)),
        mib_per_s: per_second(disk_bytes.saturating_add(packet_bytes)) / f64::from(1 << 20),
        latency_ms: (ended > 0).then(|| io_ms as f64 / ended as f64),
        interrupts_per_s: per_second(of_device(|device| device.interrupts)),
        cpu_percent: per_second(of_device(|device| device.cpu_ms)) / 10.0,
        restarts: after.restarts,
        iommu_faults: after.iommu_faults,
        lost: after.interfaces.iter().map(lost).fold(0, u64::saturating_add),
        outage_ms: after.outages.first().and_then(|outage| outage.total_ms),
    }
}

/// Packets that the card of `interface` has lost.
fn lost(interface: &InterfaceStatus) -> u64 {
    let InterfaceStatus { rx_missed, rx_errors, tx_lost, .. } = interface;
    rx_missed.saturating_add(*rx_errors).saturating_add(*tx_lost)
}

/// How much a counter has grown, which begins anew with each process.
fn grown(before: u64, after: u64) -> u64 {
    after.checked_sub(before).unwrap_or(after)
}
