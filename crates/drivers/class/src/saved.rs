//! The saved state of a driver, for the driver that resumes its device.

use std::ops::RangeInclusive;

use ring3_device::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The state of a queue or of a controller that was detached: for the same driver in another
/// process, or in a later version.
///
/// The device goes on meanwhile and knows nothing of it. So nothing of its memory is free before
/// somebody has taken the state up, or has stopped the device. The bytes are in the arena's
/// regions; this says which they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Of what: `nvme queue`.
    pub of: String,
    /// The version of its form. Fields are only ever added, each with a default; whoever changes
    /// what one means counts this up.
    pub version: u32,
    /// The driver's own business.
    pub state: Value,
}

impl Saved {
    /// `state` of `of`, in `version` of its form.
    pub fn new(of: &str, version: u32, state: &impl Serialize) -> Result<Self, Error> {
        let state = serde_json::to_value(state)
            .map_err(|error| Error::Invalid(format!("the state of the {of}: {error}")))?;
        Ok(Self { of: of.into(), version, state })
    }

    /// The state, if it is one of `of` in `version` of its form; [`Error::Invalid`] otherwise. What
    /// is in it is still to be checked.
    pub fn read<T: DeserializeOwned>(&self, of: &str, version: u32) -> Result<T, Error> {
        self.read_one_of(of, version..=version)
    }

    /// The same of a state in any of `versions` of its form, of which the older ones lack what has
    /// a default.
    pub fn read_one_of<T: DeserializeOwned>(
        &self,
        of: &str,
        versions: RangeInclusive<u32>,
    ) -> Result<T, Error> {
        if self.of != of {
            return Err(Error::Invalid(format!(
                "the saved state is of a {}, and a {of} is resumed: give each its own",
                self.of
            )));
        }
        if !versions.contains(&self.version) {
            let known = match (versions.start(), versions.end()) {
                (one, other) if one == other => format!("form {one}"),
                (first, last) => format!("forms {first} to {last}"),
            };
            return Err(Error::Invalid(format!(
                "the state of the {of} was saved in form {}, and this version of ring3 reads \
                 {known}: resume it with the one that saved it, or open the device anew",
                self.version
            )));
        }
        T::deserialize(&self.state).map_err(|error| {
            Error::Invalid(format!(
                "the saved state of the {of} is damaged: {error}; open the device anew"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_what_it_was_saved_as_and_as_nothing_else() {
        let saved = Saved::new("queue", 1, &[1u64, u64::MAX]).unwrap();
        let saved: Saved = serde_json::from_str(&serde_json::to_string(&saved).unwrap()).unwrap();
        assert_eq!(saved.read::<[u64; 2]>("queue", 1).unwrap(), [1, u64::MAX]);
        let says = |error: Error, what: &str| {
            assert!(
                matches!(&error, Error::Invalid(_)) && error.to_string().contains(what),
                "{error}"
            )
        };
        says(saved.read::<[u64; 2]>("disk", 1).unwrap_err(), "is of a queue");
        says(saved.read::<[u64; 3]>("queue", 1).unwrap_err(), "damaged");
    }

    #[test]
    fn a_state_of_a_newer_form_is_refused_with_what_to_do() {
        let error = Saved::new("queue", 2, &0).unwrap().read::<u32>("queue", 1).unwrap_err();
        assert!(
            error.to_string().contains("saved in form 2")
                && error.to_string().contains("open the device anew"),
            "{error}"
        );
    }
}
