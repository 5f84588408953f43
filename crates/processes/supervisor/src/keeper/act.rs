//! What the policy wants, done.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring3_control::admin::Reply;
use ring3_control::drive::{DriverCommand, Offered, Prepare, VERSION};
use ring3_device::{Error, probes};
use ring3_process::log::plain;
use ring3_sandbox::{Limits, Program};

use super::device::ClaimedDevice;
use super::{Keeper, KeeperCommand, sleep};
use crate::export::{Done, Job, Refusal, ServeRequest};
use crate::health::{HealthTimeouts, Watch};
use crate::manifest;
use crate::policy::{Action, Event, MissedDeadline, Start, Verdict};
use crate::process::{Process, QUEUES};

/// How long a driver that was killed may take to end, if anybody waits for that.
const EXIT: Duration = Duration::from_secs(5);

/// Whether the keeper stands still while it does `action`.
pub fn waits(action: Action) -> bool {
    matches!(action, Action::Fence | Action::Claim | Action::Release | Action::Spawn { .. })
}

/// For how long a driver's threads may stand still.
pub fn patience(restart: &manifest::Restart) -> HealthTimeouts {
    let ms = std::time::Duration::from_millis;
    HealthTimeouts { beat: ms(restart.heartbeat_ms), recovery: ms(restart.recovery_ms) }
}

impl Keeper {
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Claim => self.claim(),
            Action::Release => {
                self.setup.taken.set(&self.setup.device.name, None);
                // Whoever keeps its descriptors keeps the device.
                self.survival.forget();
                self.held = None;
                self.note("the device is gone; it is waited for");
            }
            Action::Spawn { upgraded } => self.spawn(upgraded),
            Action::KillStandby => self.standby.iter().for_each(Process::kill),
            Action::Kill => self.driver.iter().for_each(Process::kill),
            Action::Fence => self.fence(),
            Action::Drive(start) => self.drive(start),
            Action::Create => {
                self.shown = self.facts.disks.clone();
                self.exporter.order(Job::Create(self.facts.clone()));
            }
            Action::Recover => self.exporter.order(Job::Recover),
            Action::Serve => {
                match self.check_same() {
                    Ok(new) => new.iter().for_each(|what| self.relay(what)),
                    Err(why) => return self.report_misbehaviour(&why),
                }
                self.exporter.vain.dead.store(false, Ordering::Release);
                self.exporter.order(Job::Serve(self.facts.clone()));
            }
            Action::Start => self.exporter.order(Job::Start),
            Action::StopExport { force } => {
                if self.machine.is_gone() {
                    self.stop_gone();
                }
                self.exporter.order(Job::Stop { force });
            }
            Action::HandOver => {
                self.record.begin(super::outage::UPGRADE);
                match self.setup.device.export.share {
                    // What the kernel does for clients waits for the driver, which would do nothing
                    // more.
                    Some(_) => self.exporter.order(Job::HoldClients),
                    None => self.order_hand_over(),
                }
            }
            Action::StopDriver => self.order_driver(&DriverCommand::Stop),
            Action::Rest => self.begin_suspend(),
            Action::CommitUpgrade => {
                if let Some(program) = self.candidate.take() {
                    self.setup.program = program;
                }
                self.news.1 += 1;
                self.note("the new program drives");
            }
            Action::Answer(verdict) => self.reply(verdict),
            Action::MissedDeadline(late) => {
                let (who, process) = if matches!(late, MissedDeadline::Standby(_)) {
                    ("standby", &self.standby)
                } else {
                    ("driver", &self.driver)
                };
                let late = format!("{who} {} {late}", process.as_ref().map_or(0, Process::pid));
                self.note_reason(&late);
            }
        }
    }

    fn claim(&mut self) {
        match ClaimedDevice::claim(&self.setup.device, &self.setup.taken) {
            Ok(held) => {
                self.note(&format!("{} is claimed, for driver {}", held.name(), held.driver()));
                self.survival.watch(held.claim_of());
                self.held = Some(held);
                self.queue.push_back(Event::Claimed);
            }
            Err(why) => {
                if self.reason != why {
                    self.note(&why);
                }
                self.shared.set_reason(&why);
                self.reason = why;
                self.queue.push_back(Event::Missing);
            }
        }
    }

    fn spawn(&mut self, upgraded: bool) {
        let program =
            self.candidate.as_ref().filter(|_| upgraded).unwrap_or(&self.setup.program).clone();
        let device = &self.setup.device;
        let family = self.held.as_ref().map(|held| held.family().to_owned());
        let family = family.or_else(|| device.driver.clone());
        let host_memory = device.host_memory(family.as_deref());
        let prepare = Prepare {
            version: VERSION,
            name: device.name.clone(),
            family,
            part: device.part,
            interrupts: device.interrupts.clone(),
            throttle: device.throttle.map(|throttle| throttle.to_string()),
            quirks: device.quirks.clone(),
            host_memory: device.hmb_mib.map(|mib| u64::from(mib) << 20),
            power_latency_ms: device.power_latency_ms,
            queues: device.export.queues.min(crate::processors()),
            depth: device.export.depth,
            max_bytes: device.max_bytes(),
            poll_us: device.export.poll_us,
            user: device.user.map(|user| user.user),
            group: device.user.map(|user| user.group),
            unconfined: self.setup.unconfined,
            adoptable: device.restart.adopt,
            engine: Some(device.engine().name().into()),
            shared: device.export.kind.is_shared(),
            beside: device.export.beside,
            batch: device.export.batch,
            lent: device.export.share.is_some(),
        };
        let limits = Limits {
            name: device.name.clone(),
            // Its own, and that of clients.
            memory: (device.limits.memory_mib << 20)
                .saturating_add(device.lent_bytes())
                .saturating_add(host_memory),
            cpu_percent: device.limits.cpu_percent,
            cpu_weight: device.cpu_weight(),
            pids: device.limits.pids,
        };
        match Process::start(&program, &self.setup.argv, &prepare, &limits, self.queues()) {
            Ok(process) => {
                probes::restart(&device.name, process.pid());
                let warning = self
                    .held
                    .as_ref()
                    .and_then(ClaimedDevice::isolation_warning)
                    .map(str::to_owned);
                let unlimited: Vec<_> =
                    process.unlimited().iter().cloned().chain(warning).collect();
                unlimited.iter().for_each(|what| self.note_once(what));
                self.shared.status().unlimited = unlimited;
                self.standby = Some(process);
            }
            Err(error) => {
                let why = format!("no driver process could be started: {error}");
                self.note_reason(&why);
                self.queue.push_back(Event::StandbyEnded);
            }
        }
    }

    /// Threads of all disks, or as many as there may be while nobody has counted those. A card has
    /// one more than queues.
    pub(super) fn queues(&self) -> u16 {
        let Offered { disks, nics } = &self.facts;
        match (u16::try_from(disks.len()).unwrap_or(u16::MAX), nics.len()) {
            (0, 0) => QUEUES,
            (0, _) => self.setup.device.export.queues.saturating_add(1).min(QUEUES),
            (disks, _) => {
                let export = &self.setup.device.export;
                let beside = u16::from(export.beside);
                export.queues.saturating_mul(disks).saturating_add(beside).min(QUEUES)
            }
        }
    }

    fn fence(&mut self) {
        let Some(held) = &self.held else { return self.queue.push_back(Event::FenceFailed) };
        let event = match held.fence() {
            Ok(fenced) => {
                self.exporter.close_retained();
                self.record.fenced(fenced.reset);
                Event::Fenced
            }
            Err(_) if held.is_gone() => Event::Gone,
            Err(error) => {
                self.note(&format!(
                    "its device cannot be fenced, and is not driven any more: {error}; ring3 \
                    restart tries it again"
                ));
                Event::FenceFailed
            }
        };
        self.queue.push_back(event);
    }

    /// A device that is wanted back gets no fence later: what a dead driver has begun in clients'
    /// memory ends now.
    fn stop_gone(&mut self) {
        let Some(held) = self.held.as_ref().filter(|_| self.setup.device.export.share.is_some())
        else {
            return;
        };
        match held.fence() {
            Err(error) if !held.is_gone() => self
                .note(&format!("requests in clients' memory wait until it is given up: {error}")),
            _ => self.exporter.close_retained(),
        }
    }

    /// Makes the standby the driver.
    fn drive(&mut self, start: Start) {
        let runs = start != Start::Fenced;
        let lease = self
            .held
            .as_ref()
            .ok_or_else(|| "it is not claimed".to_owned())
            .and_then(|held| self.lease(held, runs).map_err(|error| error.to_string()));
        (self.driver, self.given) = (self.standby.take(), false);
        let (left, recorded) = (self.saved.take(), self.adoptable.take());
        let saved = match start {
            Start::Fenced => None,
            Start::HandedOver => left,
            Start::Adopted => recorded,
        };
        self.adopting = start == Start::Adopted;
        let Some(driver) = &self.driver else { return };
        let ordered = lease.and_then(|lease| {
            let fds: Vec<_> =
                [Some(&lease), saved.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect();
            driver
                .order(
                    &DriverCommand::Drive {
                        resume: start == Start::HandedOver,
                        adopt: start == Start::Adopted,
                    },
                    &fds,
                )
                .map_err(|error| error.to_string())
        });
        self.watch = Some(Watch::new(patience(&self.setup.device.restart), Instant::now()));
        if let Err(why) = ordered {
            self.report_misbehaviour(&format!(
                "driver {} could not be given its device: {why}",
                driver.pid()
            ));
        }
    }

    /// One who says that he has left, and keeps his lease, gives it back with his end at the
    /// latest.
    fn lease(&self, held: &ClaimedDevice, runs: bool) -> Result<OwnedFd, Error> {
        match held.lease(runs) {
            Err(Error::Busy(_))
                if runs && self.dismissed.iter().all(|driver| driver.wait(EXIT)) =>
            {
                held.lease(runs)
            }
            lease => lease,
        }
    }

    pub(super) fn order_driver(&mut self, order: &DriverCommand) {
        self.order_driver_with(order, &[]);
    }

    fn order_driver_with(&mut self, order: &DriverCommand, fds: &[OwnedFd]) {
        let Some(driver) = &self.driver else { return };
        if let Err(error) = driver.order(order, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()) {
            self.report_misbehaviour(&format!("driver {} takes no orders: {error}", driver.pid()));
        }
    }

    fn order_hand_over(&mut self) {
        self.order_driver(&DriverCommand::Leave);
    }

    /// Reports a driver that breaks the protocol or does not respond: the reason goes to the log,
    /// and the policy ends the driver.
    pub(super) fn report_misbehaviour(&mut self, why: &str) {
        self.note_reason(why);
        self.end_unhealthy(why);
    }

    /// The driver reports that it cannot go on, for a reason that needs no number of a process.
    pub(super) fn report_own_failure(&mut self, pid: u32, why: &str) {
        let text = format!("driver {pid} cannot go on: {why}");
        self.shared.set_reason(why);
        self.note(&text);
        self.end_unhealthy(&text);
    }

    fn end_unhealthy(&mut self, why: &str) {
        if self.machine.is_running() {
            self.record.begin(&plain(why));
        }
        self.queue.push_back(Event::Unhealthy);
    }

    pub(super) fn take_exported(&mut self) {
        while let Some(done) = self.exporter.next() {
            let event = match done {
                Done::Prepared(Ok(())) => {
                    self.record.exported();
                    Event::Prepared
                }
                Done::Served(Ok(disks)) => {
                    self.give(disks);
                    continue;
                }
                Done::Started(Ok(look)) => {
                    self.shared.publish(Some(look));
                    Event::Started
                }
                Done::Order(order, fds) => {
                    // Who is not there yet is told with what it is given.
                    if self.given {
                        self.order_driver_with(&order, &fds);
                    }
                    continue;
                }
                Done::Keep => {
                    self.persist();
                    continue;
                }
                Done::Held => {
                    if self.machine.is_leaving() {
                        self.order_hand_over();
                    } else if self.machine.is_stopping() {
                        self.suspend();
                    }
                    continue;
                }
                Done::Stopped(Ok(())) => {
                    self.shared.publish(None);
                    Event::ExportStopped
                }
                Done::Stopped(Err(Refusal::Busy(why))) => {
                    self.shared.set_users(&why);
                    self.reason = why;
                    Event::ExportBusy
                }
                Done::Stopped(Err(Refusal::Failed(why))) => {
                    self.note_reason(&format!(
                        "its {} were not stopped as they should be: {why}",
                        self.setup.device.export.kind.what()
                    ));
                    self.shared.publish(None);
                    Event::ExportStopped
                }
                Done::Prepared(Err(Refusal::Busy(why))) => {
                    self.cannot_export(&why);
                    self.reason = why;
                    Event::ExportRefused
                }
                Done::Prepared(Err(Refusal::Failed(why)))
                | Done::Served(Err(why))
                | Done::Started(Err(why)) => {
                    self.cannot_export(&why);
                    Event::ExportFailed
                }
            };
            self.queue.push_back(event);
            self.settle();
        }
    }

    fn cannot_export(&self, why: &str) {
        self.shared.set_reason(why);
        self.note(&format!(
            "its {} could not be given to users: {why}",
            self.setup.device.export.kind.what()
        ));
    }

    /// Gives the driver what it serves by, and keeps nothing of it.
    fn give(&mut self, given: Vec<ServeRequest>) {
        let Some(driver) = &self.driver else { return };
        self.awaited = given.iter().map(|given| given.place).collect();
        self.given = true;
        let given = given.into_iter().try_for_each(|ServeRequest { order, fds, .. }| {
            driver.order(&order, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        });
        if let Err(error) = given {
            self.report_misbehaviour(&format!("driver {} takes no orders: {error}", driver.pid()));
        }
    }

    pub(super) fn take_asks(&mut self) {
        for ask in self.asked.take() {
            let (event, answer) = match ask {
                KeeperCommand::Rescan => {
                    match &self.held {
                        Some(held) if held.is_gone() => self.queue.push_back(Event::Gone),
                        Some(_) => {}
                        None => self.machine.look_again(),
                    }
                    continue;
                }
                KeeperCommand::Leave => {
                    self.held.iter().for_each(|held| held.claim_of().detach_holder());
                    (self.left, self.ending) = (true, true);
                    return;
                }
                KeeperCommand::ForceStop => {
                    self.happen(Event::Stop { force: true });
                    continue;
                }
                KeeperCommand::Sleep { sleep, answer } => {
                    self.fall_asleep(sleep, answer);
                    continue;
                }
                KeeperCommand::Wake => {
                    self.wake_up();
                    continue;
                }
                KeeperCommand::Restart(answer) | KeeperCommand::Upgrade { answer, .. }
                    if self.machine.is_asleep() =>
                {
                    answer(Reply::Refused(sleep::refusal(&self.setup.device.name)));
                    continue;
                }
                KeeperCommand::Restart(answer) => (Event::Restart, answer),
                KeeperCommand::Stop { force, answer } => (Event::Stop { force }, answer),
                KeeperCommand::End { force, answer } => {
                    let raised = self.shared.clone();
                    let end: super::Answer = Box::new(move |reply| {
                        raised.end(reply == Reply::Done);
                        answer(reply);
                    });
                    (Event::Stop { force }, end)
                }
                KeeperCommand::Upgrade { program, answer } => {
                    let path = program.unwrap_or_else(|| self.setup.program.path().to_owned());
                    match Program::open(&path) {
                        Ok(_) if self.machine.is_asked() => {}
                        Ok(program) => self.candidate = Some(Arc::new(program)),
                        Err(error) => {
                            answer(Reply::Refused(format!(
                                "{}: {error}; name the new program with --program",
                                path.display()
                            )));
                            continue;
                        }
                    }
                    (Event::Upgrade, answer)
                }
            };
            if self.machine.is_asked() && !self.machine.overrules(event) {
                answer(Reply::Refused(format!(
                    "{}: another request is being done; try again",
                    self.setup.device.name
                )));
                continue;
            }
            if let Some(overruled) = self.answer.take() {
                overruled(Reply::Refused(format!(
                    "{}: somebody has it stopped instead",
                    self.setup.device.name
                )));
            }
            self.upgrading = event == Event::Upgrade;
            self.reason.clear();
            self.answer = Some(answer);
            self.queue.push_back(event);
            self.settle();
        }
    }

    fn reply(&mut self, verdict: Verdict) {
        let name = self.setup.device.name.clone();
        let reason =
            if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        let upgraded = std::mem::take(&mut self.upgrading);
        let reply = match verdict {
            Verdict::Done if upgraded => Reply::Upgraded { stall_ms: self.record.last_ms() },
            Verdict::Done => Reply::Done,
            Verdict::Busy => Reply::Refused(format!(
                "{name} is in use{reason}; --force takes it away from its users"
            )),
            Verdict::Absent => Reply::Refused(format!("{name} is not there{reason}")),
            Verdict::NotRunning => Reply::Refused(format!(
                "{name} is not running, so that nothing can be handed over: ring3 status {name}"
            )),
            Verdict::WentBack => Reply::Refused(format!(
                "the new program did not become healthy, and the old one drives {name} on: ring3 \
                logs {name} says why"
            )),
            Verdict::KernelTimeout => Reply::Refused(format!(
                "{name}: the kernel does not end what it was asked about its {}: who uses them \
                waits until the machine is restarted; ring3 logs {name} says what it was",
                self.setup.device.export.kind.what()
            )),
            Verdict::Failed => {
                Reply::Refused(format!("{name} was given up{reason}: ring3 logs {name} says why"))
            }
        };
        if let Some(answer) = self.answer.take() {
            answer(reply);
        }
        self.ending |= self.shared.is_ended();
    }
}
