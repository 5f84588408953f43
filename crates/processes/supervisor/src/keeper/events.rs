//! What drivers say, and how they end.

use std::time::{Instant, SystemTime};

use ring3_class::net::Link;
use ring3_control::drive::{DriverMessage, Offered};
use ring3_control::status::State;
use ring3_process::log::plain;
use ring3_stats::{Entry, Segment};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::{Keeper, MESSAGES};
use crate::export::Job;
use crate::journal::seconds;
use crate::manifest::Match;
use crate::policy::Event;
use crate::process::{Process, QUEUES};
use crate::rcu::Expedited;

/// Most reasons why a namespace or a drive is not used.
const MAX_REFUSED: usize = 128;
/// Operations of each queue that are told after a crash.
const TOLD: usize = 12;
/// Outages that are remembered.
const OUTAGES: usize = 5;

impl Keeper {
    pub(super) fn handle_standby_event(&mut self) {
        let Some(standby) = &mut self.standby else { return };
        let (pid, report) = (standby.pid(), standby.report());
        match report {
            Ok(Some((DriverMessage::Standby, fds)))
                if fds.is_empty() && !self.machine.has_standby() =>
            {
                standby.keep_mounts();
                self.queue.push_back(Event::Ready)
            }
            Ok(Some((DriverMessage::Failed { error, .. }, _))) => {
                self.note(&format!("standby {pid} says that it cannot go on: {error}"));
                self.queue.push_back(Event::StandbyLied);
            }
            // Its end follows, or it is as good as ended.
            Ok(None) => {}
            Ok(Some((report, fds))) => {
                self.note(&format!(
                    "standby {pid} breaks the protocol, and is ended: {}",
                    word(&report, fds.len())
                ));
                self.queue.push_back(Event::StandbyLied);
            }
            Err(error) => {
                self.note(&format!("standby {pid} breaks the protocol, and is ended: {error}"));
                self.queue.push_back(Event::StandbyLied);
            }
        }
    }

    pub(super) fn handle_driver_event(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        let pid = driver.pid();
        self.messages += 1;
        if self.messages > MESSAGES {
            return self.report_misbehaviour(&format!(
                "driver {pid} breaks the protocol, and is ended: more than {MESSAGES} messages in \
                 a second"
            ));
        }
        match driver.report() {
            Ok(Some((report, fds))) => self.judge(pid, report, fds),
            // Its end follows, or is brought about.
            Ok(None) => {}
            Err(error) => self.report_misbehaviour(&format!(
                "driver {pid} breaks the protocol, and is ended: {error}"
            )),
        }
    }

    fn judge(&mut self, pid: u32, report: DriverMessage, fds: Vec<OwnedFd>) {
        if !self.fits(&report, fds.len()) {
            // Of one that is being ended anything may still come.
            return match self.machine.is_dying() {
                true => {}
                false => self.report_misbehaviour(&format!(
                    "driver {pid} breaks the protocol, and is ended: {}",
                    word(&report, fds.len())
                )),
            };
        }
        let event = match report {
            DriverMessage::Offers { disks, nics, refused, adopted } => {
                refused
                    .iter()
                    .take(MAX_REFUSED)
                    .for_each(|why| self.relay(&format!("not used: {why}")));
                let offered = Offered { disks, nics };
                if let Err(why) = self.check(&offered) {
                    return self.report_misbehaviour(&format!("driver {pid}: {why}"));
                }
                self.facts = offered;
                // Only who was told to adopt can have done it.
                let told = std::mem::take(&mut self.adopting);
                self.record.driven(told && adopted);
                match (told, adopted) {
                    (false, _) => {}
                    (true, true) => self
                        .note(&format!("driver {pid} has adopted the device: it was not stopped")),
                    (true, false) => {
                        self.note(&format!(
                            "driver {pid} could not adopt the device, and has stopped and started \
                             it"
                        ));
                    }
                }
                Event::Offers
            }
            DriverMessage::Serving { disk } => {
                self.awaited.remove(&disk);
                if !self.awaited.is_empty() {
                    return;
                }
                Event::Serving
            }
            DriverMessage::Heard { number, refused } => {
                return self.exporter.order(Job::Heard { number, refused });
            }
            DriverMessage::Shared { mapped, addresses } => {
                return self.exporter.order(Job::Shared { mapped, addresses });
            }
            DriverMessage::Link { nic, up, speed, full_duplex } => {
                let word = if up { "up" } else { "down" };
                self.relay(&format!("the card's link is {word}"));
                return self
                    .exporter
                    .order(Job::Link { nic, link: Link { up, speed, full_duplex } });
            }
            DriverMessage::Adoptable => return self.adoptable = fds.into_iter().next(),
            DriverMessage::Event { text } => {
                return self.relay(&format!("the device reports: {text}"));
            }
            DriverMessage::Left => {
                self.saved = fds.into_iter().next();
                self.exporter.close_retained();
                self.release_driver();
                Event::HandedOver
            }
            DriverMessage::Stopped => {
                self.stopped = true;
                return self.relay(&format!("driver {pid} has stopped the device"));
            }
            DriverMessage::Failed { error, gone } => {
                self.report_own_failure(pid, &error);
                if gone && self.held.as_ref().is_some_and(super::device::ClaimedDevice::is_gone) {
                    self.queue.push_back(Event::Gone);
                }
                return;
            }
            DriverMessage::Standby => return,
        };
        self.queue.push_back(event);
    }

    /// Whether the driver was asked for that, with so many descriptors beside it.
    fn fits(&self, report: &DriverMessage, fds: usize) -> bool {
        match report {
            DriverMessage::Left => self.machine.is_leaving() && fds == 1,
            // Once, when it serves.
            DriverMessage::Adoptable => {
                fds == 1
                    && self.setup.device.restart.adopt
                    && self.awaited.is_empty()
                    && self.adoptable.is_none()
            }
            _ if fds > 0 => false,
            DriverMessage::Offers { .. } => self.machine.is_opening(),
            DriverMessage::Serving { disk } => self.awaited.contains(disk),
            DriverMessage::Heard { .. } => self.given && self.setup.device.export.share.is_some(),
            // Once it has what to share, and before it serves.
            DriverMessage::Shared { .. } => {
                let export = &self.setup.device.export;
                (export.kind.is_shared() || export.beside) && !self.awaited.is_empty()
            }
            // Not before it serves the card.
            DriverMessage::Link { nic, .. } => {
                self.given && usize::from(*nic) < self.facts.nics.len() && self.awaited.is_empty()
            }
            DriverMessage::Stopped => self.machine.is_stopping(),
            DriverMessage::Event { .. } | DriverMessage::Failed { .. } => true,
            DriverMessage::Standby => false,
        }
    }

    /// Whether these disks or cards can be given to users.
    fn check(&self, Offered { disks, nics }: &Offered) -> Result<(), String> {
        if self.setup.device.export.kind.is_card() {
            return match nics.len() {
                1 => Ok(()),
                count => Err(format!("it offers {count} network cards, and one is wanted")),
            };
        }
        if disks.is_empty() {
            return Err("it offers no disk that can be used".into());
        }
        // Each takes a number of the kernel's, and a name, which other devices need, too.
        let most = usize::from(self.setup.device.limits.disks);
        if disks.len() > most {
            return Err(format!(
                "it offers {} disks, and limits.disks allows {most}: raise that if the device has \
                so many",
                disks.len()
            ));
        }
        if let Some(part) = self.setup.device.part.filter(|_| disks.len() > 1) {
            return Err(format!(
                "it offers {} disks, and part = {part} is wanted alone",
                disks.len()
            ));
        }
        match &self.setup.device.r#match {
            Match::Serial(serial)
                if !disks.iter().any(|disk| disk.serial.trim() == serial.trim()) =>
            {
                let found: Vec<_> = disks.iter().map(|disk| disk.serial.trim()).collect();
                Err(format!("its disks have the serial numbers {found:?}, and {serial} is wanted"))
            }
            _ => Ok(()),
        }
    }

    /// Fails unless the disks are those that users have. Says which others the device has behind
    /// those by now.
    pub(super) fn check_same(&self) -> Result<Vec<String>, String> {
        let now = &self.facts.disks;
        for (place, before) in self.shown.iter().enumerate() {
            match now.get(place) {
                Some(disk) if disk.is(before) => {}
                Some(disk) => {
                    let (name, is, was) = (&disk.name, &disk.identity, &before.identity);
                    return Err(format!(
                        "{name} is another disk than its users have: it is {is:?}, and was {was:?}"
                    ));
                }
                None => {
                    return Err(format!(
                        "{} is gone: the device has {} disks now",
                        before.name,
                        now.len()
                    ));
                }
            }
        }
        let (device, had) = (&self.setup.device.name, self.shown.len());
        let new = now.iter().skip(had).filter(|_| had > 0);
        let next = format!("ring3 stop {device} and ring3 restart {device} have it shown, too");
        Ok(new.map(|disk| format!("{} is new: {next}", disk.name)).collect())
    }

    pub(super) fn end_driver(&mut self) {
        let Some(driver) = &self.driver else { return };
        let killed = driver.was_killed();
        let Some(how) = driver.ended() else { return };
        // First, so that nothing waits for it.
        self.exporter.vain.dead.store(true, Ordering::Release);
        let stopped = !self.machine.is_wanted() || self.machine.is_asleep();
        let how = format!("driver {} {how}", driver.pid());
        if self.machine.is_stopping() && !self.stopped {
            let why =
                format!("{how} before it had stopped the device: what was not flushed may be lost");
            self.shared.set_reason(&why);
        }
        if self.machine.is_running() || self.machine.io_deadline().is_some() {
            self.record.begin(&how);
        }
        let ended = self.driver.take();
        (self.watch, self.awaited, self.given) = (None, Default::default(), false);
        self.stopped = false;
        self.news.0 += u64::from(!stopped);
        self.happen(if killed && self.adoptable.is_some() { Event::Killed } else { Event::Ended });
        // What is told takes time, in which the next one starts.
        let Some(mut ended) = ended else { return };
        self.last_words(&mut ended);
        self.shared.status().last_end = Some(how.clone());
        self.note(&how);
        if !stopped {
            self.tell_flight(&ended.stats);
        }
        // What is kept of it goes when nobody waits.
        self.dismissed.push(ended);
    }

    /// Kills a driver that has handed its device over. The kernel frees the process's memory in the
    /// background: users do not wait for that.
    fn release_driver(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        driver.kill();
        self.note(&format!(
            "driver {} has left the device to the next one, and is ended",
            driver.pid()
        ));
        self.exporter.vain.dead.store(true, Ordering::Release);
        (self.watch, self.awaited, self.given) = (None, Default::default(), false);
        self.dismissed.push(driver);
    }

    /// Forgets those of the dismissed that have ended, and their last words are in the journal.
    pub(super) fn reap(&mut self) {
        let is_over = |driver: &Process| driver.ended().is_some();
        let (ended, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.dismissed).into_iter().partition(is_over);
        self.dismissed = left;
        ended.into_iter().for_each(|mut driver| self.last_words(&mut driver));
    }

    pub(super) fn end_standby(&mut self) {
        let Some(standby) = &self.standby else { return };
        let Some(how) = standby.ended() else { return };
        let how = format!("standby {} {how}", standby.pid());
        if let Some(mut ended) = self.standby.take() {
            self.last_words(&mut ended);
        }
        self.note(&how);
        self.happen(Event::StandbyEnded);
    }

    fn last_words(&self, process: &mut Process) {
        let mut buffer = [0; 4096];
        // As much as a pipe holds.
        for _ in 0..16 {
            match process.read(&mut buffer) {
                0 => break,
                read => self.shared.journal().written(process.pid(), &buffer[..read]),
            }
        }
        self.shared.journal().ended(process.pid());
    }

    /// The flight recorder, for who looks for the reason.
    fn tell_flight(&mut self, stats: &Segment) {
        for queue in 0..QUEUES {
            let entries = stats.recorded(queue);
            if entries.is_empty() {
                continue;
            }
            let counters = stats.counters(Some(queue));
            let (submitted, completed) = (counters.submitted, counters.completed);
            self.relay(&format!(
                "queue {queue}: {:?}, {submitted} requests came, {completed} ended; the last \
                operations:",
                counters.phase
            ));
            for entry in &entries[entries.len().saturating_sub(TOLD)..] {
                self.relay(&match entry {
                    Entry::Started { number, tag, operation, lba, blocks } => {
                        format!("  {number}: tag {tag} {operation:?} block {lba} + {blocks}")
                    }
                    Entry::Ended { number, tag, errno: 0 } => {
                        format!("  {number}: tag {tag} ended")
                    }
                    Entry::Ended { number, tag, errno } => {
                        format!("  {number}: tag {tag} ended with errno {errno}")
                    }
                });
            }
        }
    }

    /// Shows others where the device is.
    pub(super) fn show(&mut self) {
        let state = self.machine.state();
        let is_running = self.machine.is_running();
        let without_users = matches!(state, State::Failed | State::Stopped | State::Absent);
        let outage = if is_running || without_users { self.record.end(is_running) } else { None };
        if without_users {
            self.expedited = None;
        } else if is_running && self.setup.device.restart.expedited_rcu && self.expedited.is_none()
        {
            self.expedited = Expedited::hold();
        }
        let (mut told, mut turned) = (None, None);
        {
            let mut status = self.shared.status();
            let (died, replaced) = std::mem::take(&mut self.news);
            status.restarts += died;
            status.upgrades += replaced;
            if let Some(outage) = outage {
                told = Some(match outage.total_ms {
                    Some(ms) => {
                        let fence = if outage.adopted {
                            "adopted".into()
                        } else {
                            format!("fence {:.1}", outage.fence_ms)
                        };
                        format!(
                            "users waited {ms:.1} ms ({fence}, driver {:.1}, kernel {:.1})",
                            outage.driver_ms, outage.export_ms
                        )
                    }
                    None => "users have got errors".into(),
                });
                status.outages.insert(0, outage);
                status.outages.truncate(OUTAGES);
            }
            if status.state != state {
                (status.state, status.since) = (state, seconds(SystemTime::now()));
                turned = Some(state);
            }
            status.device =
                self.held.as_ref().map(|held| held.name().to_owned()).unwrap_or_default();
            if let Some(held) = &self.held {
                status.driver = held.driver().to_owned();
            }
            status.pid = self.driver.as_ref().map_or(0, Process::pid);
            status.standby = self
                .standby
                .as_ref()
                .filter(|_| self.machine.has_standby())
                .map_or(0, Process::pid);
        }
        self.shared.watch(self.driver.as_ref().map(|driver| driver.stats.clone()));
        if let Some(state) = turned {
            let word = word_of(state);
            tracing::info!(device = %self.setup.device.name, state = word, "{word}");
            self.shared.journal().note(&word);
        }
        told.into_iter().for_each(|line| self.note(&line));
        self.persist();
    }

    /// Says it in the log and in the device's own. It may hold a driver's words.
    /// Logs why the device does not go on as it should, and keeps it for whoever
    /// [asks](PublishedState::take_reason).
    pub(super) fn note_reason(&self, why: &str) {
        self.shared.set_reason(why);
        self.note(why);
    }

    pub(super) fn note(&self, text: &str) {
        tracing::info!(device = %self.setup.device.name, "{}", plain(text));
        self.shared.journal().note(text);
    }

    /// The same of what the driver brings about as often as it likes: the device's own log has it
    /// all, as far as that goes back.
    pub(super) fn relay(&mut self, text: &str) {
        let Some(left_out) = self.lines.take(Instant::now()) else {
            return self.shared.journal().note(text);
        };
        if left_out > 0 {
            tracing::info!(
                device = %self.setup.device.name,
                "{left_out} lines of its driver's are in ring3 logs alone",
            );
        }
        self.note(text);
    }

    /// The same is not said with each process.
    pub(super) fn note_once(&self, text: &str) {
        if !self.shared.journal().has(text) {
            self.note(text);
        }
    }
}

/// As `--json` has it.
pub(crate) fn word_of(state: State) -> String {
    serde_json::to_value(state)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn word(report: &DriverMessage, fds: usize) -> String {
    let text = format!("{report:?}");
    let beside = if fds > 0 { format!(", with {fds} descriptors") } else { String::new() };
    format!("it says {} now{beside}", text.split([' ', '{', '(']).next().unwrap_or_default())
}
