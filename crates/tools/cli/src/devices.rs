//! `ring3 devices`.

use std::process::ExitCode;

use ring3_bench::table::Table;
use ring3_driver::hosted;
use ring3_driver::registry::Driver;
use ring3_pci::{Check, Function, Host, Obstacle, PassthroughDriver, Use, examine};
use serde::Serialize;

/// Options of `ring3 devices`.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// One line of the list.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    function: Function,
    class_name: String,
    name: String,
    uses: Vec<Use>,
    /// `ready`, `after bind`, or the obstacles' names; `, unprotected` behind it for a function
    /// that uio_pci_generic has.
    claim: String,
    /// The driver that ring3 has for it, as commands and manifests name it: a family of its own, or
    /// `dde:NAME`, one of Linux that it hosts.
    ring3: Option<String>,
    /// What ring3's driver knows of it that is otherwise than its specification, by its ids and the
    /// board: a model or a firmware is only known once it runs.
    quirks: Vec<String>,
}

/// Lists the PCI functions and says of each whether it can be claimed.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    let rows: Vec<Row> =
        Function::all(&host).into_iter().map(|function| row(&host, function)).collect();
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print_table(&rows);
    }
    Ok(ExitCode::SUCCESS)
}

fn row(host: &Host, function: Function) -> Row {
    let way = function.way().unwrap_or_default();
    let checks = examine(host, function.address, way, 0);
    let claim = match way {
        PassthroughDriver::Vfio => claim(&checks),
        PassthroughDriver::Uio => format!("{}, unprotected", claim(&checks)),
    };
    let uses = checks.into_iter().find_map(|check| match check.found.err()?.obstacle {
        Obstacle::InUse { uses } => Some(uses),
        _ => None,
    });
    Row {
        class_name: function.class_name(),
        name: function.name(),
        uses: uses.unwrap_or_default(),
        ring3: driver(&function),
        quirks: quirks(&function),
        function,
        claim,
    }
}

/// The driver that ring3 has for a function.
fn driver(function: &Function) -> Option<String> {
    let ids = (function.vendor, function.device);
    let hosted = || hosted::of_function(ids, function.class).map(|name| format!("dde:{name}"));
    Driver::of_function(ids, function.class).map(|driver| driver.family.to_owned()).or_else(hosted)
}

/// The quirks of a function, as far as they are known before it runs.
fn quirks(function: &Function) -> Vec<String> {
    let ids = (function.vendor, function.device);
    let driver = Driver::of_function(ids, function.class);
    let quirks = driver.map(|driver| driver.quirks_of(ids)).unwrap_or_default();
    quirks.names().map(str::to_owned).collect()
}

/// How far a function is from being claimed.
fn claim(checks: &[Check]) -> String {
    let mut obstacles: Vec<_> = checks
        .iter()
        .filter_map(|check| Some(check.found.as_ref().err()?.obstacle.name()))
        .collect();
    if obstacles.contains(&"bridge") {
        return "bridge".into();
    }
    let bound = !obstacles.contains(&"not-bound");
    obstacles.retain(|name| !["not-bound", "no-module"].contains(name));
    match (obstacles.as_slice(), bound) {
        ([], true) => "ready".into(),
        ([], false) => "after bind".into(),
        (obstacles, _) => obstacles.join(", "),
    }
}

fn print_table(rows: &[Row]) {
    let or_none = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".into());
    let group =
        |row: &Row| row.function.iommu_group.map_or_else(|| "-".into(), |group| group.to_string());
    let columns = ["GROUP", "DRIVER", "RING3", "CLAIM", "WHAT"];
    let mut table = Table::new("ADDRESS", columns).left(&[2, 3, 4, 5]);
    for row in rows {
        let mut what = format!("{}: {}", row.class_name, row.name);
        if !row.quirks.is_empty() {
            what += &format!(" (quirks: {})", row.quirks.join(", "));
        }
        let [kernel, ring3] = [&row.function.driver, &row.ring3].map(or_none);
        table.line(row.function.address, [group(row), kernel, ring3, row.claim.clone(), what]);
    }
    crate::output::write(format_args!("{}", table.whole()));
    if rows.iter().any(|row| !row.claim.starts_with("ready")) {
        outln!("\nring3 doctor ADDRESS says what stands in the way of a claim, and what mends it.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(obstacles: Vec<Obstacle>) -> Vec<Check> {
        obstacles
            .into_iter()
            .map(|obstacle| Check { what: "test", found: Err(obstacle.at(None)) })
            .collect()
    }

    #[test]
    fn a_function_without_obstacles_is_ready() {
        assert_eq!(claim(&[]), "ready");
    }

    #[test]
    fn a_function_that_is_only_not_bound_is_ready_after_bind() {
        let module = Obstacle::NoModule { module: "vfio-pci".into(), reason: None };
        assert_eq!(
            claim(&checks(vec![
                Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: None },
                module
            ])),
            "after bind"
        );
    }

    #[test]
    fn other_obstacles_are_named() {
        let obstacles = vec![
            Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: None },
            Obstacle::NoIommu,
        ];
        assert_eq!(claim(&checks(obstacles)), "no-iommu");
    }
}
