//! `ring3 run DRIVER --device URI`: one driver, in this process.

mod confined;
mod disk;
pub mod net;

use std::process::ExitCode;

use ring3_backend::{OpenOptions, Uri};
use ring3_driver::edu;

use crate::driving::Protection;

/// What `ring3 run` runs.
#[derive(clap::Subcommand)]
pub enum Driver {
    /// IDE and AHCI controllers: each drive becomes a block device.
    Ata(disk::AtaArgs),
    /// QEMU's teaching device: runs its self test, step by step.
    Edu(EduArgs),
    /// Network cards: each becomes an interface of the kernel.
    Net(net::Args),
    /// No device: a disk whose requests end at once, the floor of measurements.
    Null(disk::NullArgs),
    /// NVMe controllers: each namespace becomes a block device.
    Nvme(disk::NvmeArgs),
    /// virtio disks: each becomes a block device.
    Virtio(disk::VirtioArgs),
}

#[derive(clap::Args)]
pub struct EduArgs {
    /// The device: vfio:0000:00:04.0, qtest:edu, vfio-user:PATH or sim:edu.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// Print the facts as a JSON object, one line for each.
    #[arg(long)]
    json: bool,
    /// At the end, let the device write to this address outside of its memory, to see whether it is confined. Without an
    /// IOMMU, that overwrites 64 bytes of whatever is there.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "0xffff000", value_parser = address)]
    outside: Option<u64>,
}

/// Runs a driver until it is done.
pub fn run(driver: Driver) -> anyhow::Result<ExitCode> {
    match driver {
        Driver::Ata(args) => disk::run_ata(args),
        Driver::Edu(args) => run_edu(args),
        Driver::Net(args) => net::run(args),
        Driver::Null(args) => disk::run_null(args),
        Driver::Nvme(args) => disk::run_nvme(args),
        Driver::Virtio(args) => disk::run_virtio(args),
    }
}

fn run_edu(args: EduArgs) -> anyhow::Result<ExitCode> {
    let options = args.protection.apply(OpenOptions { arena: 1 << 20, below: edu::REACH, ..OpenOptions::default() });
    let uri = &args.device;
    let mut report = |fact: edu::Fact| match args.json {
        true => outln!("{}", serde_json::json!({ "step": fact.step, "result": fact.result })),
        false => outln!("{:26} {}", fact.step, fact.result),
    };
    let tested = ring3_backend::open(uri, options).and_then(|device| edu::self_test(device, args.outside, &mut report));
    tested.map_err(|error| match error.to_string() {
        text if text.contains(&uri.to_string()) => anyhow::anyhow!(text),
        text => anyhow::anyhow!("{uri}: {text}"),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A number, decimal or with 0x.
fn address(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| "an address such as 0xffff000".into())
}
