//! What the user wants otherwise than a table has it: `NAME` sets a flag, `no-NAME` clears it.

use crate::{Class, Quirks, Table};

/// The user's words, in their order: the last one for a flag counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Overrides(pub Vec<String>);

impl Overrides {
    /// Whether the user wants nothing otherwise.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if a word is no flag of `table` that its driver looks at; says which there are.
    pub fn check(&self, table: &Table) -> Result<(), String> {
        self.0.iter().try_for_each(|word| resolve(word, table).map(drop))
    }

    /// Changes `quirks` as the user wants it.
    pub(crate) fn apply(&self, table: &Table, quirks: &mut Quirks) -> Result<(), String> {
        for word in &self.0 {
            match resolve(word, table)? {
                (name, true) => quirks.0.insert(name.to_owned()),
                (name, false) => quirks.0.remove(name),
            };
        }
        Ok(())
    }
}

/// The flag that `word` names, and whether it is set.
fn resolve<'w>(word: &'w str, table: &Table) -> Result<(&'w str, bool), String> {
    let (name, set) = word.strip_prefix("no-").map_or((word, true), |name| (name, false));
    if table.flags.get(name).is_some_and(|flag| flag.class != Class::Unconcerned) {
        return Ok((name, set));
    }
    let names: Vec<_> = table.names().collect();
    Err(format!(
        "{word:?} is no quirk: there are {}, and each with no- before it",
        names.join(", ")
    ))
}
