//! From a source of disks to disks that can be exported.

use std::sync::Arc;

use ring3_class::block::Null;
use ring3_export::ublk;

use crate::Error;
use crate::open::{Attached, Claim, Requirements};

/// What to drive, and with which driver.
#[derive(Clone, Debug)]
pub enum Source {
    /// No device: requests end at once. The floor of measurements.
    Null {
        /// Bytes of the disk.
        bytes: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// A device with disks.
    Device(Box<Claim>),
}

impl Source {
    /// As the user named it.
    pub fn name(&self) -> String {
        match self {
            Self::Null { .. } => "null".into(),
            Self::Device(claim) => claim.device.to_string(),
        }
    }
}

/// Claims the device and starts its driver, with room in its arena for exports of all its disks
/// with `options`, and for `more` bytes.
pub fn attach(source: &Source, options: &ublk::Options, more: usize) -> Result<Attached, Error> {
    match source {
        Source::Null { bytes, block_size } => {
            let disk = Null::new(
                *block_size,
                bytes.checked_div(u64::from(*block_size)).unwrap_or(0),
                options.buffer_bytes() + more,
            );
            let disk =
                disk.map_err(|error| Error::Device { device: source.name(), source: error })?;
            Ok(Attached {
                disks: vec![Arc::new(disk)],
                driven: None,
                nics: Vec::new(),
                refused: Vec::new(),
            })
        }
        Source::Device(claim) => {
            let attached = with_room(|needs| claim.start(needs), options, more)?;
            attached.warn();
            if attached.disks.is_empty() {
                return Err(Error::NoDisk { device: source.name() });
            }
            Ok(attached)
        }
    }
}

/// Disks that get as many queues as they want though nobody has counted them yet. A queue that is
/// not used costs its interrupt.
pub(crate) const EXPECTED: usize = 8;

/// Opens a device with room for exports of all its disks, which only the opened device counts.
fn with_room(
    open: impl Fn(&Requirements) -> Result<Attached, Error>,
    options: &ublk::Options,
    more: usize,
) -> Result<Attached, Error> {
    let queues = |disks: usize| (usize::from(options.queues) * disks).min(u16::MAX.into()) as u16;
    let needs = |queues, disks| Requirements {
        queues,
        arena: options.arena_bytes(disks) + more,
        max_transfer: Some(options.max_bytes),
        poll: None,
    };
    let attached = open(&needs(queues(EXPECTED), 1))?;
    let disks = attached.disks.len();
    let Some(driven) = attached.driven.as_ref().filter(|_| disks > 1) else { return Ok(attached) };
    let dma = driven.device().dma();
    let missing = (options.arena_bytes(disks) + more).saturating_sub(driven.arena_bytes());
    match if missing > 0 { dma.grow(missing) } else { Ok(()) } {
        Ok(()) if disks <= EXPECTED => Ok(attached),
        // More queues, and more memory where it can only be mapped at the start, take another
        // start.
        Ok(()) | Err(ring3_device::Error::Unsupported(_)) => {
            drop(attached);
            open(&needs(queues(disks), disks))
        }
        Err(source) => Err(Error::Device { device: driven.device().name().into(), source }),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn attach_sim(
        uri: &str,
        namespace: Option<u32>,
        options: &ublk::Options,
    ) -> Result<Attached, Error> {
        let mut claim = Claim::new(uri.parse().unwrap());
        claim.settings.part = namespace;
        let source = Source::Device(Box::new(claim));
        attach(&source, options, 0)
    }

    #[test]
    fn the_arena_holds_the_buffers_and_queues_of_an_export() {
        let options = ublk::Options { queues: 2, depth: 128, ..ublk::Options::default() };
        let attached = attach_sim("sim:nvme", None, &options).unwrap();
        let disk = &attached.disks[0];
        let _queues: Vec<_> =
            (0..options.queues).map(|_| disk.open_queue(options.depth).unwrap()).collect();
        let bytes = options.max_bytes as usize;
        let buffers: Result<Vec<_>, _> = (0..options.queues * options.depth)
            .map(|_| disk.dma().arena().alloc_pages(bytes))
            .collect();
        assert!(buffers.is_ok());
    }

    /// What comes of `sim:nvme` with `shape`, and how often it was opened for that.
    fn opened(shape: &str, options: &ublk::Options) -> (Attached, u32) {
        let (claim, times) =
            (Claim::new(format!("sim:nvme,{shape}").parse().unwrap()), Cell::new(0));
        let open = |needs: &Requirements| {
            times.set(times.get() + 1);
            claim.start(needs)
        };
        (with_room(open, options, 0).unwrap(), times.get())
    }

    fn check_room(attached: &Attached, options: &ublk::Options) {
        let mut held = Vec::new();
        for disk in &attached.disks {
            let queues: Vec<_> =
                (0..options.queues).map(|_| disk.open_queue(options.depth).unwrap()).collect();
            let buffers = (0..options.queues * options.depth)
                .map(|_| disk.dma().arena().alloc_pages(options.max_bytes as usize));
            held.push((queues, buffers.collect::<Result<Vec<_>, _>>().unwrap()));
        }
    }

    #[test]
    fn a_controller_with_four_disks_is_claimed_once_and_its_arena_grows() {
        let options = ublk::Options { queues: 2, depth: 128, ..ublk::Options::default() };
        let (attached, times) = opened("namespaces=4,queues=64,size=1M", &options);
        assert_eq!((attached.disks.len(), times), (4, 1));
        check_room(&attached, &options);
    }

    #[test]
    fn memory_that_a_controller_has_for_itself_is_no_room_for_its_disks() {
        let options = ublk::Options { queues: 2, depth: 128, ..ublk::Options::default() };
        let (attached, times) = opened("namespaces=4,queues=64,size=1M,hmb=128M", &options);
        assert_eq!((attached.disks.len(), times), (4, 1));
        check_room(&attached, &options);
    }

    #[test]
    fn a_controller_with_more_disks_than_expected_is_started_again_with_more_queues() {
        let options = ublk::Options { queues: 1, depth: 8, ..ublk::Options::default() };
        let (attached, times) = opened("namespaces=12,queues=64,size=1M", &options);
        assert_eq!((attached.disks.len(), times), (12, 2));
        check_room(&attached, &options);
    }

    #[test]
    fn a_namespace_that_is_not_there_is_refused_with_those_that_are() {
        let error =
            attach_sim("sim:nvme", Some(9), &ublk::Options::default()).err().unwrap().to_string();
        assert!(error.contains("sim:nvme has no namespace 9; there are: 1"), "{error}");
    }

    #[test]
    fn the_driver_is_the_one_for_the_devices_class() {
        for (uri, name) in
            [("sim:nvme", "namespace 1"), ("sim:ahci", "port 0"), ("sim:ide", "primary master")]
        {
            let attached = attach_sim(uri, None, &ublk::Options::default()).unwrap();
            assert!(attached.disks[0].name().ends_with(name), "{}", attached.disks[0].name());
        }
    }

    #[test]
    fn a_drive_that_is_not_there_is_refused_with_those_that_are() {
        let error = attach_sim("sim:ahci,disks=2", Some(9), &ublk::Options::default())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("no drive 9; there are: 0, 1"), "{error}");
    }

    #[test]
    fn a_disk_of_blocks_without_bytes_is_an_error_and_no_division() {
        let source = Source::Null { bytes: 1 << 20, block_size: 0 };
        let error = attach(&source, &ublk::Options::default(), 0).err().unwrap().to_string();
        assert!(error.contains("blocks of 0 bytes"), "{error}");
    }

    #[test]
    fn a_device_that_no_backend_has_is_an_error_with_its_name() {
        let error =
            attach_sim("sim:toaster", None, &ublk::Options::default()).err().unwrap().to_string();
        assert!(error.contains("sim:toaster"), "{error}");
    }
}
