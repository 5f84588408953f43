//! One client's requests, answered.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::irq::IrqKind;
use ring3_device::{Access, Bar, Error};
use ring3_spec::vfio_user::*;
use ring3_spec::{pci, vfio_user};
use rustix::io::Errno;

use super::VfioUserDevice;
use super::channel::{Body, Channel, answer};
use super::memory::{ClientMemory, MAX_MAPS};

/// Bytes of conventional configuration space.
const CONFIG_LEN: u64 = 256;
const KINDS: [IrqKind; 3] = [IrqKind::Intx, IrqKind::Msi, IrqKind::MsiX];

/// A connected client. Dropping it gives the device up as its driver's death would.
pub(super) struct Session {
    device: Arc<dyn VfioUserDevice>,
    bars: [Option<Bar>; pci::BAR_COUNT as usize],
    // Gone after `drop`, which has stopped the device by then.
    memory: ClientMemory,
    versioned: bool,
}

impl Session {
    pub(super) fn new(device: Arc<dyn VfioUserDevice>) -> Self {
        let bars = std::array::from_fn(|index| device.bar(index as u8).ok());
        let memory = ClientMemory::new(Arc::clone(device.dma().iommu()));
        Self { device, bars, memory, versioned: false }
    }

    /// Answers until the client goes.
    pub(super) fn run(&mut self, channel: &Channel) -> io::Result<()> {
        loop {
            let (request, body) = match channel.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(()),
                Err(error) if has_left(&error) => return Ok(()),
                // A client may be silent, but not before it has said what it is.
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.versioned => continue,
                Err(error) => return Err(error),
            };
            if request.flags & TYPE != 0 {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "an answer, and nothing was asked",
                ));
            }
            let reply = self.handle(request.command, body);
            if let Err(error) = &reply {
                tracing::warn!(command = request.command, "refused: {error}");
            }
            let quiet = request.flags & NO_REPLY != 0;
            let sent = match reply {
                _ if quiet => Ok(()),
                Ok(Reply { fixed, data }) => {
                    channel.send(answer(&request, 0, 0), [&fixed, &data], &[])
                }
                Err(error) => channel.send(answer(&request, ERROR, errno(&error)), [&[], &[]], &[]),
            };
            match sent {
                Err(error) if has_left(&error) => return Ok(()),
                sent => sent?,
            }
            if !self.versioned {
                return Err(io::Error::new(ErrorKind::InvalidData, "no version was agreed on"));
            }
        }
    }

    fn handle(&mut self, command: u16, Body { bytes, fds }: Body) -> Result<Reply, Error> {
        if !self.versioned && command != command::VERSION {
            return Err(Error::Invalid("the first message must agree on a version".into()));
        }
        match command {
            command::VERSION => self.version(parse(Version::take(&bytes))?.0),
            command::DMA_MAP => {
                self.memory.map(&parse(DmaMap::take(&bytes))?.0, fds.into_iter().next())?;
                Ok(Reply::default())
            }
            command::DMA_UNMAP => {
                let (wish, _) = parse(DmaUnmap::take(&bytes))?;
                self.memory.unmap(&wish)?;
                Ok(wish.to_bytes().into())
            }
            command::DEVICE_GET_INFO => {
                let flags = DEVICE_PCI | DEVICE_RESETTABLE;
                let info = DeviceInfo {
                    argsz: DeviceInfo::LEN as u32,
                    flags,
                    regions: PCI_REGIONS,
                    irqs: PCI_IRQS,
                };
                Ok(info.to_bytes().into())
            }
            command::DEVICE_GET_REGION_INFO => {
                self.region_info(parse(RegionInfo::take(&bytes))?.0.index)
            }
            command::DEVICE_GET_IRQ_INFO => self.irq_info(parse(IrqInfo::take(&bytes))?.0.index),
            command::DEVICE_SET_IRQS => self.set_irqs(&parse(SetIrqs::take(&bytes))?.0, fds),
            command::REGION_READ => self.read(&parse(RegionAccess::take(&bytes))?.0),
            command::REGION_WRITE => {
                let (access, data) = parse(RegionAccess::take(&bytes))?;
                self.write(&access, data)
            }
            command::DEVICE_RESET => {
                self.device.reset()?;
                Ok(Reply::default())
            }
            other => Err(Error::Unsupported(format!("command {other}"))),
        }
    }

    fn version(&mut self, version: Version) -> Result<Reply, Error> {
        let (major, minor) = vfio_user::VERSION;
        if self.versioned || version.major != major {
            return Err(Error::Invalid(format!(
                "version {}.{}; this is {major}.{minor}, and it is agreed on once",
                version.major, version.minor
            )));
        }
        self.versioned = true;
        let can = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FDS},\"max_data_xfer_size\":{MAX_DATA},\
             \"max_dma_maps\":{MAX_MAPS}}}}}\0"
        );
        let fixed = Version { major, minor: minor.min(version.minor) }.to_bytes().to_vec();
        Ok(Reply { fixed, data: can.into_bytes() })
    }

    fn region_len(&self, index: u32) -> Option<u64> {
        match index {
            CONFIG_REGION => Some(CONFIG_LEN),
            0..PCI_REGIONS => {
                Some(self.bars.get(index as usize).and_then(Option::as_ref).map_or(0, Bar::len))
            }
            _ => None,
        }
    }

    fn region_info(&self, index: u32) -> Result<Reply, Error> {
        let size =
            self.region_len(index).ok_or_else(|| Error::Invalid(format!("region {index}")))?;
        let flags = if size > 0 { REGION_READ_WRITE } else { 0 };
        let argsz = RegionInfo::LEN as u32;
        Ok(RegionInfo { argsz, flags, index, cap_offset: 0, size, offset: 0 }.to_bytes().into())
    }

    /// Vectors of kind `index`; none of those that are not interrupts of the device.
    fn vectors(&self, index: u32) -> Result<u16, Error> {
        let limits = self.device.irq_limits();
        let counts = [limits.intx, limits.msi, limits.msix, 0, 0];
        counts
            .get(index as usize)
            .copied()
            .ok_or_else(|| Error::Invalid(format!("interrupts of kind {index}")))
    }

    fn irq_info(&self, index: u32) -> Result<Reply, Error> {
        let pin = if index == 0 { IRQ_MASKABLE | IRQ_AUTOMASKED } else { 0 };
        let count = self.vectors(index)?.into();
        Ok(IrqInfo { argsz: IrqInfo::LEN as u32, flags: IRQ_EVENTFD | pin, index, count }
            .to_bytes()
            .into())
    }

    fn set_irqs(&mut self, wish: &SetIrqs, fds: Vec<OwnedFd>) -> Result<Reply, Error> {
        let &SetIrqs { flags, index, start, count, .. } = wish;
        let have = self.vectors(index)?;
        if start.checked_add(count).is_none_or(|end| end > have.into())
            || fds.len() > count as usize
        {
            return Err(Error::Invalid(format!(
                "vectors {start}+{count} of {have}, with {} descriptors",
                fds.len()
            )));
        }
        // Both fit into 16 bits: they are at most `have`.
        let (first, last) = (start as u16, (start + count) as u16);
        let kind = *KINDS
            .get(index as usize)
            .ok_or_else(|| Error::Invalid(format!("interrupts of kind {index}")))?;
        match flags {
            flags if flags == IRQ_DATA_NONE | IRQ_TRIGGER && count == 0 => self.device.untie(),
            flags if flags == IRQ_DATA_EVENTFD | IRQ_TRIGGER && count > 0 => {
                let mut signals: Vec<_> = fds.into_iter().map(Some).collect();
                signals.resize_with(count as usize, || None);
                self.device.tie(kind, first, signals);
            }
            flags if kind == IrqKind::Intx && flags == IRQ_DATA_NONE | IRQ_MASK => {
                (first..last).for_each(|vector| self.device.set_mask(vector, true));
            }
            flags if kind == IrqKind::Intx && flags == IRQ_DATA_NONE | IRQ_UNMASK => {
                (first..last).for_each(|vector| self.device.set_mask(vector, false));
            }
            _ => {
                return Err(Error::Unsupported(format!(
                    "flags {flags:#x} for {count} interrupts {kind:?}"
                )));
            }
        }
        Ok(Reply::default())
    }

    /// Fails if an access does not lie within its region.
    fn check(&self, access: &RegionAccess) -> Result<(), Error> {
        let &RegionAccess { offset, region, count } = access;
        let len = self.region_len(region).unwrap_or(0);
        if count == 0
            || count > MAX_DATA
            || offset.checked_add(count.into()).is_none_or(|end| end > len)
        {
            return Err(Error::Invalid(format!(
                "bytes {offset:#x}+{count:#x} of region {region}, which has {len:#x}"
            )));
        }
        Ok(())
    }

    fn read(&self, access: &RegionAccess) -> Result<Reply, Error> {
        self.check(access)?;
        let mut data = Vec::with_capacity(access.count as usize);
        for (at, width) in words(access) {
            let value = match self.bars.get(access.region as usize) {
                Some(bar) => bar.as_ref().map_or(u64::MAX, |bar| bar.read(at, width)),
                None => self.device.config_read(at, width).into(),
            };
            data.extend(&value.to_le_bytes()[..width]);
        }
        Ok(Reply { fixed: access.to_bytes().to_vec(), data })
    }

    fn write(&self, access: &RegionAccess, mut data: &[u8]) -> Result<Reply, Error> {
        self.check(access)?;
        if data.len() != access.count as usize {
            return Err(Error::Invalid(format!(
                "a write of {} bytes with {} bytes of data",
                access.count,
                data.len()
            )));
        }
        for (at, width) in words(access) {
            let (word, rest) = data.split_at(width);
            data = rest;
            let value = word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            match self.bars.get(access.region as usize) {
                Some(bar) => bar.iter().for_each(|bar| bar.write(at, width, value)),
                None => self.device.platform_write(at, width, value as u32),
            }
        }
        Ok(access.to_bytes().into())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.device.restore();
    }
}

/// What an answer carries behind its header.
#[derive(Default)]
struct Reply {
    fixed: Vec<u8>,
    data: Vec<u8>,
}

impl<const N: usize> From<[u8; N]> for Reply {
    fn from(fixed: [u8; N]) -> Self {
        Self { fixed: fixed.to_vec(), data: Vec::new() }
    }
}

/// So ends the connection of a process that is killed.
fn has_left(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
    )
}

fn parse<T>(taken: Option<T>) -> Result<T, Error> {
    taken.ok_or_else(|| Error::Invalid("a message that is too short for its command".into()))
}

/// The single accesses that `access` is made of, each aligned, the widest first; configuration
/// space has none of 8 bytes.
fn words(access: &RegionAccess) -> impl Iterator<Item = (u64, usize)> {
    let widest = if access.region == CONFIG_REGION { 4 } else { 8 };
    let (mut at, end) = (access.offset, access.offset + u64::from(access.count));
    std::iter::from_fn(move || {
        let fits = |width: &u64| at.is_multiple_of(*width) && at + width <= end;
        let width = [widest, 4, 2, 1].into_iter().find(fits).filter(|_| at < end)?;
        let word = (at, width as usize);
        at += width;
        Some(word)
    })
}

fn errno(error: &Error) -> u32 {
    let errno = match error {
        Error::Gone => Errno::NODEV,
        Error::Unsupported(_) => Errno::NOTSUP,
        Error::Busy(_) => Errno::EXIST,
        Error::Claim(_) | Error::NoMemory { .. } => Errno::NOMEM,
        _ => Errno::INVAL,
    };
    errno.raw_os_error() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_cut_into_aligned_words() {
        let cut = |offset, count, region| {
            words(&RegionAccess { offset, region, count }).collect::<Vec<_>>()
        };
        assert_eq!(cut(0x1000, 8, 0), [(0x1000, 8)]);
        assert_eq!(cut(0x14, 8, 0), [(0x14, 4), (0x18, 4)]);
        assert_eq!(cut(3, 6, CONFIG_REGION), [(3, 1), (4, 4), (8, 1)]);
        assert_eq!(cut(0, 256, CONFIG_REGION).len(), 64);
    }
}
