//! What is known of supervised devices, as Prometheus reads it.
//!
//! # References
//! - `[PROM]` Prometheus, "Exposition formats", text format 0.0.4

use std::fmt::Write;

use ring3_control::status::{DeviceStatus, DiskStatus, InterfaceStatus, State};

/// All states, by the names that `--json` has for them.
const STATES: [(State, &str); 10] = [
    (State::Absent, "absent"),
    (State::Starting, "starting"),
    (State::Running, "running"),
    (State::Recovering, "recovering"),
    (State::BackingOff, "backing_off"),
    (State::Upgrading, "upgrading"),
    (State::Failed, "failed"),
    (State::Stopping, "stopping"),
    (State::Stopped, "stopped"),
    (State::Sleeping, "sleeping"),
];

/// A metric of each `T`: name, help, value. The type is in the name: see [`head`].
type Of<T, V = f64> = (&'static str, &'static str, fn(&T) -> V);

const INTERFACE: [Of<InterfaceStatus>; 12] = [
    ("ring3_interface_up", "1 if somebody has set the interface up.", |lan| {
        f64::from(u8::from(lan.up))
    }),
    ("ring3_interface_carrier", "1 if the interface has a carrier.", |lan| {
        f64::from(u8::from(lan.carrier))
    }),
    ("ring3_interface_mtu_bytes", "Most bytes of a packet without its Ethernet header.", |lan| {
        lan.mtu as f64
    }),
    (
        "ring3_interface_receive_packets_total",
        "Packets received, as the kernel counts them.",
        |lan| lan.rx_packets as f64,
    ),
    ("ring3_interface_receive_bytes_total", "Bytes of them.", |lan| lan.rx_bytes as f64),
    (
        "ring3_interface_receive_drop_total",
        "Received packets for which there was no place.",
        |lan| lan.rx_dropped as f64,
    ),
    ("ring3_interface_transmit_packets_total", "Packets sent, as the kernel counts them.", |lan| {
        lan.tx_packets as f64
    }),
    ("ring3_interface_transmit_bytes_total", "Bytes of them.", |lan| lan.tx_bytes as f64),
    ("ring3_interface_transmit_drop_total", "Packets that waited in vain to be sent.", |lan| {
        lan.tx_dropped as f64
    }),
    (
        "ring3_card_receive_missed_total",
        "Received packets for which the card had no buffer.",
        |lan| lan.rx_missed as f64,
    ),
    ("ring3_card_receive_errors_total", "Received packets that were damaged.", |lan| {
        lan.rx_errors as f64
    }),
    ("ring3_card_transmit_lost_total", "Packets that were lost with a reset of the card.", |lan| {
        lan.tx_lost as f64
    }),
];

/// A metric without a value does not apply to the device.
const DEVICE: [Of<DeviceStatus, Option<f64>>; 8] = [
    (
        "ring3_device_state_since_seconds",
        "When the device came into its state, in seconds since 1970.",
        |device| Some(device.since as f64),
    ),
    (
        "ring3_device_restarts_total",
        "Drivers that have died since the supervisor began.",
        |device| Some(device.restarts as f64),
    ),
    ("ring3_device_upgrades_total", "Drivers that were replaced by a hand-over.", |device| {
        Some(device.upgrades as f64)
    }),
    (
        "ring3_device_last_outage_seconds",
        "From the death of the last driver that died to all disks being served again.",
        |device| device.outages.first()?.total_ms.map(|ms| ms / 1e3),
    ),
    (
        "ring3_device_interrupts_total",
        "Interrupts of the device since its driver began.",
        |device| Some(device.interrupts as f64),
    ),
    (
        "ring3_device_iommu_faults_total",
        "Faults that the IOMMU has reported of the device.",
        |device| Some(device.iommu_faults as f64),
    ),
    ("ring3_driver_cpu_seconds_total", "Processor time of the driver's process.", |device| {
        Some(device.cpu_ms as f64 / 1e3)
    }),
    (
        "ring3_driver_resident_memory_bytes",
        "Resident memory of the driver's process, without the DMA memory.",
        |device| Some(device.memory as f64),
    ),
];

const DISK: [Of<DiskStatus>; 8] = [
    ("ring3_disk_size_bytes", "Size of the disk.", |disk| disk.bytes as f64),
    (
        "ring3_disk_reads_completed_total",
        "Reads that have ended, as the kernel counts them.",
        |disk| disk.reads as f64,
    ),
    (
        "ring3_disk_writes_completed_total",
        "Writes that have ended, as the kernel counts them.",
        |disk| disk.writes as f64,
    ),
    ("ring3_disk_read_bytes_total", "Bytes that were read.", |disk| disk.bytes_read as f64),
    ("ring3_disk_written_bytes_total", "Bytes that were written.", |disk| {
        disk.bytes_written as f64
    }),
    ("ring3_disk_io_seconds_total", "What all requests took, added up.", |disk| {
        disk.io_ms as f64 / 1e3
    }),
    ("ring3_disk_requests_in_flight", "Requests that have begun and not ended.", |disk| {
        disk.in_flight as f64
    }),
    ("ring3_disk_errors_total", "Requests that the driver has ended with an error.", |disk| {
        disk.errors as f64
    }),
];

/// The metrics of `devices`, in the text format \[PROM\].
pub fn text(devices: &[DeviceStatus]) -> String {
    let mut text = String::new();
    head(&mut text, "ring3_device_info", "What the device and its driver are; always 1.");
    for device in devices {
        line(
            &mut text,
            "ring3_device_info",
            &[("device", &device.name), ("address", &device.device), ("driver", &device.driver)],
            1.0,
        );
    }
    head(&mut text, "ring3_device_state", "1 for the state in which the device is, else 0.");
    for device in devices {
        for (state, name) in STATES {
            let is_in = f64::from(u8::from(device.state == state));
            line(
                &mut text,
                "ring3_device_state",
                &[("device", &device.name), ("state", name)],
                is_in,
            );
        }
    }
    for (name, help, value) in DEVICE {
        head(&mut text, name, help);
        for device in devices {
            value(device)
                .into_iter()
                .for_each(|value| line(&mut text, name, &[("device", &device.name)], value));
        }
    }
    for (name, help, value) in DISK {
        head(&mut text, name, help);
        for device in devices {
            for disk in &device.disks {
                let called = disk.link.as_deref().unwrap_or(&disk.path);
                line(&mut text, name, &[("device", &device.name), ("disk", called)], value(disk));
            }
        }
    }
    for (name, help, value) in INTERFACE {
        head(&mut text, name, help);
        for device in devices {
            for lan in &device.interfaces {
                let labels = [("device", &*device.name), ("interface", &*lan.name)];
                line(&mut text, name, &labels, value(lan));
            }
        }
    }
    text
}

/// What counts has `_total` at its name's end, and nothing else has.
fn head(text: &mut String, name: &str, help: &str) {
    let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
    // Writing to a string does not fail.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    let labels = labels
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
        .collect::<Vec<_>>()
        .join(",");
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

/// A label's value. [PROM "Comments, help text, and type information"]
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;
    use ring3_control::status::Outage;

    use super::*;

    fn device(name: &str) -> DeviceStatus {
        let disk = DiskStatus {
            path: "/dev/ublkb0".into(),
            link: Some(format!("/dev/ring3/{name}")),
            bytes: 1 << 40,
            disk: "vfio:0000:01:00.0 namespace 1".into(),
            block_size: 512,
            queues: 1,
            reads: 10,
            writes: u64::MAX,
            bytes_read: 40960,
            bytes_written: 0,
            io_ms: 1500,
            in_flight: 3,
            errors: 1,
            partitions: Vec::new(),
            table: None,
        };
        let interface = InterfaceStatus {
            name: "lan".into(),
            index: 7,
            mac: "02:00:00:00:00:01".into(),
            mtu: 9000,
            queues: 1,
            up: true,
            carrier: false,
            rx_packets: 5,
            rx_bytes: 500,
            rx_dropped: 1,
            tx_packets: 6,
            tx_bytes: 600,
            tx_dropped: 2,
            rx_missed: 3,
            rx_errors: 4,
            tx_lost: 5,
        };
        let outage = Outage {
            at: 1,
            cause: "signal 9".into(),
            fence_ms: 1.0,
            driver_ms: 2.0,
            export_ms: 3.0,
            total_ms: Some(17.5),
            reset: false,
            adopted: false,
        };
        DeviceStatus {
            name: name.into(),
            device: "vfio:0000:01:00.0".into(),
            driver: "nvme".into(),
            state: State::Running,
            since: 1_700_000_000,
            pid: 7,
            standby: 8,
            interfaces: vec![interface],
            disks: vec![
                disk.clone(),
                DiskStatus { path: "/dev/ublkb1".into(), link: None, ..disk },
            ],
            restarts: 2,
            upgrades: 1,
            last_end: None,
            outages: vec![outage],
            interrupts: 5,
            iommu_faults: 0,
            cpu_ms: 250,
            memory: 4096,
            shared_hits: 0,
            unlimited: Vec::new(),
        }
    }

    /// The samples, by name with labels. Fails on what the format does not allow: a sample before
    /// its type, a family in two pieces, a label without its end.
    fn parse(text: &str) -> BTreeMap<String, f64> {
        let (mut types, mut samples, mut family) = (Vec::new(), BTreeMap::new(), String::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(
                    !types.contains(&name.to_owned()) && ["gauge", "counter"].contains(&kind),
                    "{line}"
                );
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                types.push(name.to_owned());
                family = name.to_owned();
            } else if !line.starts_with("# HELP ") {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = sample.split_once('{').unwrap();
                assert_eq!(name, family);
                let labels = labels.strip_suffix('}').unwrap();
                assert_eq!(end_of_labels(labels), labels.len(), "{line}");
                assert!(
                    samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(),
                    "{line}"
                );
            }
        }
        samples
    }

    /// How much of `text` is `name="value"` with a comma between two, where a value has no quote or
    /// backslash but behind a backslash.
    fn end_of_labels(text: &str) -> usize {
        let mut at = 0;
        while let Some(begin) = text[at..].find("=\"") {
            assert!(
                text[at..at + begin].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{text}"
            );
            at += begin + 2;
            let mut escape = false;
            let end = text[at..].find(|letter| {
                let ends = letter == '"' && !escape;
                escape = letter == '\\' && !escape;
                ends
            });
            at += end.unwrap() + 1;
            if text[at..].starts_with(',') {
                at += 1;
            } else {
                break;
            }
        }
        at
    }

    #[test]
    fn every_device_every_disk_and_every_interface_has_its_samples() {
        let samples = parse(&text(&[device("scratch"), device("other")]));
        assert_eq!(samples["ring3_device_state{device=\"scratch\",state=\"running\"}"], 1.0);
        assert_eq!(samples["ring3_device_state{device=\"scratch\",state=\"failed\"}"], 0.0);
        assert_eq!(samples["ring3_device_last_outage_seconds{device=\"other\"}"], 0.0175);
        assert_eq!(
            samples["ring3_disk_io_seconds_total{device=\"scratch\",disk=\"/dev/ring3/scratch\"}"],
            1.5
        );
        assert_eq!(
            samples["ring3_disk_reads_completed_total{device=\"scratch\",disk=\"/dev/ublkb1\"}"],
            10.0
        );
        assert_eq!(
            samples["ring3_interface_transmit_drop_total{device=\"other\",interface=\"lan\"}"],
            2.0
        );
        assert_eq!(
            samples.len(),
            2 * (1 + STATES.len() + DEVICE.len() + 2 * DISK.len() + INTERFACE.len())
        );
    }

    #[test]
    fn a_device_that_has_never_failed_has_no_outage_and_no_devices_are_no_samples() {
        let samples = parse(&text(&[DeviceStatus { outages: Vec::new(), ..device("a") }]));
        assert!(!samples.keys().any(|name| name.contains("outage")));
        assert!(parse(&text(&[])).is_empty());
    }

    #[test]
    fn the_states_are_all_there_are_and_have_the_names_that_json_has() {
        for (state, name) in STATES {
            assert_eq!(serde_json::to_value(state).unwrap(), name);
        }
    }

    /// Prometheus' own opinion, where it is installed.
    #[test]
    fn promtool_has_nothing_to_say() {
        let mut command =
            Command::new(std::env::var_os("RING3_PROMTOOL").unwrap_or("promtool".into()));
        let spawned = command
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut promtool) = spawned else { return };
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(text(&[device("a"), device("quote \" back \\ line \n end")]).as_bytes())
            .unwrap();
        let output = promtool.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }

    const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../etc/monitoring");

    /// The rules of alerts and their own tests, where it is installed.
    #[test]
    fn promtool_finds_the_alert_rules_right() {
        let program = std::env::var_os("RING3_PROMTOOL").unwrap_or("promtool".into());
        let tests = format!("{MONITORING}/alerts.test.yaml");
        let Ok(output) = Command::new(program).args(["test", "rules", &tests]).output() else {
            return;
        };
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn alert_rules_and_dashboard_ask_for_metrics_and_states_that_there_are() {
        let heads = text(&[]);
        let known: Vec<&str> = heads
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .collect();
        for file in ["alerts.yaml", "dashboard.json"] {
            let content = std::fs::read_to_string(format!("{MONITORING}/{file}")).unwrap();
            let mut asked = 0;
            for (at, _) in content.match_indices("ring3_") {
                let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
                let name = content[at..].split(|byte| !is_name(byte)).next().unwrap();
                assert!(known.contains(&name), "{file}: there is no metric {name}");
                asked += 1;
            }
            assert!(asked > 5, "{file} asks for {asked} metrics");
            // In JSON a quote has a backslash.
            let content = content.replace('\\', "");
            for (_, rest) in content.match_indices("state=").map(|(at, word)| {
                content[at + word.len()..]
                    .split_at(usize::from(content[at + word.len()..].starts_with('~')))
            }) {
                let states = rest.strip_prefix('"').unwrap().split('"').next().unwrap();
                for state in states.split('|') {
                    assert!(
                        STATES.iter().any(|(_, name)| *name == state),
                        "{file}: there is no state {state}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_dashboard_is_json_whose_panels_do_not_overlap() {
        let content = std::fs::read_to_string(format!("{MONITORING}/dashboard.json")).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&content).unwrap();
        let mut taken = std::collections::BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let [x, y, w, h] =
                ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(x + w <= 24, "{} is too wide", panel["title"]);
            for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(place), "{} lies on another panel", panel["title"]);
            }
        }
    }

    proptest! {
        #[test]
        fn any_name_is_one_label(name in "\\PC*|.*|[\\\\\"\n]*") {
            let samples = parse(
                &text(&[DeviceStatus {
                    disks: Vec::new(), interfaces: Vec::new(), ..device(&name)
                }])
            );
            prop_assert_eq!(samples.len(), 1 + STATES.len() + DEVICE.len());
        }
    }
}
