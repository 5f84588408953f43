//! The documentation of the simulated devices names each of their options.

use ring3_device::Error;
use ring3_device::OpenOptions;
use ring3_model::{ahci, e1000, edu, ide, nvme, virtio};

const DOCUMENTATION: &str = include_str!("../../../../docs/sim.md");

/// What the refusal of an unknown option lists.
fn options(refused: Result<(), Error>) -> Vec<String> {
    let error = refused.unwrap_err().to_string();
    let (_, known) = error.split_once("it has: ").unwrap();
    known.split(", ").map(str::to_owned).collect()
}

fn is_documented(option: &str) -> bool {
    let cells =
        DOCUMENTATION.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    cells.flat_map(|cell| cell.split('`')).any(|word| word.split('=').next() == Some(option))
}

#[test]
fn every_option_is_documented() {
    let (asked, uri) =
        (OpenOptions::default(), |model| format!("sim:{model},no-such-option=1").parse().unwrap());
    let models = [
        edu::open(&uri("edu"), asked.clone()).map(drop),
        nvme::open(&uri("nvme"), asked.clone()).map(drop),
        ahci::open(&uri("ahci"), asked.clone()).map(drop),
        ide::open(&uri("ide"), asked.clone()).map(drop),
        e1000::open(&uri("e1000"), asked.clone()).map(drop),
        virtio::blk::open(&uri("virtio-blk"), asked.clone()).map(drop),
        virtio::net::open(&uri("virtio-net"), asked).map(drop),
    ];
    let missing: Vec<_> =
        models.into_iter().flat_map(options).filter(|option| !is_documented(option)).collect();
    assert_eq!(missing, Vec::<String>::new());
}
