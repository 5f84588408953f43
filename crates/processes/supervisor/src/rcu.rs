//! The kernel's RCU, expedited as long as disks have users.
//!
//! The kernel takes a disk from a dead server by two grace periods, one after the other, 10 to 20
//! ms each. The first begins with the server's death, before anybody hears of that: so it is not
//! enough to begin then. Expedited, each takes less than one, and interrupts all processors for it:
//! the whole machine pays, so that a manifest must ask for it, and it is put back with the last
//! disk that wants it. A supervisor that is killed leaves a note, by which the next one puts it
//! back.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const SWITCH: &str = "/sys/kernel/rcu_expedited";
const NOTE: &str = "/run/ring3/rcu_expedited";

/// How many want it, and what was before.
static USERS: Mutex<(u32, String)> = Mutex::new((0, String::new()));

/// Holds it expedited.
#[derive(Debug)]
pub struct Expedited(());

impl Expedited {
    /// `None` if the kernel does not let us; recovery is slower then.
    pub fn hold() -> Option<Self> {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if users.0 == 0 {
            users.1 = fs::read_to_string(SWITCH).ok()?.trim().to_owned();
            // Without a note nobody could put it back after us.
            fs::write(NOTE, &users.1).and_then(|()| fs::write(SWITCH, "1")).ok()?;
        }
        users.0 += 1;
        Some(Self(()))
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.0 -= 1;
        if users.0 == 0 {
            put_back(Path::new(SWITCH), Path::new(NOTE));
        }
    }
}

/// Puts back what a supervisor that was killed has left.
pub fn put_back_after_a_crash() {
    put_back(Path::new(SWITCH), Path::new(NOTE));
}

fn put_back(switch: &Path, note: &Path) {
    let Ok(before) = fs::read_to_string(note) else { return };
    match fs::write(switch, before.trim()) {
        Ok(()) => drop(fs::remove_file(note)),
        Err(error) => tracing::warn!(
            "{} could not be put back to {}: {error}; write it there",
            switch.display(),
            before.trim()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_supervisor_has_left_expedited_is_put_back_by_its_note_once() {
        let root = tempfile::tempdir().unwrap();
        let (switch, note) = (root.path().join("switch"), root.path().join("note"));
        fs::write(&switch, "1").unwrap();
        put_back(&switch, &note);
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1", "a user may want it so");
        fs::write(&note, "0").unwrap();
        put_back(&switch, &note);
        assert_eq!(fs::read_to_string(&switch).unwrap(), "0");
        assert!(!note.exists());
    }
}
