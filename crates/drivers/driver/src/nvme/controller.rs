//! The controller, as the owner of the function holds it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use ring3_class::block::Disk;
use ring3_device::found::Found;
use ring3_device::irq::Irq;
use ring3_device::{Device, Error, Registers};
use ring3_quirks::{Quirks, Strings};
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::feature::{self, AsyncEvents, QueueCounts};
use ring3_spec::nvme::identify::{self, NvmLimits, cns};
use ring3_spec::nvme::registers::{Cap, VS, doorbells_end};
use ring3_spec::nvme::{Submission, log};
use ring3_spec::text::Printable;

use super::DRIVER;
use super::admin::Admin;
use super::event::Event;
use super::host_memory::{HostMemory, Lent};
use super::identity::{ControllerFeatures, Identity};
use super::init;
use super::interrupts::Vectors;
use super::namespace::{Namespace, Unit};
use super::options::Options;
use super::quirks::{self, BROKEN_APST, LIMITED_IDENTIFY, SINGLE_COMMAND};
use super::reset::Members;
use super::revalidate::power_count;
use crate::disk::write_cache::{PowerCount, WriteCache};
use crate::disk::{Controller as _, Losses};
use crate::lifetime::{ControllerState, lock};

/// An NVMe controller that takes commands.
///
/// Dropping the last of a controller and its disks and queues shuts the controller down and
/// disables it.
pub struct Controller {
    pub(super) shared: Arc<NvmeShared>,
    pub(super) refused: Vec<(u32, Error)>,
    pub(super) namespaces: Vec<Namespace>,
}

/// What a controller, its disks and its queues share. A queue's thread looks at the generation
/// alone.
pub(super) struct NvmeShared {
    pub(super) lifetime: ControllerState,
    pub(super) losses: Losses,
    /// A write zeroes has timed out: no more are sent. The next process tries again.
    pub(super) zeroes_hang: AtomicBool,
    /// That the controller does no commands because of somebody else's wish was logged.
    pub(super) kept_from: AtomicBool,
    pub(super) vectors: Vectors,
    pub(super) admin: Arc<Mutex<Admin>>,
    pub(super) members: Mutex<Members>,
    pub(super) traits: ControllerFeatures,
    pub(super) cap: Cap,
    pub(super) options: Options,
    pub(super) device: Arc<dyn Device>,
}

impl Controller {
    /// Takes the function over: stops what runs on it, starts it anew, and asks it what it is.
    ///
    /// Fails with [`Error::Timeout`] if it does not start or stop within CAP.TO, with
    /// [`Error::Unsupported`] if it lacks what the driver needs. Namespaces that cannot be disks
    /// are no failure: see [`refused`](Self::refused).
    pub fn open(device: Arc<dyn Device>, mut options: Options) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        // By its ids. What it says about itself comes when it runs.
        let known = quirks::of(&*device, Strings::default(), &options)?;
        init::confine(&*device, &known)?;
        if known.has(SINGLE_COMMAND) {
            (options.max_queues, options.max_depth) = (1, 1);
        }
        let registers = Registers::new(device.bar(0)?, doorbells_end(1, 0))?;
        let cap = init::capabilities(&registers)?;
        let queues = queues_in_bar(&registers, cap, options.max_queues)?;
        // Whoever had it before may have left it running: it is stopped before it may reach for
        // memory again.
        init::stop_previous(&*device, &registers, cap, &known)?;
        device.set_bus_master(true)?;
        let admin = Admin::new(registers, device.dma().arena(), cap, options.timeout)?;
        let admin = Arc::new(Mutex::new(admin));
        let for_interrupts = admin.clone();
        let vectors = Vectors::enable(&*device, &options, &known, move || {
            // Whoever holds the queue takes its entries; otherwise they would keep a shared pin
            // asserted.
            if let Ok(mut admin) = for_interrupts.try_lock() {
                let _ = admin.service();
            }
        })?;
        let judge = |strings: Strings<'_>| quirks::of(&*device, strings, &options);
        let queues = queues.min(vectors.queues());
        let started = {
            let admin = &mut lock(&admin);
            start(admin, cap, queues, (judge, &options)).and_then(|started| {
                let page = init::page_size(cap);
                let (wanted, limit) = (started.0.host_memory, options.host_memory);
                admin.host_memory = Lent::allocate(&*device, wanted, limit, page);
                admin.give_host_memory()?;
                Ok(started)
            })
        };
        let (mut traits, queues) = match started {
            Ok(started) => started,
            Err(error) => {
                init::stop_after_failed_start(&*device, &mut lock(&admin), cap, &known);
                return Err(error);
            }
        };
        traits.identity.queues = queues;
        traits.identity.interrupts = vectors.kind();
        if let Some(limit) = options.max_transfer {
            traits.identity.max_transfer = traits.identity.max_transfer.min(limit.max(4096));
        }
        let members = Mutex::new(Members::new(queues));
        let (lifetime, losses) = (ControllerState::new(device.name()), Losses::default());
        let (zeroes_hang, kept_from) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(NvmeShared {
            lifetime,
            losses,
            zeroes_hang,
            kept_from,
            vectors,
            admin,
            members,
            traits,
            cap,
            options,
            device,
        });
        Self::with_namespaces(shared)
    }

    fn with_namespaces(shared: Arc<NvmeShared>) -> Result<Self, Error> {
        let mut controller = Self { shared, refused: Vec::new(), namespaces: Vec::new() };
        let has_cache = controller.shared.traits.identity.volatile_cache;
        // One that fails at the question has been reset, and counts as one that does not say: it is
        // not asked again.
        let asked = has_cache.then(|| controller.shared.command(power_count));
        let power = asked.and_then(Result::ok).unwrap_or(PowerCount::UNKNOWN);
        controller.shared.losses.set_power(power);
        let kept = controller.shared.device.dma().arena().persistent_words();
        let has_run_on = Found::read(kept.as_ref()) == Found::Running;
        let (ids, left_out) = controller.shared.active_namespaces()?;
        for id in ids {
            match controller.shared.disk_of(id)? {
                Ok(what) => {
                    let cache = has_cache.then(|| {
                        let whose = (&*what.info.serial, id);
                        WriteCache::open(kept.clone(), whose, power, has_run_on)
                    });
                    controller.namespaces.push(Namespace::new(
                        controller.shared.clone(),
                        Unit::new(id, what, cache),
                    ));
                }
                Err(error) => controller.refused.push((id, error)),
            }
        }
        controller.refused.extend(left_out);
        // What the fence has found is in the records.
        kept.iter().for_each(Found::forget);
        Ok(controller)
    }

    /// What it is.
    pub fn identity(&self) -> &Identity {
        &self.shared.traits.identity
    }

    /// How it differs from its specification, by the names of `quirks.toml`.
    pub fn quirks(&self) -> &Quirks {
        self.shared.quirks()
    }

    /// The memory of the host that it asks for, and what it has.
    pub fn host_memory(&self) -> HostMemory {
        let wanted = self.shared.traits.host_memory;
        let given = lock(&self.shared.admin).host_memory.as_ref().map_or(0, Lent::len);
        HostMemory { preferred: wanted.preferred, minimum: wanted.minimum, given }
    }

    /// The disks, by ascending namespace id.
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Namespaces that cannot be used, and why.
    pub fn refused(&self) -> &[(u32, Error)] {
        &self.refused
    }

    /// Namespace `id` as a disk; if there is none, the error says which there are, or why it was
    /// refused.
    pub fn disk(&self, id: u32) -> Result<Arc<dyn Disk>, Error> {
        let name = self.shared.device.name();
        if let Some(namespace) = self.namespaces.iter().find(|namespace| namespace.id() == id) {
            return Ok(Arc::new(namespace.clone()));
        }
        if let Some((_, error)) = self.refused.iter().find(|(refused, _)| *refused == id) {
            return Err(Error::Unsupported(format!("{name} namespace {id}: {error}")));
        }
        let ids: Vec<_> =
            self.namespaces.iter().map(|namespace| namespace.id().to_string()).collect();
        let there_are =
            if ids.is_empty() { "none that can be used".into() } else { ids.join(", ") };
        Err(Error::Invalid(format!("{name} has no namespace {id}; there are: {there_are}")))
    }

    /// The SMART / health log. [NVMe 5.1.12.1.3]
    pub fn smart(&self) -> Result<log::Smart, Error> {
        let command = Submission::get_log_page(log::SMART, log::Smart::SIZE as u32, true);
        self.shared.command(|admin| admin.fetch("the SMART log", command)).map(log::Smart)
    }

    /// The error log, newest first, entries in use only. [NVMe 5.1.12.1.2]
    pub fn errors(&self) -> Result<Vec<log::ErrorEntry>, Error> {
        let command = Submission::get_log_page(log::ERRORS, 4096, true);
        let page: [u8; 4096] =
            self.shared.command(|admin| admin.fetch("the error log", command))?;
        let entries =
            page.chunks_exact(log::ErrorEntry::SIZE).filter_map(log::ErrorEntry::from_bytes);
        Ok(entries
            .take(self.shared.traits.error_entries)
            .filter(|entry| entry.count() != 0)
            .collect())
    }

    /// What the controller has reported since the last call. Call it when [`irq`](Self::irq) fires,
    /// or now and then.
    pub fn events(&self) -> Result<Vec<Event>, Error> {
        let mut events = self.shared.command(|admin| {
            admin.service()?;
            if std::mem::take(&mut admin.unread) {
                unmask_events(admin)?;
            }
            let mut events = Vec::new();
            while let Some(event) = admin.next_event() {
                events.push(decode(admin, event)?);
            }
            Ok(events)
        })?;
        if events.contains(&Event::NamespacesChanged) {
            events.extend(self.rescan()?);
        }
        Ok(events)
    }

    /// The interrupt that says that there may be [`events`](Self::events); `None` if the admin
    /// queue has none of its own.
    pub fn irq(&self) -> Option<&Irq> {
        self.shared.vectors.of_admin().map(|irq| &**irq)
    }

    /// Completions of admin commands that were not in flight, since the start.
    pub fn stray_completions(&self) -> u64 {
        lock(&self.shared.admin).strays
    }

    /// Resets the controller. Queues take their requests back and repeat them.
    pub fn reset(&self) -> Result<(), Error> {
        self.shared.reset(self.shared.generation(), "it was asked for")
    }

    /// Shuts the controller down in good order and disables it. Queues that are still open end
    /// their requests with an error.
    pub fn shutdown(&self) -> Result<(), Error> {
        self.shared.shut_down()
    }
}

/// How many I/O queue pairs have their doorbells within the BAR.
fn queues_in_bar(registers: &Registers, cap: Cap, wanted: u16) -> Result<u16, Error> {
    let fits = (1..=wanted.max(1)).rev().find(|&queues| {
        doorbells_end(queues.saturating_add(1), cap.stride()) <= registers.bar().len()
    });
    fits.ok_or_else(|| {
        Error::Protocol(format!("BAR 0 has {} bytes: no room for doorbells", registers.bar().len()))
    })
}

/// Starts the controller and asks what it is and how many of `queues` I/O queues it grants. What it
/// is decides about its quirks, which `judge` knows. [NVMe 3.5.1, steps 2 to 10]
fn start(
    admin: &mut Admin,
    cap: Cap,
    queues: u16,
    (judge, options): (impl Fn(Strings<'_>) -> Result<Quirks, Error>, &Options),
) -> Result<(ControllerFeatures, u16), Error> {
    init::enable(admin, cap)?;
    let version = admin.registers().read(VS);
    // Step 7: identify the controller; the limits of some commands since version 2.0.
    let controller = identify::Controller(
        admin.fetch("identify controller", Submission::identify(cns::CONTROLLER, 0))?,
    );
    let text = |bytes| Printable(bytes).to_string();
    let (model, firmware) = (text(controller.model()), text(controller.firmware()));
    let quirks = judge(Strings {
        model: Some(&model),
        firmware: Some(&firmware),
        version: Some(version.0),
    })?;
    let limits = match version.major() {
        2.. if !quirks.has(LIMITED_IDENTIFY) => {
            admin.fetch("NVM command set limits", Submission::identify(cns::CONTROLLER_NVM, 0))
        }
        _ => Err(Error::Unsupported(String::new())),
    };
    let limits = match limits {
        Ok(limits) => Some(NvmLimits(limits)),
        Err(Error::Unsupported(_)) => None,
        Err(error) => return Err(error),
    };
    let page = init::page_size(cap);
    let mut traits = ControllerFeatures::new(&controller, limits, page, version, (quirks, options));
    admin.firmware_activation = traits.firmware_activation;
    if traits.identity.volatile_cache {
        // A cache that is switched off loses nothing. If the controller does not say, it is on.
        let value = admin.execute(Submission::get_feature(feature::VOLATILE_WRITE_CACHE))?;
        traits.identity.volatile_cache =
            value.map_or(true, |value| value & feature::CACHE_ENABLED != 0);
    }
    let queues = negotiate_queues(admin, &traits, queues)?;
    Ok((traits, queues))
}

/// What every start and every reset must tell the controller: number of queues, events. Returns the
/// queues granted. [NVMe 3.5.1, steps 8 to 10]
pub(super) fn negotiate_queues(
    admin: &mut Admin,
    traits: &ControllerFeatures,
    queues: u16,
) -> Result<u16, Error> {
    // Step 8: number of I/O queues; the controller may grant fewer, or more.
    let wanted = QueueCounts { submission: queues, completion: queues };
    let granted = QueueCounts::from_dword(
        admin.demand("the number of queues", Submission::set_queue_counts(wanted))?,
    );
    // Step 10: asynchronous events, those that the controller has. A refusal costs only the events.
    let known = AsyncEvents(0).with_namespace_changed(1).with_firmware_activation(1);
    let notices = AsyncEvents(traits.async_events & known.0).with_critical_warnings(0x1f);
    if let Err(status) = admin.execute(Submission::set_feature(feature::ASYNC_EVENTS, notices.0))? {
        tracing::debug!(
            "the controller refused the configuration of asynchronous events: {status}"
        );
    }
    if traits.changes_power_state {
        admin.set_transitions(&traits.power_states, traits.quirks.has(BROKEN_APST))?;
    }
    if traits.retry_delays != [0; 3] {
        // Without this, no status says how long to wait. A refusal costs only that.
        let _ = admin.send_page(
            &[feature::HOST_BEHAVIOR_RETRY_DELAY],
            Submission::set_feature(feature::HOST_BEHAVIOR, 0),
        )?;
    }
    admin.arm_events(traits.event_requests)?;
    Ok(queues.min(granted.submission).min(granted.completion))
}

/// Reads the log page of `event`, which lets events of its type come again.
fn decode(admin: &mut Admin, event: AsyncEvent) -> Result<Event, Error> {
    let Some(page) = Event::log_page(event) else { return Ok(Event::new(event, None)) };
    let bytes = if page == log::CHANGED_NAMESPACES { 4096 } else { 512 };
    match admin
        .fetch::<4096>("the log page of an event", Submission::get_log_page(page, bytes, false))
    {
        Ok(content) => Ok(Event::new(event, Some(&content))),
        Err(Error::Unsupported(_)) => Ok(Event::new(event, None)),
        Err(error) => Err(error),
    }
}

/// Reads the logs of all types of events, so that they come again whatever was taken of them
/// before. [NVMe 5.1.2]
fn unmask_events(admin: &mut Admin) -> Result<(), Error> {
    for (page, bytes) in [(log::ERRORS, 512), (log::SMART, 512), (log::CHANGED_NAMESPACES, 4096)] {
        match admin
            .fetch::<4096>("the log page of an event", Submission::get_log_page(page, bytes, false))
        {
            Ok(_) | Err(Error::Unsupported(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl NvmeShared {
    /// How the controller differs from its specification.
    pub(super) fn quirks(&self) -> &Quirks {
        &self.traits.quirks
    }

    /// The present generation.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.lifetime.generation()
    }

    /// Runs admin commands. If the controller fails at them, it is reset, so that no late answer
    /// meets the next command.
    pub(super) fn command<T>(
        &self,
        job: impl FnOnce(&mut Admin) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (result, generation) = {
            let mut admin = lock(&self.admin);
            self.lifetime.check()?;
            (job(&mut admin), self.generation())
        };
        if let Err(error) = &result
            && !matches!(error, Error::Unsupported(_) | Error::Invalid(_))
        {
            let _ = self.reset(generation, &error.to_string());
        }
        result
    }
}
