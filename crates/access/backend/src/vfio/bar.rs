//! BARs: mapped memory where the kernel allows it, system calls where it does not (holes in the
//! mapping); ports by system calls, or by instruction if the user wants that.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Access, Bar, BarInfo, Error};
use ring3_lease::Window;
use ring3_pci::Host;
use ring3_spec::pci;

use super::claim::Claim;
use super::count::Counts;
use super::irq;
use super::region::Region;
use crate::guard::{self, Mapped, Mapping};
use crate::ports::{self, PortRange, Ports};

/// Memory of a function: what is mapped of it, and a way to the rest.
struct Memory<R> {
    areas: Vec<Area>,
    /// Bytes.
    size: u64,
    /// What is not mapped. It keeps the claim, where that is here.
    rest: R,
}

/// A part that is mapped; nearly always the whole BAR.
struct Area {
    start: u64,
    /// Bytes of the BAR, which may end within the mapping's last page.
    len: u64,
    mapping: Mapping,
}

impl<R: Access> Memory<R> {
    /// Maps what can be mapped of `region` of `device`, which may be closed afterwards. A part for
    /// which that fails is reached by the `rest`, slower but as well.
    fn new(name: &str, device: impl AsFd, region: &Region, rest: R) -> Self {
        let map = |area: &std::ops::Range<u64>| {
            let len = usize::try_from(area.end - area.start).ok()?;
            match Mapping::new(&device, region.offset + area.start, len) {
                Ok(mapping) => {
                    Some(Area { start: area.start, len: area.end - area.start, mapping })
                }
                Err(error) => {
                    tracing::warn!("{name}: BAR bytes {area:#x?} are not mapped: {error}");
                    None
                }
            }
        };
        Self { areas: region.mappable.iter().filter_map(map).collect(), size: region.size, rest }
    }

    fn mapped(&self, offset: u64, width: usize) -> Option<(&Mapping, usize)> {
        self.areas.iter().find_map(|area| {
            let at = offset.checked_sub(area.start)?;
            (at.checked_add(width as u64)? <= area.len).then_some((&area.mapping, at as usize))
        })
    }

    /// Whether one access of 64 bits reaches `offset`; holes take 32 bits at a time.
    fn is_wide(&self, offset: u64) -> bool {
        self.mapped(offset, 8).is_some() && offset.is_multiple_of(8)
    }
}

impl<R: Access> Access for Memory<R> {
    fn len(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        if width == 8 && !self.is_wide(offset) {
            return self.read_halves(offset);
        }
        match self.mapped(offset, width) {
            Some((mapping, at)) => mapping.read(at, width),
            None => self.rest.read(offset, width),
        }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if width == 8 && !self.is_wide(offset) {
            return self.write_halves(offset, value);
        }
        match self.mapped(offset, width) {
            Some((mapping, at)) => mapping.write(at, width, value),
            None => self.rest.write(offset, width, value),
        }
    }
}

impl<R: Access> Mapped for Memory<R> {
    fn window(&self) -> Option<(&Mapping, usize, u64)> {
        self.areas.iter().find(|area| area.start == 0).map(|first| (&first.mapping, 0, first.len))
    }
}

/// A region by system calls at the device's descriptor.
struct Unmapped {
    claim: Arc<Claim>,
    region: Region,
}

impl Unmapped {
    /// Where in the device's descriptor `width` bytes at `offset` of the BAR lie.
    fn place(&self, offset: u64, width: usize) -> Option<u64> {
        let fits = offset.checked_add(width as u64)? <= self.region.size
            && offset.is_multiple_of(width as u64);
        fits.then_some(self.region.offset + offset)
    }
}

impl Access for Unmapped {
    fn len(&self) -> u64 {
        self.region.size
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        let mut bytes = [0; 8];
        let read = self
            .place(offset, width)
            .map(|at| rustix::io::pread(&*self.claim, &mut bytes[..width], at));
        if read == Some(Ok(width)) { u64::from_le_bytes(bytes) } else { u64::MAX }
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if let Some(at) = self.place(offset, width) {
            // A device that is gone loses writes; there is nobody to tell.
            let _ = rustix::io::pwrite(&*self.claim, &value.to_le_bytes()[..width], at);
        }
    }
}

/// What BAR `index` of `claim` is; `None` if it has none.
pub(super) fn info(claim: &Claim, index: u8) -> Option<BarInfo> {
    let region = claim.region(index).ok().filter(|region| region.size > 0)?;
    let ports = ports(claim, index, &region).ok()?;
    Some(BarInfo { len: ports.as_ref().map_or(region.size, Ports::len), ports: ports.is_some() })
}

/// BAR `index` of `claim`.
pub(super) fn open(claim: &Arc<Claim>, index: u8) -> Result<Bar, Error> {
    let region = claim.region(index)?;
    if region.size == 0 {
        return Err(Error::Unsupported(format!("{}: it has no BAR {index}", claim.name())));
    }
    Ok(match ports(claim, index, &region)? {
        Some(ports) => ports::bar(ports, claim.clone()),
        None => {
            let rest = Unmapped { claim: claim.clone(), region: region.clone() };
            guard::bar(Arc::new(Memory::new(claim.name(), claim, &region, rest)))
        }
    })
}

/// Where the BARs of a claimed function are in the device's file, for another process.
pub(crate) struct Windows {
    claim: Arc<Claim>,
    windows: Vec<Option<Window>>,
    counts: Mutex<Counts>,
}

impl Windows {
    pub(super) fn new(claim: &Arc<Claim>) -> Result<Self, Error> {
        let window = |index| {
            let Region { size, offset, mappable } = claim.region(index)?;
            let mappable = mappable.into_iter().map(|area| (area.start, area.end)).collect();
            Ok((size > 0).then_some(Window { offset, mappable }))
        };
        let windows = (0..pci::BAR_COUNT).map(window).collect::<Result<_, Error>>()?;
        Ok(Self { claim: Arc::clone(claim), windows, counts: Mutex::default() })
    }

    pub(super) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }

    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.claim.device()
    }

    /// How many interrupts of the function the kernel has taken, if it says so; `serial` changes
    /// whenever others are enabled.
    pub(crate) fn interrupts(&self, serial: u64) -> Option<u64> {
        let host = Host::this();
        let folder = host.path(&format!("sys/bus/pci/devices/{}", self.claim.address()));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.read(&folder, &host.path("sys/kernel/irq"), serial)
    }

    /// See [`irq::hold_interrupts`].
    pub(crate) fn hold_interrupts(
        &self,
        kind: IrqKind,
        irqs: &[Irq],
        held: bool,
    ) -> Result<(), Error> {
        irq::hold_interrupts(&self.claim, kind, irqs, held)
    }

    pub(crate) fn window(&self, index: u8) -> Option<Window> {
        self.windows.get(usize::from(index))?.clone()
    }
}

/// The BAR of `len` bytes that is the `window` of `device`, which somebody else has claimed, who
/// answers for the `rest`. The device is not kept.
pub(crate) fn window(
    name: &str,
    device: BorrowedFd<'_>,
    len: u64,
    window: &Window,
    rest: impl Access,
) -> Bar {
    // What of it makes no sense is not mapped.
    let offset = window.offset.min(u64::MAX - len);
    let inside = |&(start, end): &(u64, u64)| (start < end && end <= len).then_some(start..end);
    let region =
        Region { size: len, offset, mappable: window.mappable.iter().filter_map(inside).collect() };
    guard::bar(Arc::new(Memory::new(name, device, &region, rest)))
}

/// The ports that BAR `index` means, if it is of ports: those that the kernel lists for the
/// function, and nothing else of `region`.
fn ports(claim: &Claim, index: u8, region: &Region) -> Result<Option<Ports>, Error> {
    let function = claim.function()?;
    let Some(resource) = function.bars.iter().find(|bar| bar.index == index && bar.port) else {
        return Ok(None);
    };
    let range = PortRange::of(&function, resource)?;
    if resource.size != region.size {
        return Err(Error::Invalid(format!(
            "{}: BAR {index} has {} ports here and {} there",
            claim.name(),
            region.size,
            resource.size
        )));
    }
    if claim.direct_ports() {
        range.check_owner(&function, "vfio")?;
    }
    let device = claim
        .device()
        .try_clone_to_owned()
        .map_err(|error| Error::os("copying a descriptor", error))?;
    Ok(Some(Ports::new(range, claim.direct_ports(), device.into(), region.offset)))
}
