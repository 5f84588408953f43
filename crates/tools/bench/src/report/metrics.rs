//! The metrics of reports: their units, which way is better, and what is compared with what.

/// What a packet or a request takes of the machine. It is the difference of two clocks, so what is
/// not above 0 says that the round was too short for them, and is no figure.
const DIFFERENCES: [&str; 4] =
    ["instructions_per_op", "busy_us_per_op", "machine_us_per_op", "bytes_per_instruction"];

/// The metrics and their units.
pub const METRICS: [(&str, &str); 64] = [
    ("iops", "1/s"),
    ("mib_s", "MiB/s"),
    ("mib", "MiB"),
    ("packets_s", "1/s"),
    ("mbit_s", "Mb/s"),
    ("bytes_per_instruction", "bytes"),
    ("bytes_per_answer", "bytes"),
    ("window_kib", "KiB"),
    ("retransmitted", "1"),
    ("offered_mbit_s", "Mb/s"),
    ("loss_percent", "%"),
    ("interface_dropped", "1"),
    ("latency_us_min", "us"),
    ("latency_us_p50", "us"),
    ("latency_us_p99", "us"),
    ("latency_us_p999", "us"),
    ("latency_us_max", "us"),
    ("latency_us_mean", "us"),
    ("latency_us2_variance", "us2"),
    ("cpu_percent", "%"),
    ("cpu_us_per_op", "us"),
    ("driver_cpu_us_per_op", "us"),
    ("driver_cpu_percent", "%"),
    ("machine_busy_percent", "%"),
    ("machine_us_per_op", "us"),
    ("busy_percent", "%"),
    ("soaked_busy_percent", "%"),
    ("busy_us_per_op", "us"),
    ("clock_behind_percent", "%"),
    ("instructions_per_op", "instructions"),
    ("instructions_per_kib", "instructions"),
    ("kernel_lines", "lines"),
    ("user_instructions_per_op", "instructions"),
    ("switches_per_op", "1"),
    ("calls_per_op", "1"),
    ("calls_s", "1/s"),
    ("maps_per_op", "1"),
    ("interrupts_per_op", "1"),
    ("accesses_per_op", "1"),
    ("queue_us", "us"),
    ("driver_wakeup_us", "us"),
    ("driver_queue_us", "us"),
    ("device_us", "us"),
    ("interrupt_us", "us"),
    ("scheduler_us", "us"),
    ("handler_us", "us"),
    ("signal_us", "us"),
    ("client_wakeup_us", "us"),
    ("return_us", "us"),
    ("kernel_us_p50", "us"),
    ("kernel_us_p99", "us"),
    ("process_us_mean", "us"),
    ("process_us_p50", "us"),
    ("process_us_p99", "us"),
    ("raise_us_p50", "us"),
    ("raise_us_p99", "us"),
    ("complete_percent", "%"),
    ("errors", "1"),
    ("interrupts_lost", "1"),
    ("interrupts_late", "1"),
    ("startup_ms", "ms"),
    ("driver_peak_mib", "MiB"),
    ("driver_idle_cpu_percent", "%"),
    ("others_percent", "%"),
];

/// Units of metrics that are not in the list, by what their names end with or have before the
/// share of all.
const UNITS: [(&str, &str); 6] = [
    ("_ms", "ms"),
    ("_percent", "%"),
    ("_mib", "MiB"),
    ("_per_op", "1"),
    ("seconds", "s"),
    ("iops_killed", "1/s"),
];

/// A metric's unit; `1` for one that is not in the list and whose name says none.
pub fn unit(metric: &str) -> &'static str {
    let shares = ["_p50", "_p99", "_max"];
    let name = shares.iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(metric);
    let known = METRICS.iter().find(|(name, _)| *name == metric);
    known
        .or_else(|| UNITS.iter().find(|(end, _)| name.ends_with(end)))
        .map_or("1", |(_, unit)| unit)
}

/// Of these metrics, more is better.
pub(super) const MORE: [&str; 5] =
    ["iops", "mib_s", "packets_s", "mbit_s", "bytes_per_instruction"];

/// Of these, less is. Of all others, such as a share of a processor, neither says anything alone.
pub(super) const LESS: [&str; 10] = [
    "latency_us_mean",
    "latency_us_p50",
    "latency_us_p99",
    "cpu_us_per_op",
    "machine_us_per_op",
    "busy_us_per_op",
    "instructions_per_op",
    "switches_per_op",
    "interrupts_per_op",
    "accesses_per_op",
];

/// Which placements are compared with which, besides the kernel's best: (placement, baseline).
pub(super) const COMPARISONS: [(&str, &str); 36] = [
    ("kernel-none", "kernel"),
    ("kernel-nomultipath", "kernel"),
    ("kernel-passthrough", "kernel"),
    ("process", "kernel"),
    ("process-polled", "kernel"),
    ("process-polled", "process"),
    ("process-adaptive", "kernel"),
    ("process-threads", "kernel"),
    ("export", "kernel"),
    ("export-tap", "kernel"),
    ("export-tap", "export-uncoalesced"),
    ("export-vhost", "kernel"),
    ("export-vhost", "export-tap"),
    ("export-vduse", "kernel"),
    ("export-vduse", "export"),
    ("export-vduse", "export-tap"),
    ("export-vduse", "vduse-null"),
    ("vduse-null", "ublk-null"),
    ("export-polled", "ublk-null-polled"),
    ("export-polled", "ublk-null"),
    ("export-polled", "export"),
    ("ublk-null-polled", "ublk-null"),
    ("export-batch", "export"),
    ("export-batch", "kernel-none"),
    ("export-shared-batch", "export-shared"),
    ("qemu-vduse", "export-vduse"),
    ("qemu-vduse", "export"),
    ("qemu-img", "process"),
    ("export", "ublk-null"),
    ("export", "tap-null"),
    ("process", "dpdk"),
    ("process-polled", "dpdk"),
    ("export-fio", "kernel-fio"),
    ("hosted", "kernel"),
    ("hosted", "export"),
    ("ublk-null", "kernel"),
];

/// Whether a round was long enough for what it says of `metric`.
pub(super) fn is_figure(metric: &str, value: f64) -> bool {
    value.is_finite() && (value > 0.0 || !DIFFERENCES.contains(&metric))
}
