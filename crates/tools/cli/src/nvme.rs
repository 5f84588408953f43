//! `ring3 nvme`: what an NVMe controller says about itself, and other formats for its namespaces.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::Disk;
use ring3_device::Error;
use ring3_driver::Circumstances;
use ring3_driver::nvme::{
    Controller, Firmware, Identity, NamespaceReport, Options, PowerState, WantedFormat,
};
use ring3_spec::nvme::log::{ErrorEntry, Smart};
use serde_json::{Value, json};

use crate::controller::Asked;
use crate::driving::{NvmeLimits, QuirkArgs};

/// Options of `ring3 nvme`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    page: Page,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    quirks: QuirkArgs,
    #[command(flatten)]
    nvme: NvmeLimits,
}

#[derive(Clone, Copy, clap::Subcommand)]
enum Page {
    /// Show the controller and its namespaces.
    Id,
    /// Show the SMART / health log.
    Smart,
    /// Show the error log, newest entry first.
    Errors,
    /// Show the power states, and which one the controller is in.
    Power {
        /// Milliseconds for which it is idle before that.
        #[arg(
            long, value_name = "MS", default_value_t = 0,
            value_parser = clap::value_parser!(u64).range(0..=60_000),
        )]
        idle: u64,
    },
    /// Show the firmware: what each slot holds, and which slot runs.
    Firmware,
    /// Show all namespaces with the formats that they could have, also those that are no disks.
    Namespaces,
    /// Format a namespace. All its data are lost.
    Format(FormatArgs),
}

/// Which namespace gets which format.
#[derive(Clone, Copy, clap::Args)]
struct FormatArgs {
    /// The namespace.
    #[arg(long, value_name = "ID")]
    namespace: u32,
    /// Bytes of a block's data.
    #[arg(long, value_name = "BYTES")]
    block: u32,
    /// The type of protection information in 8 bytes of metadata, 1 to 3; 0 for none.
    #[arg(
        long, value_name = "TYPE", default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=3),
    )]
    protection: u8,
    /// Lose all data of the namespace. Without it nothing is changed.
    #[arg(long)]
    destroy: bool,
    /// Lose those of all other namespaces, too, if the controller formats all at once.
    #[arg(long)]
    all_namespaces: bool,
}

/// Asks the controller and prints what it says.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let uri = args
        .asked
        .device("vfio:0000:01:00.0, uio:0000:01:00.0, qtest:nvme, vfio-user:PATH or sim:nvme")?;
    let memory =
        args.asked.protection.apply(OpenOptions { arena: 4 << 20, ..OpenOptions::default() });
    let quirks = Circumstances::from(args.quirks).here();
    let options = Options { max_queues: 1, quirks, ..args.nvme.options(Options::default()) };
    let answer = ask(args.page, uri, memory, options).with_context(|| uri.to_string())?;
    args.asked.print(&answer);
    Ok(ExitCode::SUCCESS)
}

fn ask(page: Page, uri: &Uri, memory: OpenOptions, options: Options) -> Result<Value, Error> {
    let device = ring3_backend::open(uri, memory)?;
    let controller = Controller::open(device, options)?;
    Ok(match page {
        Page::Firmware => firmware(&controller.firmware()?),
        Page::Namespaces => {
            let all = controller.describe_namespaces()?;
            json!({ "namespaces": all.iter().map(namespace).collect::<Vec<_>>() })
        }
        Page::Format(args) => format(&controller, args)?,
        Page::Id => identity(&controller),
        Page::Smart => smart(&controller.smart()?),
        Page::Errors => {
            json!({ "errors": controller.errors()?.iter().map(error).collect::<Vec<_>>() })
        }
        Page::Power { idle } => {
            std::thread::sleep(Duration::from_millis(idle));
            json!({
                "state": controller.power_state()?,
                "idle_ms": idle,
                "power_states": power_states(&controller),
            })
        }
    })
}

fn identity(controller: &Controller) -> Value {
    let identity = controller.identity();
    let namespaces = controller.namespaces().iter().map(|namespace| {
        let info = namespace.info();
        json!({
            "namespace": namespace.id(), "bytes": info.capacity(), "blocks": info.blocks,
            "block_size": info.block_size,
            "read_only": info.read_only, "discard": info.discard.is_some(),
            "write_zeroes": info.max_write_zeroes_blocks > 0, "boundary": info.boundary,
        })
    });
    let memory = controller.host_memory();
    let refused = controller
        .refused()
        .iter()
        .map(|(id, why)| json!({ "namespace": id, "reason": why.to_string() }));
    json!({
        "model": identity.model, "serial": identity.serial, "firmware": identity.firmware,
        "nvme_version": identity.version,
        "max_transfer_bytes": identity.max_transfer, "volatile_cache": identity.volatile_cache,
        "interrupts": identity.interrupts.map_or(
            "none".into(), |kind| format!("{kind:?}").to_lowercase(),
        ),
        "quirks": controller.quirks().names().collect::<Vec<_>>(),
        "host_memory": {
            "preferred_bytes": memory.preferred, "minimum_bytes": memory.minimum,
            "given_bytes": memory.given,
        },
        "power_states": power_states(controller),
        "namespaces": namespaces.collect::<Vec<_>>(), "refused": refused.collect::<Vec<_>>(),
    })
}

fn firmware(firmware: &Firmware) -> Value {
    let slots = firmware.slots.iter();
    json!({
        "active": firmware.active, "next": firmware.next,
        "slots": slots
            .map(|(slot, revision)| json!({ "slot": slot, "revision": revision }))
            .collect::<Vec<_>>(),
    })
}

fn namespace(report: &NamespaceReport) -> Value {
    let now = report.formats.iter().find(|format| format.index == report.format);
    let formats = report.formats.iter().map(|format| {
        json!({
            "format": format.index, "block_size": format.block_size, "metadata": format.metadata,
            "performance": format.performance,
        })
    });
    json!({
        "namespace": report.id, "command_set": report.command_set, "blocks": report.blocks,
        "block_size": now.map(|format| format.block_size),
        "metadata": now.map(|format| format.metadata), "protection": report.protection,
        "refused": report.refused, "formats": formats.collect::<Vec<_>>(),
    })
}

/// Formats a namespace, if its loss is wanted; it is described as it is then.
fn format(controller: &Controller, args: FormatArgs) -> Result<Value, Error> {
    let FormatArgs { namespace: id, block, protection, destroy, all_namespaces } = args;
    if !destroy {
        let report = controller.describe_namespace(id)?;
        let Identity { model, serial, .. } = controller.identity();
        return Err(Error::Invalid(format!(
            "all data of namespace {id} of {model} {serial}, {} blocks, would be lost, and nothing \
             was changed; if that is meant, add --destroy",
            report.blocks
        )));
    }
    let wanted = WantedFormat { block_size: block, protection, all: all_namespaces };
    controller.format(id, wanted)?;
    Ok(namespace(&controller.describe_namespace(id)?))
}

/// The states of a controller that has several.
fn power_states(controller: &Controller) -> Vec<Value> {
    let state = |(number, state): (usize, &PowerState)| {
        json!({
            "state": number, "operational": state.operational, "entry_us": state.entry_us,
            "exit_us": state.exit_us, "microwatts": state.microwatts,
            "next": state.next.map(|(next, _)| next),
            "next_after_ms": state.next.map(|(_, idle_ms)| idle_ms),
        })
    };
    controller.power_states().iter().enumerate().map(state).collect()
}

/// Warnings by name, in the order of their bits.
const WARNINGS: [(u8, &str); 5] = [
    (Smart::WARNING_SPARE, "spare below its threshold"),
    (Smart::WARNING_TEMPERATURE, "temperature beyond a threshold"),
    (Smart::WARNING_RELIABILITY, "reliability degraded"),
    (Smart::WARNING_READ_ONLY, "medium is read only"),
    (Smart::WARNING_BACKUP, "backup of volatile memory failed"),
];

fn smart(log: &Smart) -> Value {
    let warnings: Vec<_> = WARNINGS
        .iter()
        .filter(|(bit, _)| log.critical_warning() & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    // Counters of 128 bits are printed as far as 64 bits reach: more than any device will ever
    // count.
    let count = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
    // A data unit is 1000 blocks of 512 bytes. [NVMe 5.1.12.1.3]
    let bytes = |units: u128| count(units.saturating_mul(512_000));
    json!({
        "warnings": warnings,
        "temperature_celsius": i32::from(log.temperature_kelvin()) - 273,
        "available_spare_percent": log.available_spare(),
        "spare_threshold_percent": log.spare_threshold(),
        "percentage_used": log.percentage_used(),
        "bytes_read": bytes(log.data_units_read()),
        "bytes_written": bytes(log.data_units_written()),
        "host_reads": count(log.host_reads()), "host_writes": count(log.host_writes()),
        "busy_minutes": count(log.busy_minutes()), "power_cycles": count(log.power_cycles()),
        "power_on_hours": count(log.power_on_hours()),
        "unsafe_shutdowns": count(log.unsafe_shutdowns()),
        "media_errors": count(log.media_errors()),
        "error_log_entries": count(log.error_log_entries()),
        "warning_temperature_minutes": log.warning_minutes(),
        "critical_temperature_minutes": log.critical_minutes(),
    })
}

fn error(entry: &ErrorEntry) -> Value {
    json!({
        "count": entry.count(), "queue": entry.queue(), "command": entry.command(),
        "status": entry.status().to_string(),
        "lba": entry.lba(), "namespace": entry.namespace(),
    })
}
