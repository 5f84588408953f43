//! `ring3 ata id`: what the drives of an IDE or AHCI controller say about themselves.

use std::process::ExitCode;

use anyhow::Context;
use ring3_backend::{OpenOptions, Uri, class_of};
use ring3_device::Error;
use ring3_driver::ata::{Controller, Flush, Member, Options};
use ring3_driver::registry::Driver;
use serde_json::{Value, json};

use crate::controller::Asked;
use crate::driving::QuirkArgs;

/// Options of `ring3 ata`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    page: Page,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    quirks: QuirkArgs,
}

#[derive(Clone, Copy, clap::Subcommand)]
enum Page {
    /// Show the controller's drives, and why a drive cannot be used.
    Id,
}

/// Asks the drives and prints what they say.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Page::Id = args.page;
    let uri = args.asked.device(
        "vfio:0000:01:00.0, uio:0000:00:01.1, qtest:ich9-ahci, qtest:piix3-ide, vfio-user:PATH, \
         sim:ahci or sim:ide",
    )?;
    let memory =
        args.asked.protection.apply(OpenOptions { arena: 4 << 20, ..OpenOptions::default() });
    let memory = OpenOptions { below: Driver::dma_limit(class_of(uri), None), ..memory };
    let answer = ask(uri, memory, args.quirks).with_context(|| uri.to_string())?;
    args.asked.print(&answer);
    Ok(ExitCode::SUCCESS)
}

fn ask(uri: &Uri, memory: OpenOptions, quirks: QuirkArgs) -> Result<Value, Error> {
    let options = Options { quirks: quirks.into(), ..Options::default() };
    let controller = Controller::open(ring3_backend::open(uri, memory)?, options)?;
    let refused = controller
        .refused()
        .iter()
        .map(|(drive, why)| json!({ "drive": drive, "reason": why.to_string() }));
    Ok(json!({
        "interface": match controller {
            Controller::Ide(_) => "ide", Controller::Ahci(_) => "ahci",
        },
        "interrupts": controller.interrupts().map_or(
            "none".into(), |kind| format!("{kind:?}").to_lowercase(),
        ),
        "drives": controller.members().iter().map(drive).collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
    }))
}

fn drive(member: &Member<'_>) -> Value {
    let identity = member.identity;
    json!({
        "place": member.place, "name": member.disk.name(), "mode": member.mode,
        "model": identity.model, "serial": identity.serial, "firmware": identity.firmware,
        "bytes": member.disk.info().capacity(), "blocks": identity.blocks,
        "block_size": identity.block_size,
        "physical_block_size": identity.physical_block_size, "lba48": identity.lba48,
        "queue_depth": identity.queue_depth,
        "ultra_dma": identity.ultra_dma, "multiword_dma": identity.multiword_dma,
        "multiple": identity.multiple,
        "volatile_cache": identity.cache, "flush": identity.flush != Flush::None,
        "fua": identity.fua,
        "trim": identity.trim_sectors > 0, "smart": identity.smart, "rotation": identity.rotation,
        "quirks": identity.quirks.names().collect::<Vec<_>>(),
    })
}
