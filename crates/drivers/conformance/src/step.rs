//! The steps that checks are made of.

use ring3_device::Error;

/// Why a check did not pass.
pub enum CheckFailure {
    Failed(String),
    Skipped(String),
}

impl From<Error> for CheckFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for CheckFailure {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::step::CheckFailure::Failed(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// The end of a step.
pub type Step<T = ()> = Result<T, CheckFailure>;

/// Ends a check that its subject cannot show.
pub(crate) fn skip<T>(why: impl Into<String>) -> Step<T> {
    Err(CheckFailure::Skipped(why.into()))
}
