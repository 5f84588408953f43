//! A controller: what the owner of the function holds.

use std::sync::{Arc, Mutex};

use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error, Registers};
use ring3_spec::ide::{BUS_MASTER_BAR, BusMasterCommand, CHANNELS, DRIVES, Interface, bus_master};

use super::super::options::{Level, Options};
use super::channel::{Channel, Channels, drive_name};
use super::chip::Chip;
use super::drive::Drive;
use super::function::Function;
use super::interrupts::Vectors;
use crate::lifetime::lock;

/// Where the bus master's 32 address lines end.
const REACH: u64 = 1 << 32;

/// A PCI IDE controller.
///
/// Dropping the last of a controller and its drives and queues flushes and parks the drives that
/// were used, stops the bus masters, switches the drives' interrupts off and takes the bus away
/// from the function.
pub struct Controller {
    shared: Arc<IdeShared>,
    drives: Vec<Drive>,
    refused: Vec<(String, Error)>,
}

/// What a controller, its drives and their queues share.
pub(super) struct IdeShared {
    // Dropped first, because the thread of a shared interrupt holds the channels.
    pub(super) vectors: Vectors,
    pub(super) channels: Arc<Channels>,
    pub(super) function: Arc<Function>,
}

impl Controller {
    /// Takes the function over: stops its bus masters, resets the drives of both channels and asks
    /// them what they are.
    ///
    /// Fails with [`Error::Unsupported`] if it is no IDE controller or answers at no ports, and
    /// with [`Error::Invalid`] if its memory is out of the bus master's reach. Drives that cannot
    /// be used are no failure: see [`refused`](Self::refused).
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        let (chip, interface) = Chip::of(&*device)?;
        let dma =
            options.level > Level::Pio && interface.bus_master() == 1 && has_bus_masters(&*device);
        if dma {
            check_reach(&*device)?;
            device.set_bus_master(true)?;
        }
        let function = Arc::new(Function::new(device, chip, options, dma));
        let (enabled, simplex) =
            (chip.enabled(&*function.device), dma && is_simplex(&*function.device));
        let mut refused = Vec::new();
        let mut channels: [Option<Channel>; CHANNELS as usize] = [None, None];
        for number in (0..CHANNELS).filter(|&number| enabled[usize::from(number)]) {
            chip.enable(&*function.device, number)?;
            // A simplex function has one transfer at a time: the first channel with drives has it,
            // the other one PIO. [BMIDE 3.2]
            let free = !simplex || channels[0].as_ref().is_none_or(|primary| primary.drives() == 0);
            channels[usize::from(number)] = open_channel(&function, number, free, &mut refused)?;
        }
        if channels.iter().all(Option::is_none) {
            let name = function.device.name();
            return Err(Error::Unsupported(format!(
                "{name}: no channel of this {chip} can be reached: neither has its ports"
            )));
        }
        let channels: Arc<Channels> = Arc::new(channels.map(|channel| channel.map(Mutex::new)));
        let vectors = Vectors::enable(&*function.device, &function.options, interface, &channels)?;
        for (channel, number) in channels.iter().zip(0..) {
            if let Some(channel) = channel
                && vectors.reach(number)
            {
                lock(channel).use_interrupts();
            }
        }
        report(&function, interface, &vectors);
        Ok(Self::with_drives(Arc::new(IdeShared { vectors, channels, function }), refused))
    }

    fn with_drives(shared: Arc<IdeShared>, refused: Vec<(String, Error)>) -> Self {
        let max_transfer = shared.function.options.max_transfer;
        let mut drives = Vec::new();
        for place in
            (0..CHANNELS).flat_map(|channel| (0..DRIVES).map(move |drive| (channel, drive)))
        {
            let found = shared.channel(place.0).and_then(|mut channel| {
                channel
                    .state(place.1)
                    .map(|state| (state.identity.clone(), state.info(max_transfer)))
            });
            if let Some((identity, info)) = found {
                drives.push(Drive::new(shared.clone(), place, identity, info));
            }
        }
        Self { shared, drives, refused }
    }

    /// The disks: primary before secondary, master before slave.
    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    /// What is there and cannot be used, by name, and why.
    pub fn refused(&self) -> &[(String, Error)] {
        &self.refused
    }

    /// How ends of commands are signalled; `None` if they are found by looking.
    pub fn interrupts(&self) -> Option<IrqKind> {
        self.shared.vectors.kind()
    }
}

impl Drop for IdeShared {
    fn drop(&mut self) {
        self.channels.iter().flatten().for_each(|channel| lock(channel).park());
    }
}

/// Probes channel `number`, which may use its bus master if `dma`; `None` if it has no ports.
fn open_channel(
    function: &Arc<Function>,
    number: u8,
    dma: bool,
    refused: &mut Vec<(String, Error)>,
) -> Result<Option<Channel>, Error> {
    let mut channel = match Channel::new(function.clone(), number, dma) {
        Ok(channel) => channel,
        Err(Error::Unsupported(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let bad = channel.probe();
    refused.extend(
        bad.into_iter()
            .map(|(drive, error)| (drive_name(function.device.name(), number, drive), error)),
    );
    Ok(Some(channel))
}

/// Whether there is a BAR of bus masters. Both are stopped, before the function may reach for
/// memory again.
fn has_bus_masters(device: &dyn Device) -> bool {
    let registers = device
        .bar(BUS_MASTER_BAR)
        .and_then(|bar| Registers::new(bar, 2 * u64::from(bus_master::STRIDE)));
    let Ok(registers) = registers else { return false };
    for channel in 0..CHANNELS {
        registers.write(bus_master::command(channel), BusMasterCommand(0));
    }
    true
}

/// Whether only one of the channels' bus masters may be active at a time. [BMIDE 3.2]
fn is_simplex(device: &dyn Device) -> bool {
    let registers = device
        .bar(BUS_MASTER_BAR)
        .and_then(|bar| Registers::new(bar, 2 * u64::from(bus_master::STRIDE)));
    registers.is_ok_and(|registers| registers.read(bus_master::status(0)).simplex() == 1)
}

/// Fails unless the arena lies where 32 address lines reach.
fn check_reach(device: &dyn Device) -> Result<(), Error> {
    if device.dma().confine(REACH) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{}: an IDE controller drives 32 address lines and its memory lies above them: open the \
        device with below=4G",
        device.name()
    )))
}

fn report(function: &Function, interface: Interface, vectors: &Vectors) {
    let modes =
        [0, 1].map(|channel| if interface.is_native(channel) { "native" } else { "compatibility" });
    let by = vectors.kind().map_or_else(|| "polled".to_owned(), |kind| format!("{kind:?}"));
    let dma = if function.has_dma() { "bus master" } else { "PIO only" };
    tracing::info!(
        "{}: {}, {} and {} mode, {dma}, {by}",
        function.device.name(),
        function.chip,
        modes[0],
        modes[1]
    );
}
