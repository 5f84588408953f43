//! Where a driver broke a rule of its device's specification, in words.

/// Violations that are kept; the first ones, as they tell the cause of the others.
const KEPT: usize = 64;

/// What a model notes down; empty at the end of a driver's test.
#[derive(Default)]
pub(super) struct Violations(Vec<String>);

impl Violations {
    /// The host broke a rule of the specification.
    #[cold]
    pub(super) fn add(&mut self, what: String) {
        tracing::warn!("the driver broke a rule: {what}");
        if self.0.len() < KEPT {
            self.0.push(what);
        }
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0.clone()
    }
}
