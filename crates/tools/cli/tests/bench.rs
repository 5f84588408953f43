//! `ring3 bench disk --quick` in a guest, and what the command refuses.
//!
//! `cargo test -p ring3-cli --test bench -- --ignored`, or `make test`.

use std::path::Path;
use std::process::{Command, Output};

use ring3_bench::report::{Lab, Measurement, Report};

fn ring3(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn folder(name: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder.display().to_string()
}

/// All that is measured without fio.
const PLACEMENTS: [&str; 8] = [
    "kernel",
    "kernel-none",
    "kernel-nomultipath",
    "kernel-passthrough",
    "process",
    "process-polled",
    "export",
    "ublk-null",
];

#[test]
#[ignore = "boots a guest"]
fn fio_at_its_best_reaches_the_kernels_disk_in_every_way() {
    let out = folder("fio");
    let fio = ["kernel-fio", "kernel-nomultipath-fio", "kernel-passthrough-fio", "export-fio"];
    let placements: Vec<&str> = fio.iter().flat_map(|name| ["--placement", *name]).collect();
    let options = ["--quick", "--rounds", "1", "--workload", "randread-4k-qd32", "--out", &out];
    let output = ring3(&[&["bench", "disk"][..], &options, &placements].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/disk.json")).unwrap())
            .unwrap();
    for placement in fio {
        let get = |metric| {
            report
                .get("randread-4k-qd32", placement, metric)
                .unwrap_or_else(|| panic!("{placement} {metric}"))
        };
        assert!(get("iops").min > 0.0 && get("errors").max == 0.0, "{placement}");
    }
}

#[test]
#[ignore = "boots a guest"]
fn a_brief_round_by_instructions_counts_loads_and_nothing_that_sleeps() {
    let out = folder("brief");
    let placements = ["--placement", "kernel", "--placement", "process", "--placement", "export"];
    let options = [
        "--brief",
        "--mode",
        "instructions",
        "--rounds",
        "1",
        "--millis",
        "10",
        "--workload",
        "randread-4k-qd32",
    ];
    let output = ring3(&[&["bench", "disk", "--out", &out][..], &options, &placements].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/disk.json")).unwrap())
            .unwrap();
    assert_eq!((report.lab.mode.as_str(), report.lab.instruction_ns), ("instructions", 1));
    for placement in ["kernel", "process", "export"] {
        let get = |metric| report.get("randread-4k-qd32", placement, metric);
        let counted = get("instructions_per_op").unwrap_or_else(|| panic!("{placement}"));
        assert!((100.0..100_000.0).contains(&counted.median), "{placement}: {counted:?}");
        assert_eq!((get("errors").unwrap().max, get("latency_us_p50")), (0.0, None), "{placement}");
        assert_eq!(report.get("driver", placement, "startup_ms"), None, "{placement}");
    }
}

#[test]
#[ignore = "boots a guest"]
fn rivals_are_measured_in_the_same_guest_and_an_export_that_looks_has_a_processor_for_it() {
    let out = folder("rivals");
    let rivals = ["kernel-iopoll", "kernel-passthrough-iopoll", "export-polled", "qemu-vduse"];
    let placements: Vec<&str> = rivals.iter().flat_map(|name| ["--placement", *name]).collect();
    let options = [
        "--quick",
        "--brief",
        "--rounds",
        "1",
        "--millis",
        "50",
        "--workload",
        "randread-4k-qd32",
        "--out",
        &out,
    ];
    let output = ring3(&[&["bench", "disk"][..], &options, &placements].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/disk.json")).unwrap())
            .unwrap();
    for placement in rivals {
        let get = |metric| {
            report
                .get("randread-4k-qd32", placement, metric)
                .unwrap_or_else(|| panic!("{placement} {metric}"))
        };
        assert!(
            get("iops").min > 0.0 && get("cpu_us_per_op").min > 0.0 && get("errors").max == 0.0,
            "{placement}"
        );
    }
    for (placement, fact, value) in [
        ("kernel-iopoll", "polled", "Y"),
        ("kernel-iopoll", "scheduler", "none"),
        ("kernel-passthrough-iopoll", "device", "/dev/ng0n1"),
        ("qemu-vduse", "scheduler", "none"),
    ] {
        assert_eq!(report.fact(placement, fact), Some(value), "{placement} {fact}");
    }
}

#[test]
fn what_a_rivals_run_measures_cannot_be_named_one_by_one_too() {
    let output = ring3(&["bench", "disk", "--rivals", "--placement", "qemu-img"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--rivals"), "{}", said(&output));
}

#[test]
#[ignore = "boots a guest"]
fn the_quick_form_measures_every_placement_and_writes_report_and_figure() {
    let out = folder("quick");
    let output = ring3(&["bench", "disk", "--quick", "--out", &out]);
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/disk.json")).unwrap())
            .unwrap();
    assert_eq!(
        (report.bench.as_str(), report.lab.mode.as_str(), report.lab.vcpus),
        ("disk", "wall", 2)
    );
    assert!(report.lab.kernel.starts_with("6.12") && report.lab.qemu != "none", "{:?}", report.lab);
    for workload in ring3_bench::workload::STANDARD {
        for placement in PLACEMENTS {
            let get = |metric| {
                report
                    .get(workload, placement, metric)
                    .unwrap_or_else(|| panic!("{workload} {placement} {metric}"))
            };
            assert_eq!((get("iops").rounds, get("errors").max), (2, 0.0), "{workload} {placement}");
            assert!(
                get("iops").min > 0.0 && get("latency_us_p50").min > 0.0,
                "{workload} {placement}"
            );
        }
    }
    for (placement, fact, value) in [
        ("kernel", "multipath", "Y"),
        ("kernel-none", "scheduler", "none"),
        ("kernel-nomultipath", "multipath", "N"),
        ("kernel-passthrough", "device", "/dev/ng0n1"),
    ] {
        assert_eq!(report.fact(placement, fact), Some(value), "{placement} {fact}");
    }
    let best = report
        .ratios
        .iter()
        .find(|ratio| ratio.placement == "process" && ratio.metric == "iops" && ratio.best);
    assert!(best.is_some_and(|best| best.baseline.starts_with("kernel")), "{best:?}");
    assert!(report.get("host", "host", "others_percent").is_some_and(|others| others.rounds == 2));
    assert!(
        report.get("driver", "export", "startup_ms").is_some_and(|startup| startup.max < 10_000.0)
    );
    assert!(
        std::fs::read_to_string(format!("{out}/disk.svg"))
            .unwrap()
            .contains("randread-4k-qd32, wall clock")
    );
    assert!(!Path::new(&format!("{out}/disk-wall.rounds")).exists());
}

#[test]
#[ignore = "boots guests"]
fn the_papers_figure_has_throughput_and_utilisation_of_every_placement_under_both_clocks() {
    let out = folder("leslie");
    let options = [
        "--figure",
        "leslie",
        "--controller",
        "nvme",
        "--quick",
        "--runs",
        "1",
        "--mode",
        "both",
        "--out",
        &out,
    ];
    let output = ring3(&[&["bench", "disk"][..], &options].concat());
    assert!(output.status.success(), "{}", said(&output));
    for (file, mode, nanos) in
        [("leslie-nvme.json", "wall", 0), ("leslie-nvme-instructions.json", "instructions", 8)]
    {
        let report: Report =
            serde_json::from_str(&std::fs::read_to_string(format!("{out}/{file}")).unwrap())
                .unwrap();
        assert_eq!(
            (report.lab.mode.as_str(), report.lab.instruction_ns, report.lab.vcpus),
            (mode, nanos, 1)
        );
        assert_eq!(report.lab.disk, "nvme, 4000 commands/s and 50 MiB/s");
        for workload in ["seqread-512-qd1", "seqread-4k-qd1", "seqread-64k-qd1", "seqread-4m-qd1"] {
            for placement in ["kernel", "process-adaptive", "export", "ublk-null"] {
                let get = |metric| {
                    report
                        .get(workload, placement, metric)
                        .unwrap_or_else(|| panic!("{mode} {workload} {placement} {metric}"))
                };
                assert!(
                    get("mib_s").min > 0.0 && get("errors").max == 0.0,
                    "{mode} {workload} {placement}"
                );
                // Time that a busy host takes from a guest by the wall clock may count as idle.
                let busy = get("busy_percent");
                assert!(
                    busy.min >= 0.0 && busy.max <= 100.0 && (mode == "wall" || busy.min > 0.0),
                    "{mode} {workload} {placement} {busy:?}"
                );
            }
        }
    }
    assert!(
        std::fs::read_to_string(format!("{out}/leslie.svg"))
            .unwrap()
            .contains("instruction time, 8 ns each")
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("export: CPU, worst of all sizes"));
}

#[test]
#[ignore = "boots guests"]
fn the_papers_figure_has_panels_for_ahci_and_for_ide_whose_one_controller_changes_hands() {
    let out = folder("leslie-ata");
    let options = [
        "--quick",
        "--runs",
        "1",
        "--sizes",
        "1,128",
        "--controller",
        "ahci",
        "--controller",
        "ide",
        "--out",
        &out,
    ];
    let output = ring3(&[&["bench", "disk", "--figure", "leslie"][..], &options].concat());
    assert!(output.status.success(), "{}", said(&output));
    for controller in ["ahci", "ide"] {
        let text = std::fs::read_to_string(format!("{out}/leslie-{controller}.json")).unwrap();
        let report: Report = serde_json::from_str(&text).unwrap();
        for (load, placement) in ["seqread-512-qd1", "seqread-64k-qd1"]
            .into_iter()
            .flat_map(|load| ["kernel", "process-adaptive", "export"].map(|p| (load, p)))
        {
            let errors = report
                .get(load, placement, "errors")
                .unwrap_or_else(|| panic!("{controller} {load} {placement}"));
            assert_eq!(errors.max, 0.0, "{controller} {load} {placement}");
        }
    }
}

#[test]
#[ignore = "boots a guest"]
fn a_request_takes_no_more_system_calls_than_it_must() {
    let out = folder("timeline");
    let options =
        ["--timeline", "--quick", "--rounds", "1", "--mode", "instructions", "--out", &out];
    let output = ring3(&[&["bench", "disk"][..], &options].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report = serde_json::from_str(
        &std::fs::read_to_string(format!("{out}/timeline-nvme.json")).unwrap(),
    )
    .unwrap();
    let get = |load, placement, metric| {
        report
            .get(load, placement, metric)
            .unwrap_or_else(|| panic!("{load} {placement} {metric}"))
            .median
    };
    let calls = get("randread-4k-qd1", "process", "calls_per_op");
    assert!(calls <= 1.0, "{calls} system calls for each request");
    assert_eq!(get("randread-4k-qd1", "process-polled", "calls_per_op"), 0.0);
    assert!(get("randread-512-qd32", "export", "calls_per_op") < 1.0);
    for (placement, steps) in [
        ("kernel", ["queue_us", "interrupt_us", "client_wakeup_us"]),
        ("process", ["queue_us", "scheduler_us", "handler_us"]),
        ("export", ["driver_wakeup_us", "handler_us", "signal_us"]),
    ] {
        assert!(
            get("randread-4k-qd1", placement, "accesses_per_op") >= 1.0,
            "{placement}: a doorbell at least"
        );
        assert!(get("randread-4k-qd1", placement, "complete_percent") > 5.0, "{placement}");
        steps.iter().for_each(|step| {
            assert!(get("randread-4k-qd1", placement, step) > 0.0, "{placement} {step}")
        });
    }
    assert!(
        std::fs::read_to_string(format!("{out}/timeline.svg"))
            .unwrap()
            .contains("Where the time of a 4 KiB read goes")
    );
}

#[test]
#[ignore = "boots a guest"]
fn packets_are_counted_in_every_placement_and_a_rate_beyond_what_it_can_loses_some() {
    let (report, figure) = cards(&["udp-echo"], "udp-echo", &[]);
    assert_eq!(
        (report.lab.mode.as_str(), report.lab.instruction_ns, report.lab.vcpus),
        ("instructions", 16, 1)
    );
    let get = |load: &str, placement: &str, metric: &str| {
        report
            .get(load, placement, metric)
            .unwrap_or_else(|| panic!("{load} {placement} {metric}"))
            .median
    };
    for load in ["udp-64-out", "udp-64-in", "udp-64-echo-qd1", "udp-64-echo-qd32"] {
        for placement in ["kernel", "process", "export", "tap-null"] {
            let counted = get(load, placement, "instructions_per_op");
            assert!((300.0..200_000.0).contains(&counted), "{load} {placement}: {counted}");
        }
        assert!(get(load, "export", "driver_cpu_us_per_op") > 0.0, "{load}");
    }
    for placement in ["kernel", "process", "export"] {
        assert!(get("udp-1024-echo-at10", placement, "mbit_s") > 0.0, "{placement}");
        assert!(get("udp-1024-echo-at60", placement, "busy_percent") > 10.0, "{placement}");
    }
    assert!(report.get("udp-1024-echo-at10", "tap-null", "mbit_s").is_none());
    assert!(report.ratios.is_empty(), "a quick run compares nothing: {:?}", report.ratios);
    assert!(figure.contains("e1000e; instruction time, 16 ns each") && figure.contains("polyline"));
}

#[test]
#[ignore = "boots a guest"]
fn virtios_card_is_measured_by_the_wall_clock() {
    let loads = ["--load", "udp-64-echo-qd1", "--load", "udp-1024-echo-at10"];
    let (report, _) =
        cards(&["udp-echo", "--card", "virtio-net", "--mode", "wall"], "udp-echo", &loads);
    assert_eq!((report.lab.mode.as_str(), report.lab.disk.as_str()), ("wall", "virtio-net-pci"));
    for placement in ["kernel", "process", "export"] {
        let get = |load, metric| {
            report
                .get(load, placement, metric)
                .unwrap_or_else(|| panic!("{placement} {load} {metric}"))
                .median
        };
        assert!(
            get("udp-64-echo-qd1", "latency_us_p99") >= get("udp-64-echo-qd1", "latency_us_p50"),
            "{placement}"
        );
        assert!(get("udp-1024-echo-at10", "mbit_s") > 0.0, "{placement}");
    }
}

#[test]
#[ignore = "boots a guest"]
fn an_interrupt_is_followed_from_its_cause_to_the_kernel_and_to_the_process_under_every_condition()
{
    let (report, figure) = cards(&["irq-delay"], "irq-delay", &[]);
    let get = |load: &str, metric: &str| {
        report.get(load, "process", metric).unwrap_or_else(|| panic!("{load} {metric}")).median
    };
    for load in ["irq-idle", "irq-traffic", "irq-minimal", "irq-normal", "irq-maximal"] {
        assert!(get(load, "kernel_us_p50") > 0.0 && get(load, "process_us_mean") > 0.0, "{load}");
        assert!(get(load, "process_us_p99") >= get(load, "process_us_p50"), "{load}");
    }
    assert!(get("irq-idle", "complete_percent") > 50.0);
    assert!(
        report
            .get("irq-idle", "process-polled", "raise_us_p50")
            .is_some_and(|polled| polled.median > 0.0)
    );
    assert!(figure.contains("irq-maximal"));
}

/// A benchmark of cards in the short form: its report, and its figure if it has one.
fn cards(words: &[&str], name: &str, options: &[&str]) -> (Report, String) {
    let out = folder(&words.join(""));
    let output = ring3(&[&["bench"], words, &["--quick", "--out", &out], options].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report = std::fs::read_to_string(format!("{out}/{name}.json")).unwrap();
    assert!(!Path::new(&format!("{out}/{name}-instructions.rounds")).exists(), "it is over");
    (
        serde_json::from_str(&report).unwrap(),
        std::fs::read_to_string(format!("{out}/{name}.svg")).unwrap_or_default(),
    )
}

#[test]
#[ignore = "boots a guest"]
fn tcp_costs_something_both_ways_in_the_kernel_and_through_an_export() {
    let (report, figure) = cards(
        &["tcp"],
        "tcp",
        &["--placement", "kernel", "--placement", "export-tap", "--placement", "export-vhost"],
    );
    for (load, placement) in ["tcp-64k-out", "tcp-64k-in"]
        .into_iter()
        .flat_map(|load| ["kernel", "export-tap", "export-vhost"].map(|who| (load, who)))
    {
        let bytes = report
            .get(load, placement, "bytes_per_instruction")
            .unwrap_or_else(|| panic!("{load} {placement}"))
            .median;
        assert!((0.001..100.0).contains(&bytes), "{load} {placement}: {bytes}");
    }
    assert!(report.lab.quick && report.ratios.is_empty(), "a short round compares nothing");
    assert!(figure.contains("tcp-64k-in, export-vhost"));
}

#[test]
#[ignore = "boots a guest"]
fn packets_go_from_card_to_card_in_order_of_time_beside_tasks_that_never_sleep_too() {
    let loads = ["--load", "loop-60-stream", "--load", "loop-60-paced-stress"];
    let (report, figure) = cards(&["loopback"], "loopback", &loads);
    let get = |load: &str, placement: &str, metric: &str| {
        report
            .get(load, placement, metric)
            .unwrap_or_else(|| panic!("{load} {placement} {metric}"))
            .median
    };
    for (load, placement) in ["loop-60-stream", "loop-60-paced-stress"]
        .into_iter()
        .flat_map(|load| ["kernel", "process"].map(|who| (load, who)))
    {
        assert!(get(load, placement, "packets_s") > 0.0, "{load} {placement}");
        let at = ["latency_us_p50", "latency_us_p99", "latency_us_p999", "latency_us_max"]
            .map(|metric| get(load, placement, metric));
        assert!(at[0] > 0.0 && at.is_sorted(), "{load} {placement}: {at:?}");
    }
    assert!(
        get("loop-60-stream", "dpdk", "packets_s") > 0.0
            && get("loop-60-paced-stress", "dpdk", "latency_us_mean") > 0.0
    );
    assert!(figure.contains("loop-60-stream, process"));
}

#[test]
#[ignore = "boots a guest"]
fn an_idle_export_takes_next_to_no_processor_time_and_dpdk_takes_all() {
    let (report, _) =
        cards(&["udp-echo", "--cpu"], "net-cpu", &["--placement", "export", "--placement", "dpdk"]);
    let get = |load: &str, placement: &str, metric: &str| {
        report
            .get(load, placement, metric)
            .unwrap_or_else(|| panic!("{load} {placement} {metric}"))
            .median
    };
    // Of a processor of 62.5 million instructions a second, in a tenth of a second that may have
    // the one look of a whole one in it, by a program that is not optimised: who polls takes all.
    assert!(get("idle", "export", "driver_cpu_percent") < 20.0);
    assert!(
        get("idle", "dpdk", "busy_percent") > 90.0
            && get("udp-1024-echo-at4", "dpdk", "mbit_s") > 0.0
    );
}

#[test]
#[ignore = "boots a guest"]
fn packets_are_forwarded_by_dpdk_and_by_ring3_in_turns() {
    let (report, _) = cards(&["forward"], "forward", &[]);
    for (forwarding, placement) in ["io", "macswap"]
        .into_iter()
        .flat_map(|one| ["dpdk", "process-polled"].map(|who| (one, who)))
    {
        let get = |metric| {
            report
                .get(forwarding, placement, metric)
                .unwrap_or_else(|| panic!("{forwarding} {placement}"))
                .median
        };
        assert!((20.0..20_000.0).contains(&get("instructions_per_op")), "{forwarding} {placement}");
        assert!(
            report.get(forwarding, placement, "packets_s").is_none(),
            "by the instruction clock that means nothing"
        );
    }
}

#[test]
fn a_load_of_packets_that_makes_no_sense_is_refused_with_an_example() {
    let output = ring3(&["bench", "udp-echo", "--load", "udp-64"]);
    assert!(
        !output.status.success() && said(&output).contains("udp-64-echo-qd1"),
        "{}",
        said(&output)
    );
}

#[test]
fn work_is_distributed_in_three_ways_at_three_loads() {
    let out = folder("work");
    let options = [
        "--work", "--rounds", "1", "--millis", "100", "--here", "--device", "sim:nvme", "--out",
        &out,
    ];
    let output = ring3(&[&["bench", "disk"][..], &options].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/work-nvme.json")).unwrap())
            .unwrap();
    for load in ["randread-4k-qd32-at1000", "randread-4k-qd32-at5000", "randread-4k-qd32"] {
        for placement in ["process-polled", "process-threads", "process-adaptive"] {
            let get = |metric| {
                report
                    .get(load, placement, metric)
                    .unwrap_or_else(|| panic!("{load} {placement} {metric}"))
                    .median
            };
            assert!(
                get("iops") > 0.0
                    && get("errors") == 0.0
                    && get("latency_us_p99") >= get("latency_us_p50"),
                "{load} {placement}"
            );
        }
    }
    assert!(
        report.get("randread-4k-qd32-at1000", "process-adaptive", "iops").unwrap().median < 1100.0
    );
}

#[test]
fn a_load_with_a_rate_is_refused_where_it_cannot_be_kept() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rate");
    std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let device = path.display().to_string();
    let output = ring3(&[
        "blk",
        "bench",
        "--device",
        &device,
        "--buffered",
        "--workload",
        "randread-4k-qd1-at1000",
    ]);
    assert!(
        !output.status.success() && said(&output).contains("a load with a rate"),
        "{}",
        said(&output)
    );
}

#[test]
fn this_machines_own_disk_is_read_for_the_figure_in_process() {
    let out = folder("leslie-here");
    let places = ["--placement", "process", "--device", "sim:nvme"];
    let sizes = ["--sizes", "1,3,2048", "--bytes", "1M", "--requests", "50", "--runs", "1"];
    let always =
        ["bench", "disk", "--figure", "leslie", "--controller", "nvme", "--here", "--out", &out];
    let output = ring3(&[&always[..], &places, &sizes].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/leslie-nvme.json")).unwrap())
            .unwrap();
    for (load, mib) in [
        ("seqread-512-qd1", 50.0 / 2048.0),
        ("seqread-1536-qd1", 150.0 / 2048.0),
        ("seqread-1m-qd1", 1.0),
    ] {
        assert_eq!(report.get(load, "process", "mib").unwrap().median, mib, "{load}");
    }
}

#[test]
fn a_size_beyond_what_a_load_can_be_is_refused() {
    let output = ring3(&["bench", "disk", "--figure", "leslie", "--sizes", "0"]);
    assert!(!output.status.success() && said(&output).contains("--sizes"), "{}", said(&output));
}

#[test]
fn a_load_on_the_null_disk_is_told_as_json() {
    let output = ring3(&[
        "blk",
        "bench",
        "--device",
        "null",
        "--workload",
        "randread-4k-qd8",
        "--count",
        "1000",
        "--latency",
        "--json",
    ]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((line["operations"].as_u64(), line["errors"].as_u64()), (Some(1000), Some(0)));
    assert!(line["latency_us_p50"].as_f64() > Some(0.0));
}

#[test]
fn what_is_written_to_the_simulated_disk_is_read_back_right() {
    let loads = ["--workload", "seqwrite-64k-qd4", "--workload", "randread-4k-qd32"];
    let always = [
        "blk",
        "bench",
        "--device",
        "sim:nvme,size=16M",
        "--count",
        "256",
        "--verify",
        "--overwrite",
    ];
    let output = ring3(&[&always[..], &loads[..]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.matches("0 errors, 0 mismatches").count() == 2,
        "{text}{}",
        said(&output)
    );
}

#[test]
fn a_load_that_writes_must_be_meant() {
    let output = ring3(&["blk", "bench", "--device", "null", "--workload", "randwrite-4k-qd1"]);
    assert!(!output.status.success() && said(&output).contains("--overwrite"), "{}", said(&output));
}

#[test]
fn reports_of_one_benchmark_are_drawn_and_those_of_two_are_not() {
    let out = folder("plot");
    let write = |name: &str, bench: &str| {
        let one = Measurement::new(1, "a load", "kernel").with("iops", 5.0);
        let path = Path::new(&out).join(name);
        Report::new(bench, Lab::default(), &[one]).write(&path).unwrap();
        path.display().to_string()
    };
    let [one, more, other] = [("1.json", "kill"), ("2.json", "kill"), ("3.json", "tcp")]
        .map(|(name, bench)| write(name, bench));
    let figure = ring3(&["plot", &one, &more]);
    let text = String::from_utf8(figure.stdout).unwrap();
    assert_eq!(text.matches("a load").count(), 2, "{text}");
    assert!(text.starts_with("<svg") && text.contains("iops, 1/s"), "{text}");
    let refused = ring3(&["plot", &one, &other]);
    assert!(!refused.status.success() && said(&refused).contains("different benchmarks"));
    let place = format!("{out}/figure.svg");
    assert!(ring3(&["plot", &other, "--out", &place]).status.success());
    assert!(std::fs::read_to_string(place).unwrap().ends_with("</svg>\n"));
}

#[test]
fn measuring_nothing_here_is_refused_with_what_to_say() {
    let output = ring3(&[
        "bench",
        "disk",
        "--here",
        "--placement",
        "kernel",
        "--rounds",
        "1",
        "--out",
        &folder("nothing"),
    ]);
    assert!(!output.status.success() && said(&output).contains("--disk"), "{}", said(&output));
}

#[test]
fn a_workload_that_makes_no_sense_is_refused_with_an_example() {
    let output = ring3(&["bench", "disk", "--workload", "fast"]);
    assert!(
        !output.status.success() && said(&output).contains("randread-4k-qd32"),
        "{}",
        said(&output)
    );
}

#[test]
fn this_machine_is_measured_in_process() {
    let out = folder("here");
    let places =
        ["--placement", "process", "--device", "sim:nvme", "--workload", "randread-4k-qd8"];
    let always =
        ["bench", "disk", "--here", "--quick", "--rounds", "1", "--millis", "20", "--out", &out];
    let output = ring3(&[&always[..], &places[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/disk.json")).unwrap())
            .unwrap();
    assert!(report.get("randread-4k-qd8", "process", "iops").is_some_and(|iops| iops.median > 0.0));
}

#[test]
#[ignore = "boots a guest"]
fn beside_a_flood_of_datagrams_every_ping_is_answered_and_the_interface_drops_nothing() {
    let out = folder("ping");
    let placements = ["kernel", "export-tap", "export-tap-confined", "export-vduse"];
    let chosen: Vec<_> =
        placements.iter().flat_map(|placement| ["--placement", placement]).collect();
    let options = ["--quick", "--and-kernel", "none", "--load", "datagrams", "--out", &out];
    let output = ring3(&[&["bench", "ping"][..], &options, &chosen].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Report =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/ping-6.12.json")).unwrap())
            .unwrap();
    for placement in placements {
        let get = |metric| {
            report
                .get("datagrams", placement, metric)
                .unwrap_or_else(|| panic!("{placement} {metric}"))
        };
        assert!(get("latency_us_p50").min > 0.0 && get("mbit_s").min > 0.0, "{placement}");
        assert_eq!(get("loss_percent").max, 0.0, "{placement}");
        // The kernel's driver may drop one of its own while its interface is set up.
        assert!(placement == "kernel" || get("interface_dropped").max == 0.0, "{placement}");
    }
}
