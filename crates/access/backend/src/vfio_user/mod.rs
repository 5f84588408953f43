//! Functions that another process serves on a UNIX socket, by the vfio-user protocol:
//! `ring3 model`, or any other server.
//!
//! # Shape
//! `client` holds the connection; [`VfioUser`] is the device over it. Registers are messages: a
//! write to memory is posted, all else waits for its answer. The arena is given to the server by
//! its descriptor, interrupts are eventfds that the server signals.
//!
//! # Trust
//! A server is a device: what it says is input, and when it goes, or says nothing for five seconds,
//! the device is gone.
//!
//! # Giving it up
//! When the last of the device, its BARs and its interrupts is dropped: transfers off, reset,
//! connection closed. A process that is killed gives it up the same way, because the server does
//! both when the connection ends.

mod client;
#[cfg(test)]
mod tests;

use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ring3_device::dma::{Dma, Iommu, Pages};
use ring3_device::irq::{Irq, IrqControl, IrqKind, IrqLimits};
use ring3_device::{Access, Bar, BarInfo, Device, Error};
use ring3_spec::pci;
use ring3_spec::vfio_user::*;

use crate::config::ConfigSpace;
use crate::eventfd;
use crate::irqs::Irqs;
use crate::vfio::{USUAL_RANGES, map_arena};
use crate::{OpenOptions, Uri};
use client::{Client, Remote};

/// A function behind a socket.
pub struct VfioUser {
    claim: Arc<Claim>,
    dma: Dma,
    irqs: Irqs,
    /// By index.
    bars: Vec<Option<BarInfo>>,
    removal: Irq,
}

/// What is held while the function is claimed. Dropping it stops transfers and resets the function.
struct Claim {
    config: ConfigSpace<Remote>,
    client: Arc<Client>,
    resettable: bool,
}

/// The function answers; a reset of some servers switches that off.
const DECODING: u16 = pci::COMMAND_MEMORY | pci::COMMAND_IO;

/// Claims the function that `uri` names: `vfio-user:PATH[,arena=SIZE][,below=SIZE]`.
pub fn open(uri: &Uri, options: OpenOptions) -> Result<VfioUser, Error> {
    uri.only(&OpenOptions::KEYS)?;
    let options = options.overridden_by(uri)?;
    let (client, removal) = connect(&uri.target)?;
    let question = DeviceInfo { argsz: DeviceInfo::LEN as u32, ..DeviceInfo::default() };
    let info = client.ask(command::DEVICE_GET_INFO, &question.to_bytes(), DeviceInfo::take)?;
    if info.flags & DEVICE_PCI == 0 {
        return Err(Error::Unsupported(format!("{}: not a PCI function", client.name())));
    }
    let config = ConfigSpace::over(client.name().into(), Remote(Arc::clone(&client)));
    let claim = Arc::new(Claim { config, client, resettable: info.flags & DEVICE_RESETTABLE != 0 });
    claim.config.change_command(pci::COMMAND_BUS_MASTER, DECODING)?;
    let [intx, msi, msix] =
        [IrqKind::Intx, IrqKind::Msi, IrqKind::MsiX].map(|kind| claim.vectors(kind));
    let limits = IrqLimits { intx: intx?, msi: msi?, msix: msix? };
    let bars = (0..pci::BAR_COUNT).map(|index| claim.bar_info(index)).collect::<Result<_, _>>()?;
    let iommu = Arc::new(Windows(Arc::clone(&claim.client)));
    let dma =
        Dma::new(map_arena(&*iommu, claim.config.name(), &options)?, iommu).below(options.below);
    Ok(VfioUser { claim, dma, irqs: Irqs::new(limits), bars, removal })
}

/// The class code of the function that is served at `path`; `None` if nobody says.
pub fn class_of(path: &str) -> Option<u32> {
    let (client, _) = connect(path).ok()?;
    let mut class = [0; 4];
    client.read(CONFIG_REGION, pci::REVISION, &mut class).then(|| u32::from_le_bytes(class) >> 8)
}

fn connect(path: &str) -> Result<(Arc<Client>, Irq), Error> {
    let seen = eventfd::new()?;
    let signal = seen.try_clone().map_err(|error| Error::os("copying an eventfd", error))?;
    // An edge that cannot be masked, as an MSI would be.
    Ok((Arc::new(Client::connect(path, signal)?), Irq::new(seen, IrqKind::Msi, 0, None)))
}

fn index(kind: IrqKind) -> u32 {
    match kind {
        IrqKind::Intx => 0,
        IrqKind::Msi => 1,
        IrqKind::MsiX => 2,
    }
}

impl Claim {
    fn vectors(&self, kind: IrqKind) -> Result<u16, Error> {
        let question =
            IrqInfo { argsz: IrqInfo::LEN as u32, index: index(kind), ..IrqInfo::default() };
        let info =
            self.client.ask(command::DEVICE_GET_IRQ_INFO, &question.to_bytes(), IrqInfo::take)?;
        let deliverable = info.flags & IRQ_EVENTFD != 0;
        Ok(if deliverable { u16::try_from(info.count).unwrap_or(u16::MAX) } else { 0 })
    }

    fn bar_info(&self, index: u8) -> Result<Option<BarInfo>, Error> {
        let question = RegionInfo {
            argsz: RegionInfo::LEN as u32,
            index: index.into(),
            ..RegionInfo::default()
        };
        let region = self.client.ask(
            command::DEVICE_GET_REGION_INFO,
            &question.to_bytes(),
            RegionInfo::take,
        )?;
        let ports = self.config.read(pci::BAR0 + 4 * u64::from(index), 1) & 1 != 0;
        Ok((region.size > 0).then_some(BarInfo { len: region.size, ports }))
    }

    fn set_irqs(
        &self,
        kind: IrqKind,
        flags: u32,
        range: Range<u16>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let (start, count) = (range.start.into(), range.len() as u32);
        let wish = SetIrqs { argsz: SetIrqs::LEN as u32, flags, index: index(kind), start, count };
        self.client.request(command::DEVICE_SET_IRQS, [&wish.to_bytes(), &[]], fds).map(drop)
    }

    /// Stops transfers and resets the function; transfers are allowed again if they were.
    fn reset(&self) -> Result<(), Error> {
        let was_master = self.config.is_bus_master();
        self.config.set_bus_master(false)?;
        if !self.resettable {
            return Err(Error::Unsupported(format!(
                "{}: its server cannot reset it; its transfers are stopped",
                self.config.name()
            )));
        }
        self.client.request(command::DEVICE_RESET, [&[], &[]], &[])?;
        self.config.change_command(
            0,
            if was_master { DECODING | pci::COMMAND_BUS_MASTER } else { DECODING },
        )
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The server does the same when the connection ends; done here, nothing reaches the arena
        // when the last handle on it goes.
        let _ = self.config.set_bus_master(false);
        let _ = self.reset();
    }
}

/// INTx, which the server masks when it fires.
impl IrqControl for Claim {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.set_irqs(IrqKind::Intx, IRQ_DATA_NONE | IRQ_MASK, vector..vector + 1, &[])
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.set_irqs(IrqKind::Intx, IRQ_DATA_NONE | IRQ_UNMASK, vector..vector + 1, &[])
    }
}

/// A BAR behind the socket. Writes to memory are posted; one to a port has happened when it
/// returns, and a driver counts time from there. [PCI 3.2.5]
struct Window {
    claim: Arc<Claim>,
    index: u8,
    info: BarInfo,
}

impl Access for Window {
    fn len(&self) -> u64 {
        self.info.len
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        let mut bytes = [0; 8];
        let inside = offset.checked_add(width as u64).is_some_and(|end| end <= self.info.len);
        let read = inside && self.claim.client.read(self.index.into(), offset, &mut bytes[..width]);
        if read { u64::from_le_bytes(bytes) } else { u64::MAX }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if offset.checked_add(width as u64).is_some_and(|end| end <= self.info.len) {
            let write = if self.info.ports { Client::write } else { Client::post };
            write(&self.claim.client, self.index.into(), offset, &value.to_le_bytes()[..width]);
        }
    }
}

/// What of this process the server has mapped for the device.
struct Windows(Arc<Client>);

impl Iommu for Windows {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        let (file, offset) = pages.file().ok_or_else(|| {
            Error::Unsupported("memory without a descriptor cannot be shared".into())
        })?;
        let (argsz, size) = (DmaMap::LEN as u32, pages.len() as u64);
        let wish = DmaMap { argsz, flags: DMA_READ_WRITE, offset, address: iova, size };
        self.0.request(command::DMA_MAP, [&wish.to_bytes(), &[]], &[file]).map(drop)
    }

    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        let wish =
            DmaUnmap { argsz: DmaUnmap::LEN as u32, flags: 0, address: iova, size: len as u64 };
        self.0.request(command::DMA_UNMAP, [&wish.to_bytes(), &[]], &[]).map(drop)
    }

    /// A server does not say; what every x86 machine has is what the models have, too.
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        USUAL_RANGES.to_vec()
    }

    fn page_size(&self) -> usize {
        rustix::param::page_size()
    }

    fn can_map(&self, pages: &Pages) -> bool {
        pages.file().is_some()
    }

    /// The server has no memory of this process but what it was given.
    fn is_bypassable(&self) -> bool {
        false
    }
}

impl Device for VfioUser {
    fn name(&self) -> &str {
        self.claim.config.name()
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        self.claim.config.read(offset, width)
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.claim.config.write(offset, width, value)
    }

    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        *self.bars.get(usize::from(index))?
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let info = self
            .bar_info(index)
            .ok_or_else(|| Error::Unsupported(format!("{}: it has no BAR {index}", self.name())))?;
        Ok(Bar::new(Arc::new(Window { claim: Arc::clone(&self.claim), index, info })))
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn irq_limits(&self) -> IrqLimits {
        self.irqs.limits()
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let disable = |before| self.claim.set_irqs(before, IRQ_DATA_NONE | IRQ_TRIGGER, 0..0, &[]);
        self.irqs.switch(self.name(), (kind, count), disable, || self.enable(kind, count))
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.claim.config.set_bus_master(on)
    }

    fn reset(&self) -> Result<(), Error> {
        self.claim.reset()
    }

    fn removal(&self) -> Option<&Irq> {
        Some(&self.removal)
    }
}

impl VfioUser {
    fn enable(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let table = self.claim.config.filter().msix.filter(|_| kind == IrqKind::MsiX);
        let control: Option<Arc<dyn IrqControl>> = match (kind, table) {
            (IrqKind::Intx, _) => Some(self.claim.clone()),
            (_, Some(table)) => Some(table.control(self.bar(table.bar)?)),
            (_, None) => None,
        };
        let irq = |vector: u16| {
            let fd = eventfd::new()?;
            // One at a time: more descriptors than one need not be taken. [vfio-user, max_msg_fds]
            self.claim.set_irqs(
                kind,
                IRQ_DATA_EVENTFD | IRQ_TRIGGER,
                vector..vector + 1,
                &[fd.as_fd()],
            )?;
            Ok(Irq::new(fd, kind, vector, control.clone()))
        };
        (0..count).map(irq).collect()
    }
}
