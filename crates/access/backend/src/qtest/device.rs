//! The device that a driver sees, from its QEMU's start to its end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ring3_device::dma::{Arena, Dma, Region, StaticIommu};
use ring3_device::irq::{Irq, IrqKind, IrqLimits};
use ring3_device::{Bar, BarInfo, Device, Error};
use ring3_spec::pci;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::board::{Board, DOORBELL_SLOT};
use super::find;
use super::ivshmem::Doorbell;
use super::machine::{self, Machine};
use super::model::Model;
use super::wire::Wire;
use crate::{OpenOptions, Uri, eventfd};

/// Memory below this address is not memory everywhere on a PC (video, ROMs): the arena starts here.
const ARENA_START: usize = 1 << 20;
/// A q35 machine has memory in one piece up to here, and a clipper's window ends here.
const MEMORY_LIMIT: usize = 2 << 30;
/// Memory comes in units of this, so that it can be huge pages.
const MEMORY_UNIT: usize = 2 << 20;

/// After this time without a reply QEMU counts as gone. A living one answers in 50 microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// One device of a QEMU that lives for it alone.
///
/// Dropping it ends QEMU, and with it every transfer.
pub struct Qtest {
    name: String,
    board: Board,
    dma: Dma,
    removal: Irq,
    _doorbell: Doorbell,
    machine: Machine,
}

/// Starts a QEMU with the device that `uri` names, whose arena is as `options` and then the URI
/// say.
pub fn open(uri: &Uri, options: OpenOptions) -> Result<Qtest, Error> {
    let options = options.overridden_by(uri)?;
    options.check_own_memory(uri)?;
    let mut model = Model::of(uri)?;
    let program = find::qemu(model.host)?;
    let memory = Region::new(memory_size(uri, &options)?)?;
    let (wire, wire_end) = pair()?;
    let wire = Arc::new(Wire::new(wire, PATIENCE));
    let (server, server_end) = pair()?;
    let doorbell = Doorbell::new(server, model.vectors)?;
    let removal = eventfd::new()?;
    let (ram, _) =
        memory.file().ok_or_else(|| Error::Invalid("DMA memory without a file".into()))?;
    let ram =
        ram.try_clone_to_owned().map_err(|error| Error::os("duplicating DMA memory", error))?;
    let firmware = machine::firmware()?;
    let args = command_line(&model, memory.len(), [&ram, &firmware, &wire_end, &server_end]);
    let inherited = [ram, firmware, wire_end, server_end]
        .into_iter()
        .chain(std::mem::take(&mut model.files))
        .collect();
    let mut machine = Machine::start(&program, args, inherited, end(&wire, &removal, &doorbell)?)?;
    let board =
        Board::find(wire, doorbell.events().clone(), &model).map_err(|error| match error {
            Error::Gone => refused(uri, &program, &machine.stop()),
            other => other,
        })?;
    machine.watch();
    machine.ask_first(model.writes_at_end);
    let removal = Irq::new(removal, IrqKind::Intx, 0, None);
    Ok(Qtest {
        name: uri.to_string(),
        board,
        dma: dma(memory, &options),
        removal,
        _doorbell: doorbell,
        machine,
    })
}

impl Qtest {
    fn has_config(&self, offset: u64, width: usize) -> bool {
        let end = offset.checked_add(width as u64);
        matches!(width, 1 | 2 | 4) && end.is_some_and(|end| end <= self.board.function.config_size)
    }

    /// The first 64 KiB of its QEMU's error output, traced events included.
    pub fn stderr_text(&self) -> String {
        self.machine.stderr_text()
    }

    /// The process id of its QEMU.
    pub fn process_id(&self) -> u32 {
        self.machine.process_id()
    }
}

/// QEMU ended before it answered once: its own words say why.
fn refused(uri: &Uri, program: &Path, words: &str) -> Error {
    let words = if words.is_empty() { "nothing; is it a QEMU?" } else { words };
    Error::Unsupported(format!("{uri}: {} ended at its start and said: {words}", program.display()))
}

/// What to do when QEMU has ended: whoever waits for a reply or an interrupt shall look at the
/// device and find it gone.
fn end(
    wire: &Arc<Wire>,
    removal: &OwnedFd,
    doorbell: &Doorbell,
) -> Result<impl FnOnce() + Send + 'static, Error> {
    let (wire, removal, events) =
        (wire.clone(), eventfd::share(removal)?, doorbell.events().clone());
    Ok(move || {
        wire.close();
        eventfd::signal(&removal);
        events.iter().for_each(eventfd::signal);
    })
}

/// The machine: memory that we share, a processor that halts, the doorbell, the device.
fn command_line(
    model: &Model,
    memory: usize,
    [ram, firmware, wire, server]: [&OwnedFd; 4],
) -> Vec<String> {
    let megabytes = memory >> 20;
    let fd = std::os::fd::AsRawFd::as_raw_fd;
    let fixed = [
        ("-machine", format!("{},memory-backend=ram", model.host.machine)),
        ("-accel", "tcg".into()),
        ("-m", format!("{megabytes}M")),
        (
            "-object",
            format!(
                "memory-backend-file,id=ram,size={megabytes}M,share=on,mem-path={}",
                machine::path(ram)
            ),
        ),
        // The name is fixed: QEMU 7.2 looks for the device "qtest" whatever its option says.
        ("-chardev", format!("socket,id=qtest,fd={}", fd(wire))),
        ("-qtest", "chardev:qtest".into()),
        ("-qtest-log", "none".into()),
        ("-display", "none".into()),
    ];
    let interrupts = [
        ("-bios", machine::path(firmware)),
        ("-chardev", format!("socket,id=doorbell,fd={}", fd(server))),
        (
            "-device",
            format!(
                "ivshmem-doorbell,chardev=doorbell,vectors={},addr={DOORBELL_SLOT:#x}",
                model.vectors
            ),
        ),
    ];
    let interrupts = interrupts.into_iter().filter(|_| model.host.interrupts);
    let fixed = fixed
        .into_iter()
        .chain(interrupts)
        .flat_map(|(key, value): (&str, String)| [key.to_owned(), value]);
    let stopped = (!model.host.interrupts).then(|| "-S".to_owned());
    let alone = ["-nodefaults", "-no-user-config"].map(str::to_owned).into_iter().chain(stopped);
    fixed.chain(alone).chain(model.args.iter().cloned()).collect()
}

/// The arena and what lies below it, in whole units.
fn memory_size(uri: &Uri, options: &OpenOptions) -> Result<usize, Error> {
    let limit = MEMORY_LIMIT.min(usize::try_from(options.below).unwrap_or(MEMORY_LIMIT));
    let size = options
        .arena
        .checked_add(ARENA_START)
        .and_then(|size| size.checked_next_multiple_of(MEMORY_UNIT));
    size.filter(|&size| size <= limit).ok_or_else(|| {
        Error::Invalid(format!(
            "{uri}: an arena of {:#x} bytes does not fit between 1 MiB and {limit:#x}",
            options.arena
        ))
    })
}

fn dma(memory: Region, options: &OpenOptions) -> Dma {
    let top = memory.len().min(usize::try_from(options.below).unwrap_or(usize::MAX));
    let reachable = ARENA_START as u64..=top as u64 - 1;
    Dma::new(
        Arena::with_range(memory, 0, ARENA_START, top),
        Arc::new(StaticIommu::identity(reachable)),
    )
}

fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| Error::os("creating a socket pair for QEMU", error))
}

impl Device for Qtest {
    fn name(&self) -> &str {
        &self.name
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        match self.has_config(offset, width) {
            true => self.board.function.read(offset, width as u64).unwrap_or(u32::MAX),
            false => u32::MAX,
        }
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        if !self.has_config(offset, width) {
            return Err(Error::Invalid(format!(
                "{}: no {width} bytes of configuration space at {offset:#x}",
                self.name
            )));
        }
        self.board.config_write(offset, width, value)
    }

    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        self.board.bar_info(index)
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        self.board.bar(index)
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn irq_limits(&self) -> IrqLimits {
        self.board.interrupts.limits()
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        self.board.interrupts.enable(kind, count)
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let (off, on) =
            if on { (0, pci::COMMAND_BUS_MASTER) } else { (pci::COMMAND_BUS_MASTER, 0) };
        self.board.function.change16(pci::COMMAND, off, on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.board.reset()
    }

    fn removal(&self) -> Option<&Irq> {
        Some(&self.removal)
    }
}
