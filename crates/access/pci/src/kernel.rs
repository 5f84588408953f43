//! The kernel that runs this process.
//!
//! # Waiting
//! A write to sysfs, or the loading of a module, lasts as long as the kernel wants, and a thread
//! that waits there cannot be ended. So each is made by a process of its own, for which is waited
//! within a limit; one that is not done by then is left behind.
//!
//! # References
//! - `[LOOP]` Linux uapi `linux/loop.h`: `LOOP_GET_STATUS64`, `struct loop_info64`

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, major, minor, open, statx};
use rustix::io::Errno;

use crate::{Kernel, Node};

/// How long the kernel may take for one step: a disk may flush for a minute before its driver lets
/// go of it.
const STEP_LIMIT: Duration = Duration::from_secs(90);
/// Between two looks whether it is done.
const PAUSE: Duration = Duration::from_millis(2);

/// The kernel itself.
pub(crate) struct Running;

impl Kernel for Running {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        // Opened here, so that a refusal is the kernel's own error. An attribute is never created,
        // and the value is one write.
        let attribute = fs::OpenOptions::new().write(true).open(path)?;
        let mut writer = Command::new("/bin/sh");
        writer.args(["-c", "printf %s \"$1\"", "sh", value]).stdin(Stdio::null()).stdout(attribute);
        finish_within(STEP_LIMIT, &mut writer)
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        // A user's path often lacks the directories of administrators.
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut modprobe = Command::new("modprobe");
        modprobe.arg(name).env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null());
        finish_within(STEP_LIMIT, &mut modprobe)
    }

    fn node(&self, path: &Path) -> io::Result<Option<Node>> {
        // Without a word to a server: a file of a dead one would keep us waiting.
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
        let number = (found.stx_rdev_major, found.stx_rdev_minor);
        Ok(match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::BlockDevice => Some(Node { block: true, number }),
            FileType::CharacterDevice => Some(Node { block: false, number }),
            _ => None,
        })
    }

    fn claim(&self, path: &Path) -> io::Result<OwnedFd> {
        // Without the disk's medium, and without a word to udev, which looks at a disk that was
        // open for writing.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(open(path, flags, Mode::empty())?)
    }

    fn under_loop(&self, path: &Path) -> io::Result<Option<Node>> {
        let device =
            open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        match loop_status(&device) {
            Ok(status) if status[2] == 0 => Ok(None),
            Ok(status) => {
                Ok(Some(Node { block: true, number: (major(status[2]), minor(status[2])) }))
            }
            // There is nothing under it.
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// `struct loop_info64` in words of 64 bits; word 2 is `lo_rdevice`, the number of the block
/// device, 0 for a file. [LOOP]
type LoopInfo = [u64; 29];

#[allow(unsafe_code)]
fn loop_status(device: &OwnedFd) -> Result<LoopInfo, Errno> {
    const LOOP_GET_STATUS64: rustix::ioctl::Opcode = 0x4C05;
    // SAFETY: this ioctl fills a `struct loop_info64`, 232 bytes of integers and text, which is
    // what `LoopInfo` has.
    unsafe {
        rustix::ioctl::ioctl(device, rustix::ioctl::Getter::<LOOP_GET_STATUS64, LoopInfo>::new())
    }
}

/// Runs `command`; its words on standard error are the error.
fn finish_within(limit: Duration, command: &mut Command) -> io::Result<()> {
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let since = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            // It is not ended: nothing would, and the kernel may still do what it was asked.
            None if since.elapsed() >= limit => {
                let text = format!(
                    "the kernel has not answered for {} s, and is still at it (see dmesg)",
                    limit.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            None => std::thread::sleep(PAUSE),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut words = String::new();
    child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut words)).transpose()?;
    Err(io::Error::other(match words.trim() {
        "" => format!("it ended with {status}"),
        words => words.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_its_number_and_a_file_is_none() {
        assert_eq!(
            Running.node(Path::new("/dev/null")).unwrap(),
            Some(Node { block: false, number: (1, 3) })
        );
        assert_eq!(Running.node(Path::new("/proc/self/status")).unwrap(), None);
    }

    #[test]
    fn what_a_descriptor_has_open_is_known_through_its_link() {
        let null = fs::File::open("/dev/null").unwrap();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&null));
        assert_eq!(
            Running.node(Path::new(&link)).unwrap(),
            Some(Node { block: false, number: (1, 3) })
        );
    }

    #[test]
    fn a_value_arrives_in_one_piece_with_its_end_of_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        Running.write(file.path(), "vfio-pci\n").unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "vfio-pci\n");
    }

    #[test]
    fn an_attribute_that_is_not_there_is_not_made() {
        assert_eq!(
            Running.write(Path::new("/proc/self/no such"), "1").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_write_that_the_kernel_refuses_is_an_error() {
        // A device that has room for nothing.
        assert!(Running.write(Path::new("/dev/full"), "1").is_err());
    }

    #[test]
    fn a_step_that_lasts_longer_than_its_limit_is_left_behind() {
        let mut command = Command::new("sleep");
        let error = finish_within(Duration::from_millis(20), command.arg("5")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_words_of_a_step_that_failed_are_its_error() {
        let mut command = Command::new("/bin/sh");
        let error =
            finish_within(STEP_LIMIT, command.args(["-c", "echo no such thing >&2; exit 1"]))
                .unwrap_err();
        assert_eq!(error.to_string(), "no such thing");
    }
}
