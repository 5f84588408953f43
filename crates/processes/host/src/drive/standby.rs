//! All that comes before there is a device.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ring3_class::net::Throttle;
use ring3_control::drive::{Prepare, VERSION};
use ring3_device::irq::IrqKind;
use ring3_driver::registry::{DRIVERS, Settings};
use ring3_driver::{Circumstances, Interrupts};
use ring3_export::tap::{Engine, EngineSettings, Workers};
use ring3_export::ublk;
use ring3_manifest::Role;
use ring3_reactor::Pool;
use ring3_sandbox::Sandbox;
use ring3_stats::{Recorder, Segment};

use crate::Error;

/// Most queues of a disk.
const MAX_QUEUES: u16 = 128;
/// Bounds of the bytes of a request.
const REQUEST: (u32, u32) = (4096, 32 << 20);
/// The longest polling.
const MAX_POLL: Duration = Duration::from_millis(1);

/// Whose drivers a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drivers {
    /// Ring3's.
    Own,
    /// Another part of the program is one, which ring3 only hosts.
    Hosted,
}

/// A process that waits for a lease.
pub struct Standby {
    pub family: Option<&'static str>,
    pub settings: Settings,
    /// What is wanted of each disk's export.
    pub wanted: ublk::Options,
    pub segment: Arc<Segment>,
    /// The process's own.
    pub recorder: Arc<Recorder>,
    /// The supervisor wants to know by what its device could be adopted.
    pub adoptable: bool,
    /// What it offers is shared with clients.
    pub shared: bool,
    /// The one disk is shared with clients beside the kernel's device.
    pub beside: bool,
    /// Requests to its disks may lie in clients' memory.
    pub lent: bool,
    /// The rings of all queues, where the process cannot make one any more.
    pub rings: Pool,
    /// What moves packets of network cards, with the workers of all queues.
    pub engine: EngineSettings,
}

impl Standby {
    /// Becomes what `prepare` says, with the memory `stats` for what it does. From here on the
    /// process has `control` and that, and no right of root's.
    pub fn new(
        prepare: Prepare,
        drivers: Drivers,
        control: BorrowedFd<'_>,
        stats: Option<OwnedFd>,
    ) -> Result<Self, Error> {
        let stats = stats
            .ok_or_else(|| Error::protocol("no stats segment came with the order to prepare"))?;
        let segment =
            Arc::new(Segment::open(stats).map_err(|error| Error::os("the stats segment", error))?);
        let recorder = Recorder::new(&segment, None)
            .ok_or_else(|| Error::protocol("a stats segment without a part"))?;
        let wanted = wanted(&prepare)?;
        let family = match drivers {
            Drivers::Own => prepare.family.as_deref().map(family).transpose()?,
            Drivers::Hosted => None,
        };
        let interrupts = interrupts(&prepare.interrupts)?;
        let throttle = prepare
            .throttle
            .as_deref()
            .map(str::parse::<Throttle>)
            .transpose()
            .map_err(Error::protocol)?;
        // While files can be read.
        let quirks = Circumstances::wanting(prepare.quirks.clone()).here();
        let mut doubts = ring3_process::stay_in_memory();
        let mut rings = Pool::default();
        // As rings: what is opened is opened before.
        // A hosted card's frames pass through its program's memory anyway.
        let word = prepare.engine.as_deref().filter(|_| drivers == Drivers::Own);
        let (workers, engine) = Workers::opened(wanted.queues, engine(word)?)?;
        let engine = EngineSettings { engine, workers, ..EngineSettings::default() };
        if !prepare.unconfined {
            rings = ublk::rings(segment.queues(), wanted.depth, prepare.batch)
                .map_err(|error| Error::os("making the rings of its queues", error))?;
            ring3_device::dma::budget();
            doubts.extend(confine(
                &prepare,
                drivers,
                &[control, segment.as_fd()],
                &rings,
                &engine,
            )?);
        }
        // Not before: a line starts the log's thread.
        doubts.iter().for_each(|doubt| tracing::warn!("{doubt}"));
        let settings = Settings {
            interrupts,
            throttle,
            quirks,
            host_memory: prepare.host_memory,
            power_latency: prepare.power_latency_ms.map(|ms| Duration::from_millis(ms.into())),
            part: prepare.part,
            max_transfer: (!prepare.shared).then_some(wanted.max_bytes),
            ..Settings::default()
        };
        let (recorder, adoptable) = (Arc::new(recorder), prepare.adoptable);
        let Prepare { shared, beside, lent, .. } = prepare;
        Ok(Self {
            family,
            settings,
            wanted,
            segment,
            recorder,
            adoptable,
            shared,
            beside,
            lent,
            rings,
            engine,
        })
    }
}

/// Gives up all but what the family's drivers need, and `keep`; in words what the machine cannot
/// take away.
fn confine(
    prepare: &Prepare,
    drivers: Drivers,
    keep: &[BorrowedFd<'_>],
    rings: &Pool,
    engine: &EngineSettings,
) -> Result<Vec<String>, Error> {
    let mut sandbox = match drivers {
        Drivers::Own => Sandbox::new(ring3_manifest::drivers(prepare.family.as_deref()), "lease")?,
        Drivers::Hosted => Sandbox::new([ring3_manifest::hosted()], "lease")?,
    };
    let serves = prepare.shared || prepare.beside;
    if let Some(broker) = ring3_manifest::part(Role::Broker, "broker").filter(|_| serves) {
        sandbox = sandbox.with(broker);
    }
    sandbox
        .keep
        .extend(keep.iter().map(AsRawFd::as_raw_fd).chain(rings.fds()).chain(engine.workers.fds()));
    sandbox.vhost = engine.engine != Engine::Tap;
    sandbox.batches = prepare.batch;
    (sandbox.user, sandbox.group) =
        (prepare.user.unwrap_or(sandbox.user), prepare.group.unwrap_or(sandbox.group));
    Ok(ring3_sandbox::enter(&sandbox)?)
}

fn wanted(prepare: &Prepare) -> Result<ublk::Options, Error> {
    let Prepare { version, queues, depth, max_bytes, poll_us, .. } = *prepare;
    if version != VERSION {
        let reason = format!(
            "the supervisor speaks version {version}, and this program {VERSION}: start those of \
            one release"
        );
        return Err(Error::protocol(reason));
    }
    let poll = Duration::from_micros(poll_us);
    let fits = (1..=MAX_QUEUES).contains(&queues)
        && (1..=ublk::uapi::MAX_QUEUE_DEPTH).contains(&depth)
        && (REQUEST.0..=REQUEST.1).contains(&max_bytes)
        && poll <= MAX_POLL;
    if !fits {
        let reason = format!(
            "no disk has {queues} queues of {depth} requests of {max_bytes} bytes, polled for \
            {poll:?}"
        );
        return Err(Error::protocol(reason));
    }
    Ok(ublk::Options { queues, depth, max_bytes, poll, ..ublk::Options::default() })
}

fn family(word: &str) -> Result<&'static str, Error> {
    let mut families = DRIVERS.iter().map(|driver| driver.family);
    families
        .find(|&family| family == word)
        .ok_or_else(|| Error::protocol(format!("there are no drivers called {word:?}")))
}

/// Who says nothing of it knows no other.
fn engine(word: Option<&str>) -> Result<Engine, Error> {
    let word = word.unwrap_or(Engine::Tap.name());
    Engine::of(word)
        .ok_or_else(|| Error::protocol(format!("engines are auto, tap or vhost, and not {word:?}")))
}

fn interrupts(word: &str) -> Result<Interrupts, Error> {
    Ok(match word {
        "auto" => Interrupts::Auto,
        "msix" => Interrupts::Only(IrqKind::MsiX),
        "msi" => Interrupts::Only(IrqKind::Msi),
        "intx" => Interrupts::Only(IrqKind::Intx),
        "poll" => Interrupts::Polled,
        other => {
            return Err(Error::protocol(format!(
                "interrupts are auto, msix, msi, intx or poll, and not {other:?}"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare() -> Prepare {
        let (family, part, user, group, unconfined) = (None, None, None, None, true);
        let interrupts = "auto".into();
        Prepare {
            user,
            group,
            unconfined,
            adoptable: false,
            shared: false,
            beside: false,
            batch: false,
            lent: false,
            engine: None,
            version: VERSION,
            name: "disk".into(),
            family,
            part,
            interrupts,
            throttle: None,
            quirks: Vec::new(),
            host_memory: None,
            power_latency_ms: None,
            queues: 1,
            depth: 64,
            max_bytes: 1 << 18,
            poll_us: 10,
        }
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let error = wanted(&Prepare { version: 7, ..prepare() }).unwrap_err().to_string();
        assert!(error.contains("version 7") && error.contains(&VERSION.to_string()), "{error}");
    }

    #[test]
    fn figures_that_no_disk_has_are_refused() {
        assert!(wanted(&prepare()).is_ok());
        for wrong in [
            Prepare { queues: 0, ..prepare() },
            Prepare { queues: 129, ..prepare() },
            Prepare { depth: 0, ..prepare() },
            Prepare { depth: 4097, ..prepare() },
            Prepare { max_bytes: 0, ..prepare() },
            Prepare { max_bytes: u32::MAX, ..prepare() },
            Prepare { poll_us: u64::MAX, ..prepare() },
        ] {
            assert!(wanted(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn words_that_nobody_knows_are_refused() {
        assert!(family("nvme").is_ok() && family("toaster").is_err());
        assert!(interrupts("msix").is_ok() && interrupts("smoke").is_err());
        assert!(engine(Some("vhost")).is_ok() && engine(Some("steam")).is_err());
    }

    #[test]
    fn who_is_told_of_no_engine_moves_packets_by_calls() {
        assert_eq!(engine(None).unwrap(), Engine::Tap);
    }
}
