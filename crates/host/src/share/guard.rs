//! The process that outlives an exporting one by a moment, so that nothing of it ends before its device is quiet; and the commands that wait for what is in flight.
//!
//! # Why another process
//! A command that registers memory waits in the kernel until all requests of the disk have ended. Were it this process's, and were this process killed meanwhile, its open files could not be closed before the command has
//! ended, nor the command end before they are closed.
//!
//! # Waiting
//! Without an end, for a function whose bus-master bit stays set after its owner has died: a line of the log says so again and again. VFIO clears it when it is closed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ring3_broker::region;
use ring3_export::ublk;
use ring3_lease::Channel;
use ring3_process::Signals;
use serde::{Deserialize, Serialize};

use crate::attach::Source;

/// The hidden command that becomes a guard, whose standard input is the socket to who started it.
pub const COMMAND: &str = "share-guard";

/// How long it may take to answer: the kernel waits for what is in flight.
const PATIENCE: Duration = Duration::from_secs(130);
/// How often it is looked whether the function is quiet.
const LOOK: Duration = Duration::from_millis(1);
/// How often it is said that it is not.
const SAY: Duration = Duration::from_secs(10);
/// How long the kernel may take to end a device that nobody serves.
const ORPHANED: Duration = Duration::from_secs(10);

/// What it is told.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// Before all else: the function that writes clients' memory, if it is one of this machine's.
    Watch { function: Option<String> },
    /// With `/dev/ublkcN`, which it keeps open.
    Hold { id: u32 },
    /// With memory that was checked.
    Register { id: u32, bytes: u64 },
    /// No request may lie there any more.
    Forget { id: u32, index: u16 },
    /// The devices are gone, in good order.
    Release,
}

/// What it answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Done,
    Registered { index: u16 },
    Failed { reason: String },
}

/// The function whose bus-master bit says whether the device of `source` may write memory; `None` for one that ends with this process. Others cannot be watched.
pub(super) fn function(source: &Source) -> Result<Option<String>, ring3_device::Error> {
    let Source::Device(claim) = source else { return Ok(None) };
    let uri = &claim.device;
    match uri.scheme.as_str() {
        "vfio" => Ok(Some(uri.target.clone())),
        "sim" => Ok(None),
        scheme => Err(ring3_device::Error::Unsupported(format!(
            "sharing clients' memory with a device behind {scheme}: nobody could tell when it has stopped writing there; --share is for vfio: (and sim:)"
        ))),
    }
}

/// The guard, as who started it has it.
pub(super) struct Guard {
    channel: Channel,
    child: Child,
}

impl Guard {
    /// Starts one for the device behind `function`.
    pub fn start(function: Option<String>) -> io::Result<Self> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // What a terminal sends to this process is not for it.
            .process_group(0)
            .spawn()?;
        let guard = Self { channel: Channel::new(ours, PATIENCE, true)?, child };
        guard.ask(&Order::Watch { function }, &[]).map_err(io::Error::other)?;
        Ok(guard)
    }

    /// Has it keep `file`, `/dev/ublkcN`, open.
    pub fn hold(&self, id: u32, file: &File) -> Result<(), String> {
        self.ask(&Order::Hold { id }, &[file.as_fd()]).map(drop)
    }

    /// Registers memory that was checked with device `id`; the kernel's index of it.
    pub fn register(&self, id: u32, memory: &OwnedFd, bytes: u64) -> Result<u16, String> {
        match self.ask(&Order::Register { id, bytes }, &[memory.as_fd()])? {
            Reply::Registered { index } => Ok(index),
            reply => Err(format!("the guard answers {reply:?}")),
        }
    }

    /// When this returns well, no request of device `id` lies in the memory `index` any more.
    pub fn forget(&self, id: u32, index: u16) -> Result<(), String> {
        self.ask(&Order::Forget { id, index }, &[]).map(drop)
    }

    /// It has nothing to wait for.
    pub fn release(mut self) {
        if self.ask(&Order::Release, &[]).is_ok() {
            let _ = self.child.wait();
        }
    }

    fn ask(&self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<Reply, String> {
        let gone = |why: String| format!("the guard of clients' memory has ended ({why}): start the export again");
        self.channel.send(order, fds).map_err(|error| gone(error.to_string()))?;
        match self.channel.receive::<Reply>() {
            Ok(Some((Reply::Failed { reason }, _))) => Err(reason),
            Ok(Some((reply, _))) => Ok(reply),
            Ok(None) => Err(gone("it has closed its socket".into())),
            Err(error) => Err(gone(error.to_string())),
        }
    }
}

/// Is the guard of the process at the other end of standard input, until that has ended and its device is quiet.
pub fn run() -> ExitCode {
    let _signals = Signals::take();
    // Whoever serves a disk waits for it.
    drop(ring3_process::stay_in_memory());
    let served = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|socket| Channel::new(socket, PATIENCE, false))
        .and_then(|channel| serve(&channel));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the guard of clients' memory");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Held {
    function: Option<String>,
    devices: Vec<(u32, OwnedFd)>,
    control: Option<ublk::Control>,
}

fn serve(channel: &Channel) -> io::Result<()> {
    let mut held = Held::default();
    while let Ok(Some((order, fds))) = channel.receive::<Order>() {
        let released = order == Order::Release;
        let reply = held.obey(order, fds).unwrap_or_else(|reason| Reply::Failed { reason });
        if released {
            held.devices.clear();
        }
        if channel.send(&reply, &[]).is_err() || released {
            break;
        }
    }
    if held.devices.is_empty() {
        return Ok(());
    }
    if let Some(function) = &held.function {
        await_quiet(&Config::of(function));
    }
    let ids: Vec<u32> = held.devices.drain(..).map(|(id, _)| id).collect();
    delete(&ids)
}

impl Held {
    fn obey(&mut self, order: Order, mut fds: Vec<OwnedFd>) -> Result<Reply, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        match order {
            Order::Watch { function } => self.function = function,
            Order::Hold { id } => {
                self.devices.push((id, fds.pop().ok_or("no descriptor")?));
                // Opened now: there may be none left later.
                self.control()?;
            }
            Order::Register { id, bytes } => {
                let fd = fds.pop().ok_or("no descriptor")?;
                let memory = region::check(&fd, bytes).map_err(|error| text(&error))?;
                let index = self.control()?.register_memory(id, &memory).map_err(|error| text(&error))?;
                return Ok(Reply::Registered { index });
            }
            Order::Forget { id, index } => self.control()?.unregister_memory(id, index).map_err(|error| text(&error))?,
            Order::Release => {}
        }
        Ok(Reply::Done)
    }

    fn control(&mut self) -> Result<&mut ublk::Control, String> {
        if self.control.is_none() {
            self.control = Some(ublk::Control::open().map_err(|error| error.to_string())?);
        }
        self.control.as_mut().ok_or_else(|| "no control".into())
    }
}

/// A function's configuration space.
struct Config(PathBuf);

/// Offset of the command register, and its bus-master bit. [PCI 3.0, 6.2.2]
const COMMAND_REGISTER: u64 = 4;
const BUS_MASTER: u16 = 1 << 2;

impl Config {
    fn of(function: &str) -> Self {
        Self(format!("/sys/bus/pci/devices/{function}/config").into())
    }

    /// Whether it may transfer: its bus-master bit, read from itself, which has all that it wrote before arrive in memory. One that is gone does not.
    fn is_master(&self) -> bool {
        let read = || -> io::Result<u16> {
            let (mut file, mut word) = (fs::File::open(&self.0)?, [0; 2]);
            file.seek(SeekFrom::Start(COMMAND_REGISTER))?;
            file.read_exact(&mut word)?;
            Ok(u16::from_le_bytes(word))
        };
        read().is_ok_and(|command| command != u16::MAX && command & BUS_MASTER != 0)
    }
}

fn await_quiet(config: &Config) {
    let mut said = Instant::now();
    while config.is_master() {
        if said.elapsed() > SAY {
            said = Instant::now();
            tracing::warn!(
                "{} is still a bus master after its driver has died: requests in clients' memory do not end before it is none; unbind it or reset it",
                config.0.display()
            );
        }
        thread::sleep(LOOK);
    }
}

/// Gives back what nobody serves any more, and with that clients' pages, which the kernel pins as long as the device is there. One that another process has begun to serve meanwhile stays.
fn delete(ids: &[u32]) -> io::Result<()> {
    let since = Instant::now();
    let mut left = ids.to_vec();
    while !left.is_empty() && since.elapsed() < ORPHANED {
        // As every start does: who looked before whether it is one would have it open for a moment.
        let deleted = ublk::identities::delete(&[]).map_err(io::Error::other)?;
        left.retain(|id| !deleted.contains(id) && Path::new(&format!("/sys/class/ublk-char/ublkc{id}")).exists());
        thread::sleep(LOOK * 10);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Claim;

    fn config(bytes: &[u8]) -> (tempfile::TempDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        fs::write(&path, bytes).unwrap();
        (folder, Config(path))
    }

    #[test]
    fn a_function_may_write_memory_while_its_bus_master_bit_is_set() {
        assert!(config(&[0x36, 0x1b, 0x10, 0, 0x06, 0x04]).1.is_master());
        assert!(!config(&[0x36, 0x1b, 0x10, 0, 0x02, 0x04]).1.is_master());
    }

    #[test]
    fn a_function_that_is_gone_writes_nothing() {
        assert!(!config(&[0xff; 6]).1.is_master());
        assert!(!config(&[]).1.is_master());
        assert!(!Config::of("no such function").is_master());
    }

    #[test]
    fn what_nobody_can_watch_shares_no_memory() {
        let of = |uri: &str| function(&Source::Device(Claim::new(uri.parse().unwrap())));
        assert_eq!(of("vfio:0000:01:00.0").unwrap().unwrap(), "0000:01:00.0");
        assert_eq!(of("sim:nvme").unwrap(), None);
        for uri in ["vfio-user:/run/x", "uio:0000:01:00.0", "qtest:nvme", "remote:/run/x"] {
            assert!(of(uri).unwrap_err().to_string().contains("--share"), "{uri}");
        }
    }
}
