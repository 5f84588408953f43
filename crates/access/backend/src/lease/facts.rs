//! What a driver is told of the device that it gets.

use std::os::fd::{AsFd, BorrowedFd};

use ring3_device::config::Filter;
use ring3_device::dma::Pages;
use ring3_device::{Device, Error};
use ring3_lease::{
    Answer, DeviceDescription, Function, LeasedBar, MAX_FDS, Memory, Msix, VERSION, Vectors,
};
use ring3_spec::pci;

use super::desk::{LeaseServer, Reply};
use crate::vfio::Windows;

/// What stays the same as long as the device is claimed, asked for once: users wait for each new
/// driver, who would wait for each answer of the kernel's.
pub(super) struct Constants {
    bars: Vec<Option<LeasedBar>>,
    function: Function,
}

impl Constants {
    pub(super) fn of(device: &dyn Device, windows: Option<&Windows>) -> Self {
        let bar = |index| {
            let info = device.bar_info(index)?;
            let window = windows.filter(|_| !info.ports).and_then(|windows| windows.window(index));
            Some(LeasedBar { len: info.len, ports: info.ports, window })
        };
        let msix = Filter::new(|offset, width| device.config_read(offset, width)).msix;
        let function = Function {
            ids: device.config_read(pci::VENDOR_ID, 4),
            class: device.config_read(pci::REVISION, 4),
            msix: msix.map(|msix| Msix {
                at: msix.at,
                bar: msix.bar,
                offset: msix.offset,
                entries: msix.entries,
            }),
        };
        Self { bars: (0..pci::BAR_COUNT).map(bar).collect(), function }
    }
}

impl LeaseServer {
    /// What the driver is told first, and the descriptors beside it.
    pub(super) fn facts(&self) -> Result<Reply, Error> {
        let (device, iommu, limits) =
            (&self.device, self.device.dma().iommu(), self.device.irq_limits());
        let mut fds = Vec::new();
        let mut copy = |fd: BorrowedFd<'_>| {
            fds.push(
                fd.try_clone_to_owned()
                    .map_err(|error| Error::os("copying a descriptor", error))?,
            );
            Ok::<_, Error>(())
        };
        let mut memory = |iova, pages: Pages| {
            let (file, offset) =
                pages.file().ok_or_else(|| Error::Unsupported("memory that is no file".into()))?;
            copy(file).map(|()| Memory { iova, offset, len: pages.len() as u64 })
        };
        let arena = device
            .dma()
            .arena()
            .regions()
            .map(|placed| memory(placed.iova, placed.region.pages()?));
        let arena = arena.collect::<Result<_, _>>()?;
        let mut asked = self.asked();
        if asked.mapped.len() > MAX_FDS / 2 {
            return Err(Error::Busy(
                "its last driver has mapped too much to be handed over: fence it".into(),
            ));
        }
        let mapped = asked
            .mapped
            .iter()
            .map(|(&iova, mapping)| memory(iova, mapping.pages.clone()))
            .collect::<Result<_, _>>()?;
        let errors = device.bus_errors();
        errors
            .iter()
            .map(AsFd::as_fd)
            .chain(self.windows.as_ref().map(Windows::device))
            .try_for_each(copy)?;
        // What a driver has mapped is a file's, as the arena is.
        let can_map = device
            .dma()
            .arena()
            .regions()
            .all(|placed| placed.region.pages().is_ok_and(|pages| iommu.can_map(&pages)));
        let most = |count: u16| count.min(MAX_FDS as u16);
        let facts = DeviceDescription {
            version: VERSION,
            name: device.name().to_owned(),
            bars: self.constants.bars.clone(),
            vectors: Vectors {
                intx: most(limits.intx),
                msi: most(limits.msi),
                msix: most(limits.msix),
            },
            arena,
            mapped,
            ranges: iommu.ranges().iter().map(|range| (*range.start(), *range.end())).collect(),
            below: self.below,
            page_size: iommu.page_size() as u64,
            can_map,
            bypassable: iommu.is_bypassable(),
            // Whoever has it can signal it: a driver that does would take the disk from its users,
            // as if the platform had asked. The link tells it that its holder has ended.
            removal: false,
            bus_errors: errors.is_some(),
            device: self.windows.is_some(),
            function: Some(self.constants.function),
        };
        asked.agreed = true;
        self.notify(&asked);
        Ok((Answer::Facts(Box::new(facts)), fds))
    }
}
