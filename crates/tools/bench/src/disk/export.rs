//! A driver in a process of its own, as a child that is stopped with its owner.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// How long the driver may take to show its device, and to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running export: the process, and the block device that it serves.
pub struct Export {
    child: Child,
    device: PathBuf,
    /// Takes the device from its bus.
    detach: Option<Box<dyn FnOnce() -> Result<(), Error>>>,
}

impl Export {
    /// Starts `program` with `arguments` and waits until it prints the path of its block device and
    /// that is there.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self, Error> {
        Self::spawn(program, arguments, shown_device)
    }

    /// Starts a supervisor, `program` with `arguments`, and waits for its `link` to the block
    /// device.
    pub fn supervised(program: &Path, arguments: &[String], link: &Path) -> Result<Self, Error> {
        Self::spawn(program, arguments, |_, what| appeared(link.to_owned(), PATIENCE, what))
    }

    /// Starts `program` with `arguments`, and `ready` waits for its device and puts it on a bus,
    /// from which `detach` takes it before the program is asked to end.
    pub(super) fn on_a_bus(
        program: &Path,
        arguments: &[String],
        ready: impl FnOnce(&mut Child, &str) -> Result<PathBuf, Error>,
        detach: Box<dyn FnOnce() -> Result<(), Error>>,
    ) -> Result<Self, Error> {
        let mut export = Self::spawn(program, arguments, |_, _| Ok(PathBuf::new()))?;
        export.detach = Some(detach);
        let what = format!("{} {}", program.display(), arguments.join(" "));
        export.device = ready(&mut export.child, &what)?;
        Ok(export)
    }

    fn spawn(
        program: &Path,
        arguments: &[String],
        shown: impl FnOnce(&mut Child, &str) -> Result<PathBuf, Error>,
    ) -> Result<Self, Error> {
        let what = format!("{} {}", program.display(), arguments.join(" "));
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::os(format!("starting {what}"), error))?;
        let device = shown(&mut child, &what);
        // From here on a failure stops the child.
        let mut export = Self { child, device: PathBuf::new(), detach: None };
        export.device = device?;
        Ok(export)
    }

    /// The driver's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The block device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    fn ended(&mut self, within: Duration) -> bool {
        let start = Instant::now();
        while start.elapsed() < within {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.detach.take().map(|detach| detach()) {
            eprintln!("ring3: {error}");
        }
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // Fails only if it has ended already, which is what is wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
        if !self.ended(PATIENCE) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads the child's output until it names a block device, and keeps draining it so that the child
/// never blocks on it.
fn shown_device(child: &mut Child, what: &str) -> Result<PathBuf, Error> {
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Nobody listens any more once the device is known.
                let _ = sender.send(line);
            }
        });
    }
    let start = Instant::now();
    let mut said = String::new();
    while let Some(left) = PATIENCE.checked_sub(start.elapsed()) {
        let Ok(line) = receiver.recv_timeout(left) else { break };
        if let Some(device) = device_in(&line) {
            return appeared(device, PATIENCE.saturating_sub(start.elapsed()), what);
        }
        said += &line;
        said.push('\n');
    }
    Err(Error::format(
        what,
        format!("it ended or went silent without a block device; it said: {:?}", said.trim()),
    ))
}

fn device_in(line: &str) -> Option<PathBuf> {
    let start = ["/dev/ublkb", "/dev/vd"].into_iter().find_map(|disk| line.find(disk))?;
    let name = line[start..].split(|c: char| !(c.is_ascii_alphanumeric() || c == '/')).next()?;
    Some(PathBuf::from(name))
}

fn appeared(device: PathBuf, within: Duration, what: &str) -> Result<PathBuf, Error> {
    let start = Instant::now();
    while !device.exists() {
        if start.elapsed() > within {
            return Err(Error::format(what, format!("{} did not appear", device.display())));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Export, Error> {
        Export::start(Path::new("/bin/sh"), &["-c".into(), script.into()])
    }

    #[test]
    fn the_device_is_found_in_a_sentence_and_in_json() {
        for line in ["disk is /dev/ublkb0 (vfio:1)", "{\"device\":\"/dev/ublkb0\",\"x\":1}"] {
            assert_eq!(device_in(line), Some(PathBuf::from("/dev/ublkb0")));
        }
        assert_eq!(device_in("{\"device\":\"/dev/vda\",\"x\":1}"), Some(PathBuf::from("/dev/vda")));
        assert_eq!(device_in("nothing yet"), None);
    }

    #[test]
    fn a_driver_that_ends_without_a_device_is_an_error_with_its_words() {
        let error = shell("echo no such device").err().unwrap();
        assert!(error.to_string().contains("no such device"), "{error}");
    }

    #[test]
    fn a_driver_is_asked_to_end_when_its_owner_drops_it() {
        let mark = std::env::temp_dir().join(format!("ring3-export-{}", std::process::id()));
        let script =
            format!("trap 'touch {0}; exit 0' TERM; while :; do sleep 0.01; done", mark.display());
        let child = Command::new("/bin/sh").args(["-c", &script]).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        drop(Export { child, device: PathBuf::new(), detach: None });
        assert!(mark.exists());
        std::fs::remove_file(mark).unwrap();
    }
}
