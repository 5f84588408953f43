//! Whether commands print with `--json` what docs/output.schema.json says: each field that there is
//! is described, and each that is described is there.

use std::process::{Command, Output};

use jsonschema::Validator;
use ring3_control::status::{DeviceStatus, DiskStatus, InterfaceStatus, Outage, State};
use serde_json::{Value, json};

/// The schema of a command. It lets readers meet fields that come later; here there are none.
fn schema(command: &str) -> Validator {
    let text = include_str!("../../../../docs/output.schema.json");
    let mut schema: Value = serde_json::from_str(text).unwrap();
    assert!(schema["$defs"].get(command).is_some(), "there is no schema for {command}");
    close(&mut schema["$defs"]);
    schema["$ref"] = format!("#/$defs/{command}").into();
    jsonschema::validator_for(&schema).unwrap()
}

/// No object has members beside those that are described.
fn close(schema: &mut Value) {
    if schema.get("properties").is_some() && schema.get("required").is_some() {
        schema["additionalProperties"] = false.into();
    }
    match schema {
        Value::Array(all) => all.iter_mut().for_each(close),
        Value::Object(members) => members.values_mut().for_each(close),
        _ => {}
    }
}

#[track_caller]
fn assert_described(command: &str, value: &Value) {
    let schema = schema(command);
    let wrong: Vec<String> = schema
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{command}: {wrong:#?}");
}

fn ring3(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(arguments.split(' ')).output().unwrap()
}

/// What `ring3 ARGUMENTS --json` prints: a document, or a line each.
#[track_caller]
fn printed(arguments: &str) -> Vec<Value> {
    let output = ring3(&format!("{arguments} --json"));
    let text = String::from_utf8(output.stdout).unwrap();
    let all: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(&text).into_iter().collect();
    let all = all.unwrap_or_else(|error| panic!("{arguments}: {error}: {text}"));
    assert!(!all.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    all
}

macro_rules! prints_what_its_schema_says {
    ($($name:ident: $schema:literal, $arguments:literal;)*) => {$(
        #[test]
        fn $name() {
            printed($arguments).iter().for_each(|one| assert_described($schema, one));
        }
    )*};
}

prints_what_its_schema_says! {
    devices_prints_what_its_schema_says: "devices", "devices";
    doctor_prints_what_its_schema_says: "doctor", "doctor";
    cache_prints_what_its_schema_says: "cache", "cache";
    sandbox_show_prints_what_its_schema_says: "sandbox-show", "sandbox show nvme";
    dde_list_prints_what_its_schema_says: "dde-list", "dde list";
    lab_list_prints_what_its_schema_says: "lab-list", "lab list";
    hardware_list_prints_what_its_schema_says: "hardware-list", "hardware list";
    blk_info_prints_what_its_schema_says: "blk-info", "blk info --device sim:nvme";
    blk_read_prints_what_its_schema_says:
        "blk-read", "blk read --device sim:nvme --length 4096 --to /dev/null";
    blk_check_prints_what_its_schema_says:
        "blk-check", "blk check --destroy --device sim:nvme --requests 20";
    net_info_prints_what_its_schema_says: "net-info", "net info --device sim:e1000";
    quirks_show_prints_what_its_schema_says: "quirks-show", "quirks show";
    nvme_id_prints_what_its_schema_says: "nvme-id", "nvme id --device sim:nvme";
    nvme_power_prints_what_its_schema_says:
        "nvme-power", "nvme power --device sim:nvme,sleep=2ms/3ms";
    nvme_smart_prints_what_its_schema_says: "nvme-smart", "nvme smart --device sim:nvme";
    nvme_namespaces_prints_what_its_schema_says:
        "nvme-namespaces", "nvme namespaces --device sim:nvme,namespaces=2,block=512p1+512m8";
    nvme_format_prints_what_its_schema_says:
        "nvme-format", "nvme format --device sim:nvme --namespace 1 --block 4096 --destroy";
    nvme_firmware_prints_what_its_schema_says: "nvme-firmware", "nvme firmware --device sim:nvme";
    nvme_errors_prints_what_its_schema_says: "nvme-errors", "nvme errors --device sim:nvme";
    ata_id_of_ahci_prints_what_its_schema_says: "ata-id", "ata id --device sim:ahci";
    ata_id_of_ide_prints_what_its_schema_says: "ata-id", "ata id --device sim:ide";
    run_edu_prints_what_its_schema_says: "run-edu", "run edu --device sim:edu";
}

/// A disk is exported and orphaned, the orphan is deleted, and a card becomes an interface; each
/// step prints documents only.
const GUEST: &str = r#"
about = "what is printed of disks"
modules = ["ublk_drv", "tun"]
iommu = "none"

[[step]]
name = "run-disk"
run = """
ring3 run null --json >/tmp/ready & echo $! >/tmp/pid
for try in $(seq 200); do grep -q ublkb /tmp/ready && break; sleep 0.05; done
cat /tmp/ready
"""

[[step]]
name = "ublk-list"
run = "ring3 ublk list --json; kill -9 $(cat /tmp/pid)"

[[step]]
name = "ublk-delete"
run = """
for try in $(seq 100); do ring3 ublk list --json | grep -q orphan && break; sleep 0.05; done
ring3 ublk delete --json
"""

[[step]]
name = "run-net"
run = """
ring3 run net --device sim:e1000 --json >/tmp/ready 2>/tmp/log & pid=$!
for try in $(seq 200); do grep -q interface /tmp/ready && break; sleep 0.05; done
cat /tmp/ready; kill $pid; wait $pid
"""
"#;

#[test]
#[ignore = "boots a guest"]
fn a_guests_outcome_and_a_disks_life_are_printed_as_their_schemas_say() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("printed.toml");
    std::fs::write(&scenario, GUEST).unwrap();
    let outcomes = printed(&format!("lab run {}", scenario.display()));
    let [outcome] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_described("lab-run", outcome);
    let steps = outcome["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 4, "{outcome}");
    for step in steps {
        let (name, output) = (step["name"].as_str().unwrap(), step["output"].as_str().unwrap());
        let one: Value = serde_json::from_str(output)
            .unwrap_or_else(|error| panic!("{name}: {error}: {output}"));
        assert_described(name, &one);
    }
    let deleted = steps[2]["output"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(deleted).unwrap(), json!({ "deleted": [0] }));
}

/// A device of which everything is known.
fn device() -> DeviceStatus {
    let disk = DiskStatus {
        path: "/dev/ublkb0".into(),
        link: None,
        bytes: 1 << 40,
        disk: "vfio:0000:01:00.0 namespace 1".into(),
        block_size: 512,
        queues: 1,
        reads: u64::MAX,
        writes: 0,
        bytes_read: 1,
        bytes_written: 0,
        io_ms: 1,
        in_flight: 1,
        errors: 0,
        partitions: vec!["/dev/ublkb0p1".into()],
        table: Some("partitions 1 and 2 overlap".into()),
    };
    let interface = InterfaceStatus {
        name: "lan".into(),
        index: 7,
        mac: "02:00:00:00:00:01".into(),
        mtu: 1500,
        queues: 1,
        up: true,
        carrier: true,
        rx_packets: 1,
        rx_bytes: 2,
        rx_dropped: 3,
        tx_packets: 4,
        tx_bytes: 5,
        tx_dropped: 6,
        rx_missed: 7,
        rx_errors: 8,
        tx_lost: 9,
    };
    let outage = Outage {
        at: 1,
        cause: "SIGKILL".into(),
        fence_ms: 1.5,
        driver_ms: 0.0,
        export_ms: 2.0,
        total_ms: None,
        reset: false,
        adopted: true,
    };
    DeviceStatus {
        name: "data".into(),
        device: "vfio:0000:01:00.0".into(),
        driver: "nvme".into(),
        state: State::BackingOff,
        since: 1,
        pid: 2,
        standby: 0,
        disks: vec![disk],
        interfaces: vec![interface],
        restarts: 1,
        upgrades: 0,
        last_end: None,
        outages: vec![outage],
        interrupts: 1,
        iommu_faults: 0,
        cpu_ms: 1,
        memory: 1,
        shared_hits: 0,
        unlimited: Vec::new(),
    }
}

#[test]
fn a_supervised_device_is_printed_as_its_schema_says() {
    assert_described("status", &json!([device()]));
}

#[test]
fn what_is_not_described_is_found() {
    let mut status = json!([device()]);
    status[0]["disks"][0]["colour"] = "blue".into();
    assert!(!schema("status").is_valid(&status));
}

#[test]
fn every_command_that_the_schema_names_is_in_the_page_on_json() {
    let page = include_str!("../../../../docs/json.md");
    let text = include_str!("../../../../docs/output.schema.json");
    let schema: Value = serde_json::from_str(text).unwrap();
    for name in schema["$defs"].as_object().unwrap().keys() {
        let is_part = ["state", "check", "use"].contains(&name.as_str());
        // One row names several commands: `ring3 blk info`, `read`.
        let last = name.rsplit('-').next().unwrap();
        let named = [format!("`{last}`"), format!(" {last}`"), format!(" {last} ")];
        assert!(
            is_part || named.iter().any(|named| page.contains(named)),
            "docs/json.md does not name {name}"
        );
    }
}
