//! `ring3 run DRIVER --device URI`: one driver, in this process or in one that it supervises.

mod disk;
pub mod held;
pub mod net;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, FromArgMatches};
use ring3_backend::{OpenOptions, Uri};
use ring3_driver::edu;

use crate::dde::Name;
use crate::driving::Protection;

/// What `ring3 run` runs.
#[derive(clap::Subcommand)]
pub enum Driver {
    /// Make block devices of the drives of an IDE or AHCI controller.
    Ata(disk::AtaArgs),
    /// Make a block device of a disk that another process serves.
    Disk(disk::RemoteArgs),
    /// Run the self test of QEMU's teaching device, step by step.
    Edu(EduArgs),
    /// Make a network interface of a card.
    Net(net::Args),
    /// Make a block device without a disk, as a baseline of measurements.
    ///
    /// Its requests complete at once.
    Null(disk::NullArgs),
    /// Make block devices of the namespaces of an NVMe controller.
    Nvme(disk::NvmeArgs),
    /// Make a block device of a virtio disk.
    Virtio(disk::VirtioArgs),
    /// dde:NAME: as `net`, with a driver of Linux.
    #[command(external_subcommand)]
    Hosted(Vec<OsString>),
}

#[derive(clap::Args)]
pub struct EduArgs {
    /// The device: vfio:0000:00:04.0, qtest:edu, vfio-user:PATH or sim:edu.
    #[arg(long, value_name = "URI")]
    device: Uri,
    #[command(flatten)]
    protection: Protection,
    /// Print each result as a JSON object, one per line.
    #[arg(long)]
    json: bool,
    /// At the end, let the device write to this address outside its memory, to test the IOMMU.
    /// Without one, this overwrites 64 bytes of whatever is there.
    #[arg(
        long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "0xffff000",
        value_parser = address,
    )]
    outside: Option<u64>,
}

/// Runs a driver until it is done.
pub fn run(driver: Driver) -> anyhow::Result<ExitCode> {
    match driver {
        Driver::Ata(args) => disk::run_ata(args),
        Driver::Disk(args) => disk::run_remote(args),
        Driver::Edu(args) => run_edu(args),
        Driver::Net(args) => net::run(args),
        Driver::Null(args) => disk::run_null(args),
        Driver::Nvme(args) => disk::run_nvme(args),
        Driver::Virtio(args) => disk::run_virtio(args),
        Driver::Hosted(words) => run_hosted(&words),
    }
}

/// `ring3 run dde:e1000e OPTION...`: what `ring3 run net --driver dde:e1000e OPTION...` is.
fn run_hosted(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let word = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let name: Name =
        word.parse().map_err(|why| anyhow::anyhow!("{why}; ring3 run --help names ring3's own"))?;
    let command = net::Args::augment_args(
        clap::Command::new("ring3 run").bin_name(format!("ring3 run {name}")),
    );
    let read = command
        .try_get_matches_from(words)
        .and_then(|matches| net::Args::from_arg_matches(&matches));
    match read {
        Ok(args) => net::run(args.by(name)?),
        Err(answer) => Ok(crate::say(&answer)),
    }
}

fn run_edu(args: EduArgs) -> anyhow::Result<ExitCode> {
    let options = args.protection.apply(OpenOptions {
        arena: 1 << 20,
        below: edu::REACH,
        ..OpenOptions::default()
    });
    let uri = &args.device;
    let mut report = |fact: edu::Fact| match args.json {
        true => outln!("{}", serde_json::json!({ "step": fact.step, "result": fact.result })),
        false => outln!("{:26} {}", fact.step, fact.result),
    };
    let tested = ring3_backend::open(uri, options)
        .and_then(|device| edu::self_test(device, args.outside, &mut report));
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
