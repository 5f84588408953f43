//! One driver's process: with the lease that is its standard input, until it is killed or leaves.

use std::fs::File;
use std::io::{BufReader, BufWriter, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_backend::{Lease, attach};
use ring3_bench::kill::{Journal, Left, clear, drive, drive_reading};
use ring3_class::Saved;
use ring3_device::dma::SavedArena;
use ring3_driver::registry::{Driver, Offer, Settings};
use serde::{Deserialize, Serialize};

use crate::job::Job;

/// The life that makes an empty disk.
pub const CLEARS: u32 = 0;

/// What a driver that leaves writes beside the journal, for the next one.
#[derive(Serialize, Deserialize)]
pub struct SavedDriver {
    arena: SavedArena,
    controller: Saved,
    pub load: Left,
}

/// Where that is.
pub fn saved_driver(journal: &Path) -> PathBuf {
    journal.with_extension("left")
}

/// Life number `life` of a driver, with the lease that is its standard input. One that is
/// `read_only` never leaves by itself.
pub fn live(path: &Path, life: u32, read_only: bool) -> Result<()> {
    let journal = Journal::open(path)?;
    let lease = Lease::from(stdin().as_fd().try_clone_to_owned().context("taking the lease")?);
    // As short a way as there is from the start to the first request: nothing is polled for.
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    let left: Option<SavedDriver> = match File::open(saved_driver(path)) {
        Ok(file) => Some(
            serde_json::from_reader(BufReader::new(file))
                .context("reading what the last driver has left")?,
        ),
        Err(_) => None,
    };
    let device = attach(lease, left.as_ref().map(|left| &left.arena))?;
    let mut opened = match &left {
        Some(left) => Driver::resume(Arc::clone(&device), &settings, &left.controller)?,
        None => Driver::open(Arc::clone(&device), None, &settings)?,
    };
    let Some(Offer::Disk(disk)) = opened.offers.first() else {
        bail!("it has no disk that can be used")
    };
    if life == CLEARS {
        clear(&**disk)?;
        return Ok(());
    }
    if read_only {
        return drive_reading(&**disk, &journal, life).map(drop).map_err(Into::into);
    }
    let load = drive(&**disk, &journal, life, left.map(|left| left.load))?;
    let controller = opened.controller.detach()?;
    // Nothing else has memory then but what is with the device.
    drop(opened);
    let left = SavedDriver { arena: device.dma().arena().save(), controller, load };
    let file = BufWriter::new(
        File::create(saved_driver(path)).context("making the file of what is left")?,
    );
    serde_json::to_writer(file, &left).context("writing what is left")?;
    Ok(())
}

/// A driver, which does not survive its killer's errors.
pub struct DriverProcess(pub Child);

impl Drop for DriverProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts life number `life` with `lease`.
pub fn spawn(journal: &Path, lease: Lease, life: u32, read_only: bool) -> Result<DriverProcess> {
    let program =
        std::env::current_exe().context("finding this program, which is the driver, too")?;
    let mut command = Command::new(program);
    command.args(Job::Killed { journal: journal.into(), life, read_only }.words()?);
    // A driver that outlives its killer would keep the device.
    ring3_process::end_with_this(&mut command);
    // In a group of its own, so that control-C ends the whole and not the driver first.
    command
        .process_group(0)
        .stdin(OwnedFd::from(lease))
        .stdout(Stdio::null())
        .spawn()
        .map(DriverProcess)
        .context("starting a driver")
}
