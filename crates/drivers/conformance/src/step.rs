//! The steps that checks are made of.

use ring3_device::Error;

/// Why a check did not pass.
pub enum Trouble {
    Failed(String),
    Skipped(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<String> for Trouble {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::step::Trouble::Failed(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// The end of a step.
pub type Step<T = ()> = Result<T, Trouble>;

/// Ends a check that its subject cannot show.
pub(crate) fn skip<T>(why: impl Into<String>) -> Step<T> {
    Err(Trouble::Skipped(why.into()))
}
