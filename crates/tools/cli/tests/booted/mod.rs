//! A guest that boots once for all tests of a file, each of which looks at what one of its steps
//! has said.
//!
//! `RING3_TEST_KERNEL` chooses another kernel than the lab's usual one, such as 7.2, unless a test
//! is of one kernel; `RING3_TEST_SHOW` prints what each step has said.
#![allow(dead_code, reason = "each file has its own use of it")]

use ring3_lab::{Cache, Device, Error, Guest, Outcome, SharedOutcome};

/// A step: its name, and its shell script.
pub type Step = (&'static str, &'static str);

/// The guest, and what it has said once it has been asked for.
pub struct Booted {
    kernel: Option<&'static str>,
    guest: fn(&Cache) -> Result<Guest, Error>,
    /// Shell functions of every step.
    prelude: &'static str,
    steps: &'static [Step],
    outcome: SharedOutcome,
}

impl Booted {
    /// `guest`, which does `steps`, each behind `prelude` and in a shell of its own.
    pub const fn new(
        guest: fn(&Cache) -> Result<Guest, Error>,
        prelude: &'static str,
        steps: &'static [Step],
    ) -> Self {
        Self { kernel: None, guest, prelude, steps, outcome: SharedOutcome::new() }
    }

    /// The same with the kernel of this version, whatever the environment says.
    pub const fn on(
        kernel: &'static str,
        guest: fn(&Cache) -> Result<Guest, Error>,
        prelude: &'static str,
        steps: &'static [Step],
    ) -> Self {
        Self { kernel: Some(kernel), guest, prelude, steps, outcome: SharedOutcome::new() }
    }

    /// What became of it; panics, for every test, if it did not end well.
    #[track_caller]
    pub fn outcome(&self) -> &Outcome {
        self.outcome.get_or_run(|| {
            let cache = Cache::open().unwrap_or_else(|error| panic!("{error}"));
            let mut guest = (self.guest)(&cache).unwrap_or_else(|error| panic!("{error}"));
            for (name, script) in self.steps {
                guest = guest.step(name, &format!("{}(\n{script}\n)\ntrue", self.prelude));
            }
            let wished = std::env::var("RING3_TEST_KERNEL").ok();
            if let Some(kernel) = self.kernel.map(str::to_owned).or(wished) {
                guest.name = format!("{}-{kernel}", guest.name);
                guest.kernel = kernel;
            }
            let outcome = guest.run(&cache, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
            assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
            outcome
        })
    }

    /// All that a step has said.
    #[track_caller]
    pub fn said(&self, step: &str) -> &str {
        self.outcome().said(step).unwrap_or_else(|| panic!("there is no step {step:?}"))
    }

    /// Fails unless a step has said all of this.
    #[track_caller]
    pub fn says(&self, step: &str, wanted: &[&str]) {
        let said = self.said(step);
        wanted
            .iter()
            .for_each(|wanted| assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}"));
    }

    /// What a step has said after this, which it has said once.
    #[track_caller]
    pub fn said_after(&self, step: &str, mark: &str) -> &str {
        let said = self.said(step);
        said.split_once(mark).unwrap_or_else(|| panic!("{mark:?} is not in:\n{said}")).1
    }
}

/// A card at the wire that all such cards of a guest share.
pub fn hub(device: Device) -> Device {
    Device { netdev: Some("hub".into()), ..device }
}
