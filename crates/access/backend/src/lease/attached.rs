//! The driver's half: a device over a lease.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ring3_device::config::{self, Filter};
use ring3_device::dma::{Arena, Dma, Iommu, Pages, Region, SavedArena};
use ring3_device::irq::{Irq, IrqControl, IrqKind, IrqLimits};
use ring3_device::{Access, Bar, BarInfo, Device, Error};
use ring3_lease::{Answer, DeviceDescription, Kind, LeasedBar, Memory, Msix, Request};
use ring3_spec::pci;

use super::Lease;
use super::link::LeaseClient;
use crate::{eventfd, vfio};

/// A device that somebody else holds. Its drop does nothing to it.
struct Attached {
    link: Arc<LeaseClient>,
    facts: DeviceDescription,
    dma: Dma,
    /// By index. What can be mapped of them is; the device's descriptor is not kept.
    bars: Vec<Option<Bar>>,
    msix: Option<config::Msix>,
    removal: Irq,
    bus_errors: Option<Irq>,
}

/// The device of `lease`, for one driver. Its arena is all free; or it is as the driver before had
/// `saved` it, which has handed the device over.
pub fn attach(lease: Lease, saved: Option<&SavedArena>) -> Result<Arc<dyn Device>, Error> {
    attach_with(lease, saved, false)
}

/// The device of `lease`, of which nothing was stopped when its driver died, which had recorded its
/// arena as `saved`. What that had mapped stays, as the device may still reach for it;
/// [`Error::Busy`] if anything is mapped that is not in the record.
pub fn attach_running(lease: Lease, saved: &SavedArena) -> Result<Arc<dyn Device>, Error> {
    attach_with(lease, Some(saved), true)
}

fn attach_with(
    lease: Lease,
    saved: Option<&SavedArena>,
    runs: bool,
) -> Result<Arc<dyn Device>, Error> {
    let (link, facts, fds) = LeaseClient::open(lease.into())?;
    let link = Arc::new(link);
    let mut fds = fds.into_iter();
    let mut next = || {
        fds.next().ok_or_else(|| {
            Error::Claim(format!("{}: a descriptor is missing from its lease", facts.name))
        })
    };
    let mut regions = Vec::new();
    for memory in facts.arena.iter().chain(&facts.mapped) {
        let len = usize::try_from(memory.len)
            .map_err(|_| Error::Invalid(format!("{}: a region of {memory:?}", facts.name)))?;
        regions.push((*memory, Arc::new(Region::registered(next()?, memory.offset, len)?)));
    }
    let removal = if facts.removal { next()? } else { eventfd::new()? };
    // Edges that cannot be masked, as an MSI would be.
    let edge = |fd| Irq::new(fd, IrqKind::Msi, 0, None);
    let bus_errors = if facts.bus_errors { Some(edge(next()?)) } else { None };
    let device = if facts.device { Some(next()?) } else { None };
    let bars = (0..)
        .zip(&facts.bars)
        .map(|(index, bar)| {
            Some(self::bar(&link, &facts.name, (index, bar.as_ref()?), device.as_ref()))
        })
        .collect();
    // By it, configuration space could be written and interrupts set up behind the holder's back.
    drop(device);
    link.watch(eventfd::share(&removal)?)?;
    let arena = arena(&link, &facts, regions, (saved, runs))?;
    let dma = Dma::new(arena, Arc::new(Mapper::new(&link, &facts))).below(facts.below);
    let msix = match facts.function {
        Some(function) => function.msix.map(|Msix { at, bar, offset, entries }| config::Msix {
            at,
            bar,
            offset,
            entries,
        }),
        None => Filter::new(|offset, width| config_read(&link, offset, width)).msix,
    };
    Ok(Arc::new(Attached { dma, bars, msix, removal: edge(removal), bus_errors, facts, link }))
}

/// The arena over the regions of the lease: fresh, or as it was `saved`. What is mapped besides is
/// given back, as nobody knows of it any more; unless the device still `runs`.
fn arena(
    link: &LeaseClient,
    facts: &DeviceDescription,
    regions: Vec<(Memory, Arc<Region>)>,
    (saved, runs): (Option<&SavedArena>, bool),
) -> Result<Arena, Error> {
    let fresh = SavedArena::fresh(facts.arena.iter().map(|memory| (memory.iova, memory.len)))
        .with_persistent_words();
    let saved = saved.unwrap_or(&fresh);
    for Memory { iova, len, .. } in facts
        .mapped
        .iter()
        .filter(|memory| saved.regions.iter().all(|region| region.iova != memory.iova))
    {
        if runs {
            return Err(Error::Busy(format!(
                "{}: its driver has mapped more than it had recorded: fence it",
                facts.name
            )));
        }
        link.order(&Request::Unmap { iova: *iova, len: *len }, &[])?;
    }
    let find = |iova| {
        regions.iter().find(|(memory, _)| memory.iova == iova).map(|(_, region)| Arc::clone(region))
    };
    let missing = |iova| {
        Error::Invalid(format!(
            "{}: what was saved has a region at {iova:#x}, and the lease has none",
            facts.name
        ))
    };
    let regions =
        saved.regions.iter().map(|region| find(region.iova).ok_or_else(|| missing(region.iova)));
    Arena::adopt(regions.collect::<Result<_, _>>()?, saved)
}

/// BAR `index`: mapped as far as that goes, and the rest by the holder.
fn bar(
    link: &Arc<LeaseClient>,
    name: &str,
    (index, bar): (u8, &LeasedBar),
    device: Option<&OwnedFd>,
) -> Bar {
    let registers = Registers { link: Arc::clone(link), index, len: bar.len, ports: bar.ports };
    match device.zip(bar.window.as_ref()) {
        Some((device, window)) => vfio::window(name, device.as_fd(), bar.len, window, registers),
        None => Bar::new(Arc::new(registers)),
    }
}

fn config_read(link: &LeaseClient, offset: u64, width: usize) -> u32 {
    link.value(&Request::ConfigRead { offset, width: width as u8 }) as u32
}

impl Attached {
    fn bar_facts(&self, index: u8) -> Option<&LeasedBar> {
        self.facts.bars.get(usize::from(index))?.as_ref()
    }

    /// What masks the vectors of `kind`, if anything does: the table of MSI-X where it can be
    /// reached, and else the holder.
    fn control(
        &self,
        kind: IrqKind,
        count: u16,
        maskable: bool,
    ) -> Result<Option<Arc<dyn IrqControl>>, Error> {
        if let Some(table) = self.msix.filter(|_| kind == IrqKind::MsiX) {
            let bar = self.bar(table.bar)?;
            if !self.facts.device || table.entry(count) <= bar.mapped_len() {
                return Ok(Some(table.control(bar)));
            }
        }
        Ok(maskable.then(|| Arc::new(Masks(Arc::clone(&self.link))) as _))
    }
}

impl Device for Attached {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn config_read(&self, offset: u64, width: usize) -> u32 {
        match self.facts.function {
            Some(function) if (offset, width) == (pci::VENDOR_ID, 4) => function.ids,
            Some(function) if (offset, width) == (pci::REVISION, 4) => function.class,
            _ => config_read(&self.link, offset, width),
        }
    }

    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        self.link.order(&Request::ConfigWrite { offset, width: width as u8, value }, &[])
    }

    fn bar_info(&self, index: u8) -> Option<BarInfo> {
        self.bar_facts(index).map(|bar| BarInfo { len: bar.len, ports: bar.ports })
    }

    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let bar = self.bars.get(usize::from(index)).and_then(Option::as_ref);
        bar.cloned()
            .ok_or_else(|| Error::Unsupported(format!("{}: it has no BAR {index}", self.name())))
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn irq_limits(&self) -> IrqLimits {
        let vectors = self.facts.vectors;
        IrqLimits { intx: vectors.intx, msi: vectors.msi, msix: vectors.msix }
    }

    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        let asked = match kind {
            IrqKind::Intx => Kind::Intx,
            IrqKind::Msi => Kind::Msi,
            IrqKind::MsiX => Kind::MsiX,
        };
        match self.link.ask(&Request::Irqs { kind: asked, count }, &[])? {
            (Answer::Vectors { maskable }, fds) if fds.len() == usize::from(count) => {
                let control = if count > 0 { self.control(kind, count, maskable)? } else { None };
                Ok(fds
                    .into_iter()
                    .zip(0..)
                    .map(|(fd, vector)| Irq::new(fd, kind, vector, control.clone()))
                    .collect())
            }
            _ => Err(self.link.broken()),
        }
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        self.link.order(&Request::BusMaster { on }, &[])
    }

    fn reset(&self) -> Result<(), Error> {
        self.link.order(&Request::Reset, &[])
    }

    fn removal(&self) -> Option<&Irq> {
        Some(&self.removal)
    }

    fn bus_errors(&self) -> Option<&Irq> {
        self.bus_errors.as_ref()
    }
}

/// Registers behind the holder. Writes to memory are posted; one to a port has happened when it
/// returns. [PCI 3.2.5]
struct Registers {
    link: Arc<LeaseClient>,
    index: u8,
    len: u64,
    ports: bool,
}

impl Access for Registers {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        self.link.value(&Request::Read { bar: self.index, offset, width: width as u8 })
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        let write = Request::Write {
            bar: self.index,
            offset,
            width: width as u8,
            value,
            posted: !self.ports,
        };
        if self.ports {
            // A refusal says what a read would: that there is nothing.
            let _ = self.link.order(&write, &[]);
        } else {
            self.link.post(&write);
        }
    }
}

/// Vectors that the holder masks.
struct Masks(Arc<LeaseClient>);

impl IrqControl for Masks {
    fn mask(&self, vector: u16) -> Result<(), Error> {
        self.0.order(&Request::Mask { vector, masked: true }, &[])
    }
    fn unmask(&self, vector: u16) -> Result<(), Error> {
        self.0.order(&Request::Mask { vector, masked: false }, &[])
    }
}

/// The holder's address translation.
struct Mapper {
    link: Arc<LeaseClient>,
    ranges: Vec<RangeInclusive<u64>>,
    page_size: usize,
    can_map: bool,
    bypassable: bool,
}

impl Mapper {
    fn new(link: &Arc<LeaseClient>, facts: &DeviceDescription) -> Self {
        let page_size = usize::try_from(facts.page_size).ok().filter(|size| size.is_power_of_two());
        Self {
            link: Arc::clone(link),
            ranges: facts.ranges.iter().map(|&(first, last)| first..=last).collect(),
            page_size: page_size.unwrap_or_else(rustix::param::page_size),
            can_map: facts.can_map,
            bypassable: facts.bypassable,
        }
    }
}

impl Iommu for Mapper {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        let (file, offset) = pages.file().ok_or_else(|| {
            Error::Unsupported("memory without a descriptor cannot be shared".into())
        })?;
        self.link
            .order(&Request::Map(Memory { iova, offset, len: pages.len() as u64 }), &[file.as_fd()])
    }

    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        self.link.order(&Request::Unmap { iova, len: len as u64 }, &[])
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.ranges.clone()
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn can_map(&self, pages: &Pages) -> bool {
        self.can_map && pages.file().is_some()
    }

    fn is_bypassable(&self) -> bool {
        self.bypassable
    }
}
