//! `ring3 model MODEL --socket PATH`: a model of a device, for drivers in other processes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use ring3_backend::{OpenOptions, Uri};
use ring3_model::vfio_user::{VfioUserDevice, VfioUserServer};
use serde_json::json;

/// Options of `ring3 model`.
#[derive(clap::Args)]
#[command(after_help = "Drivers use it as vfio-user:PATH. SIGINT or SIGTERM ends it; the \
                        content of its disks is then lost.")]
pub struct Args {
    /// The simulated device and its options, as after sim: (docs/sim.md): nvme, ahci, ide, e1000 or
    /// edu, such as nvme,size=64M,namespaces=2.
    model: String,
    /// The socket to listen at. Only this user can connect.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Print the start as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Serves the model until a signal ends it.
pub fn run(args: Args) -> Result<ExitCode> {
    let (model, device) = open(&args.model)?;
    let name = name(&args.socket)?;
    let server = VfioUserServer::bind(&args.socket, device)?;
    let stop = server.stop();
    ctrlc::set_handler(move || stop.now()).context("taking signals")?;
    match args.json {
        true => outln!(
            "{}",
            json!({ "device": name, "model": model.to_string(), "pid": std::process::id() })
        ),
        false => outln!("{model} is there for one driver at a time: --device {name}"),
    }
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Its own arena is not used: memory is its driver's.
pub const OPTIONS: OpenOptions =
    OpenOptions { arena: 4096, below: u64::MAX, unprotected: false, memory: None };

/// The model that a user calls `words`.
pub fn open(words: &str) -> Result<(Uri, Arc<dyn VfioUserDevice>)> {
    let uri: Uri = format!("sim:{words}").parse()?;
    let device = ring3_model::open(&uri, OPTIONS)?;
    Ok((uri, device))
}

/// What a driver calls the device on `socket`.
pub fn name(socket: &Path) -> Result<String> {
    let path = socket.to_str().filter(|path| !path.contains(',') && !path.is_empty());
    ensure!(
        path.is_some(),
        "{}: a device's name cannot hold this path: choose one without commas",
        socket.display()
    );
    Ok(format!("vfio-user:{}", socket.display()))
}
