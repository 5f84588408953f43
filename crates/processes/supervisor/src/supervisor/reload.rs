//! Manifests that have changed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ring3_control::admin::Reply;
use ring3_control::status::State;

use super::Supervisor;
use crate::keeper::{Answer, Handle};
use crate::manifest::{self, ManifestEntry};

/// How long a reload is waited for at most: drivers may take long to stop.
const RELOAD: Duration = Duration::from_secs(10);

/// A reload that has begun.
pub(super) struct Reloading {
    pub(super) answer: Answer,
    /// Devices that are in no manifest any more and may end.
    pub(super) waits: BTreeSet<String>,
    /// What is said of those that do not.
    pub(super) goes_on: Vec<String>,
    until: Instant,
}

impl Supervisor {
    /// Starts what the manifests have now and had not, and ends what they had and have not. What
    /// has changed is ended and follows itself, unless somebody may use it.
    pub(super) fn reload(&mut self, answer: Answer) {
        self.reap();
        if self.reloading.is_some() {
            return answer(Reply::Refused("another reload is being done; try again".into()));
        }
        match self.begin_reload() {
            Ok(going) => {
                self.reloading = Some(Reloading {
                    answer,
                    waits: going,
                    goes_on: Vec::new(),
                    until: Instant::now() + RELOAD,
                })
            }
            Err(why) => answer(Reply::Refused(why)),
        }
        self.end_reload();
    }

    /// The names of what ends, as no manifest has it any more.
    fn begin_reload(&mut self) -> Result<BTreeSet<String>, String> {
        let all = manifest::read(&self.config)
            .map_err(|error| format!("{error}; everything goes on as it was"))?;
        let superfluous = |(_, wanted): &&(Handle, ManifestEntry)| !all.contains(wanted);
        let going: Vec<_> = self
            .keepers
            .iter()
            .filter(superfluous)
            .map(|(keeper, _)| keeper.name.clone())
            .collect();
        let is_used = |wanted: &&ManifestEntry| {
            let changed = |old: &ManifestEntry| {
                old.device().is_some() && old.name() == wanted.name() && old != *wanted
            };
            self.keepers.iter().any(|(keeper, old)| changed(old) && !is_free(keeper))
        };
        if let Some(name) = all.iter().find(is_used).map(ManifestEntry::name) {
            return Err(format!(
                "{name} has changed, and is driven as it was: ring3 stop {name}, and reload then; \
                everything goes on as it was"
            ));
        }
        let all_named: BTreeSet<String> =
            all.iter().map(|wanted| wanted.name().to_owned()).collect();
        going.iter().for_each(|name| self.end_one(name, false));
        self.coming = all
            .into_iter()
            .filter(|wanted| self.keepers.iter().all(|(_, old)| old != wanted))
            .collect();
        match self.follow() {
            None => Ok(going.into_iter().filter(|name| !all_named.contains(name)).collect()),
            Some(why) => Err(why),
        }
    }

    /// Says what has come of a reload, once that is known.
    pub(super) fn end_reload(&mut self) {
        let is_over =
            |reload: &mut Reloading| reload.waits.is_empty() || reload.until <= Instant::now();
        let Some(Reloading { answer, waits, mut goes_on, .. }) = self.reloading.take_if(is_over)
        else {
            return;
        };
        goes_on.extend(waits.iter().map(|name| {
            format!("{name} is in no manifest any more, and its driver is still being stopped")
        }));
        answer(if goes_on.is_empty() { Reply::Done } else { Reply::Text(goes_on.join("\n")) });
    }
}

/// Whether nobody can use a device's disks.
fn is_free(keeper: &Handle) -> bool {
    matches!(keeper.shared.now().state, State::Stopped | State::Failed | State::Absent)
}
