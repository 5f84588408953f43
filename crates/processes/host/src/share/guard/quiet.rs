//! A function that writes memory no more.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether the function is quiet.
pub(super) const LOOK: Duration = Duration::from_millis(1);
/// How often it is said that it is not.
const SAY: Duration = Duration::from_secs(10);

/// A function's configuration space.
pub(super) struct Config(PathBuf);

/// Offset of the command register, and its bus-master bit. [PCI 3.0, 6.2.2]
const COMMAND_REGISTER: u64 = 4;
const BUS_MASTER: u16 = 1 << 2;

impl Config {
    /// Of a function of this machine's.
    pub fn of(function: &str) -> Self {
        Self(format!("/sys/bus/pci/devices/{function}/config").into())
    }

    /// Waits until it is no bus master. Without an end: a line of the log says so again and again.
    /// VFIO clears the bit when it is closed.
    pub fn await_quiet(&self) {
        let mut said = Instant::now();
        while self.is_master() {
            if said.elapsed() > SAY {
                said = Instant::now();
                tracing::warn!(
                    "{} is still a bus master after its driver has died: requests in clients' \
                    memory do not end before it is none; unbind it or reset it",
                    self.0.display()
                );
            }
            thread::sleep(LOOK);
        }
    }

    /// Whether it may transfer: its bus-master bit, read from itself, which has all that it wrote
    /// before arrive in memory. One that is gone does not.
    fn is_master(&self) -> bool {
        let read = || -> io::Result<u16> {
            let (mut file, mut word) = (File::open(&self.0)?, [0; 2]);
            file.seek(SeekFrom::Start(COMMAND_REGISTER))?;
            file.read_exact(&mut word)?;
            Ok(u16::from_le_bytes(word))
        };
        read().is_ok_and(|command| command != u16::MAX && command & BUS_MASTER != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(bytes: &[u8]) -> (tempfile::TempDir, Config) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, bytes).unwrap();
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
}
