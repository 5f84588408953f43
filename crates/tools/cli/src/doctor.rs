//! `ring3 doctor`: what stands in the way of claiming a function, what mends it, and what undoes
//! the mending.

use std::path::Path;
use std::process::ExitCode;

use ring3_backend::{OpenOptions, parse_size};
use ring3_pci::{
    Address, Blocked, Check, Function, Host, PassthroughDriver, examine, examine_machine,
};
use serde_json::{Value, json};

/// Options of `ring3 doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// The PCI function to examine, such as 0000:01:00.0. Default: none; only the machine is
    /// examined.
    address: Option<Address>,
    /// The passthrough driver to examine for: vfio-pci or uio_pci_generic. Default: the one that
    /// the function is bound to, else vfio-pci.
    #[arg(long)]
    driver: Option<PassthroughDriver>,
    /// DMA memory that the driver will need: bytes, or a number and K, M or G.
    #[arg(
        long, value_name = "SIZE", value_parser = size,
        default_value_t = OpenOptions::default().arena as u64,
    )]
    arena: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, &'static str> {
    parse_size(text).ok_or("a size is a number with an optional K, M or G")
}

/// The control device of ublk's driver, which creates block devices.
const UBLK: &str = "/dev/ublk-control";

/// Looks, and prints what was found. Fails if something stands in the way.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    let on = |address| Function::read(&host, address).ok()?.way();
    let way = args.driver.or_else(|| on(args.address?)).unwrap_or_default();
    let look = |way| match args.address {
        Some(address) => examine(&host, address, way, args.arena),
        None => examine_machine(&host, way, args.arena),
    };
    let mut checks = look(way);
    checks.push(Check {
        what: "sleep",
        found: Ok(ring3_sleep::forecast(&ring3_sleep::Host::this())),
    });
    let ublk = block_devices(Path::new(UBLK));
    if args.json {
        let all: Vec<_> = checks.iter().map(json).chain([optional("ublk", &ublk)]).collect();
        outln!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        crate::output::write(format_args!("{}", report(&checks, &[("ublk", ublk)])));
        if way == PassthroughDriver::Vfio
            && args.driver.is_none()
            && checks.iter().any(|check| check.found.is_err())
        {
            crate::output::write(format_args!(
                "{}",
                other_way(args.address, &look(PassthroughDriver::Uio))
            ));
        }
    }
    Ok(if checks.iter().all(|check| check.found.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What only some uses of a device need: as an error, what brings it.
type Optional = Result<String, String>;

/// Whether a disk can become a block device. Nothing that only claims a device needs it.
fn block_devices(control: &Path) -> Optional {
    match control.exists() {
        true => Ok(format!("{} is there", control.display())),
        false => Err(format!(
            "no {}: to have disks as block devices, run sudo modprobe ublk_drv (the kernel must \
             have ublk)",
            control.display()
        )),
    }
}

/// What only some uses need, as docs/json.md has it.
fn optional(what: &str, found: &Optional) -> Value {
    let text = found.as_ref().unwrap_or_else(|missing| missing);
    json!({ "what": what, "ok": found.is_ok(), "optional": true, "found": text })
}

/// One check, as docs/json.md has it.
pub fn json(check: &Check) -> Value {
    match &check.found {
        Ok(found) => json!({ "what": check.what, "ok": true, "found": found }),
        Err(blocked) => json!({
            "what": check.what, "ok": false, "found": blocked.problem(),
            "obstacle": blocked.obstacle.name(),
            "mend": blocked.remedy(), "undo": blocked.undo(),
        }),
    }
}

/// All checks, and then what only some uses need: that stands in nobody's way if it is missing.
fn report(checks: &[Check], optional: &[(&str, Optional)]) -> String {
    let names = checks.iter().map(|check| check.what).chain(optional.iter().map(|&(what, _)| what));
    let width = names.map(str::len).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (mark, found) = match &check.found {
            Ok(found) => ("ok", found.clone()),
            Err(blocked) => ("no", blocked.problem()),
        };
        text += &format!("{mark}  {:<width$}  {found}\n", check.what);
    }
    for (what, found) in optional {
        let (mark, found) = match found {
            Ok(found) => ("ok", found),
            Err(missing) => ("--", missing),
        };
        text += &format!("{mark}  {what:<width$}  {found}\n");
    }
    for blocked in checks.iter().filter_map(|check| check.found.as_ref().err()) {
        text += &advice(blocked);
    }
    if checks.iter().all(|check| check.found.is_ok()) {
        text += "\nNothing stands in the way.\n";
    }
    text
}

/// How it stands with the way without protection, in a line.
fn other_way(address: Option<Address>, checks: &[Check]) -> String {
    let in_the_way: Vec<_> = checks
        .iter()
        .filter_map(|check| Some(check.found.as_ref().err()?.obstacle.name()))
        .collect();
    if in_the_way.iter().any(|name| ["no-function", "bridge"].contains(name)) {
        return String::new();
    }
    let address = address.map(|address| format!("{address} ")).unwrap_or_default();
    let how = if in_the_way.is_empty() { "open".into() } else { in_the_way.join(", ") };
    format!(
        "\nThe way without protection (uio): {how}; ring3 doctor {address}--driver {} says more.\n",
        PassthroughDriver::Uio
    )
}

/// What mends one obstacle, and what undoes that.
fn advice(blocked: &Blocked) -> String {
    let mut text = format!("\n{} ({})\n", blocked.problem(), blocked.obstacle.name());
    for (label, steps) in [("mend", blocked.remedy()), ("undo", blocked.undo())] {
        text.extend(steps.iter().map(|step| format!("  {label}: {step}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use ring3_pci::Obstacle;

    use super::*;

    #[test]
    fn a_machine_without_ublk_is_told_what_brings_it() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("ublk-control");
        let missing = block_devices(&control);
        assert!(missing.as_ref().unwrap_err().contains("sudo modprobe ublk_drv"));
        assert_eq!(optional("ublk", &missing)["ok"], Value::Bool(false));
        std::fs::write(&control, "").unwrap();
        assert!(block_devices(&control).unwrap().ends_with("is there"));
    }

    #[test]
    fn what_only_some_uses_need_is_not_called_ok_and_stands_in_nobodys_way() {
        let report = report(
            &[Check { what: "use", found: Ok("none".into()) }],
            &[("ublk", Err("no file".into()))],
        );
        assert!(report.contains("\n--  ublk  no file\n"), "{report}");
        assert!(report.ends_with("Nothing stands in the way.\n"), "{report}");
    }

    #[test]
    fn an_obstacle_is_printed_with_what_mends_it_and_what_undoes_that() {
        let address: Address = "0000:01:00.0".parse().unwrap();
        let found =
            Err(Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: Some("nvme".into()) }
                .at(address));
        let report = report(&[Check { what: "driver", found }], &[]);
        assert!(
            report.contains("no  driver  0000:01:00.0: it belongs to the kernel's driver nvme"),
            "{report}"
        );
        assert!(
            report.contains(
                "  mend: sudo ring3 bind 0000:01:00.0\n  undo: sudo ring3 unbind 0000:01:00.0\n"
            ),
            "{report}"
        );
    }

    #[test]
    fn a_program_reads_the_obstacle_by_name_with_the_commands_that_mend_it() {
        let found = Err(Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: None }
            .at("0000:01:00.0".parse::<Address>().unwrap()));
        let json = json(&Check { what: "driver", found });
        assert_eq!(
            (&json["ok"], &json["obstacle"]),
            (&Value::Bool(false), &Value::from("not-bound"))
        );
        assert_eq!(json["mend"][0], "sudo ring3 bind 0000:01:00.0");
    }

    #[test]
    fn a_function_in_order_is_said_to_be() {
        assert!(
            report(&[Check { what: "use", found: Ok("none".into()) }], &[])
                .ends_with("Nothing stands in the way.\n")
        );
    }
}
