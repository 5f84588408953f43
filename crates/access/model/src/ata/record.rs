//! What the host did, and what it did wrong.

use crate::violations::Violations;

/// What the host did, for tests of a driver's economy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Register reads.
    pub reads: u64,
    /// Register writes.
    pub writes: u64,
    /// Of these, the ones that start commands: PxCI of AHCI, the command register of IDE.
    pub doorbells: u64,
    /// Commands that move or keep data: reads, writes, flushes, discards.
    pub commands: u64,
    /// Other commands.
    pub admin_commands: u64,
    /// Interrupts that were sent, or would have been if they were not held back.
    pub interrupts: u64,
    /// Resets of an AHCI controller, by whomever, and of the links of its ports.
    pub resets: u64,
}

/// What a model notes down.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) counters: Counters,
    violations: Violations,
}

impl Record {
    /// Records that the host broke a rule of the specification.
    pub(crate) fn record_violation(&mut self, what: String) {
        self.violations.add(what);
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.all()
    }

    pub(crate) fn count_command(&mut self, is_io: bool) {
        let counter =
            if is_io { &mut self.counters.commands } else { &mut self.counters.admin_commands };
        *counter += 1;
    }
}
