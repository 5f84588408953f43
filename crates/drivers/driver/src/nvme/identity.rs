//! Identify data: the controller's, and the format of each namespace as a disk needs it. [NVMe
//! 5.1.13]

use std::time::Duration;

use ring3_class::block::{Discard, Info};
use ring3_device::Error;
use ring3_device::dma::SegmentRules;
use ring3_device::irq::IrqKind;
use ring3_quirks::Quirks;
use ring3_spec::nvme::identify::{self, NvmLimits};
use ring3_spec::nvme::{MAX_BLOCKS, registers::Version};
use ring3_spec::text::Printable;

use super::host_memory::Wanted;
use super::options::Options;
use super::power::{self, PowerState};
use super::prp::MAX_TRANSFER;
use super::quirks::{BROKEN_WRITE_ZEROES, CHAINED_LISTS, STRIPE};

/// A controller's description.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Maker's name for it.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// PCI vendor.
    pub vendor: u16,
    /// Version of the specification that it follows, as `2.1.0`.
    pub version: String,
    /// I/O queue pairs that it gives us.
    pub queues: u16,
    /// Interrupts in use; `None` if it is polled.
    pub interrupts: Option<IrqKind>,
    /// Most bytes of one request.
    pub max_transfer: u32,
    /// Whether writes may sit in a cache that loses them with the power.
    pub volatile_cache: bool,
}

/// What the driver keeps of identify controller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct ControllerFeatures {
    pub(super) identity: Identity,
    pub(super) write_zeroes: Option<u32>,
    pub(super) discard: Option<u32>,
    pub(super) event_requests: u16,
    pub(super) error_entries: usize,
    /// NN: no namespace has a greater id.
    pub(super) greatest_namespace: u32,
    /// Bytes of a memory page.
    pub(super) page: u32,
    pub(super) async_events: u32,
    pub(super) shutdown: Duration,
    /// How long commands may wait for the activation of firmware (MTFA); zero if it does not say.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub(super) firmware_activation: Duration,
    /// CRDT: the delays before a repetition that a status can ask for, in units of 100 ms.
    #[serde(default)]
    pub(super) retry_delays: [u16; 3],
    /// Data may be described by SGLs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sgl: bool,
    /// It can change its power state by itself (APSTA).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) changes_power_state: bool,
    /// Its power states, if it has several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) power_states: Vec<PowerState>,
    /// The memory of the host that it asks for.
    #[serde(default, skip_serializing_if = "Wanted::is_nothing")]
    pub(super) host_memory: Wanted,
    /// Bytes whose multiples its requests are best kept from crossing, whatever a namespace says; 0
    /// is nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) stripe: u32,
    /// LBA formats have an extension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) extended_formats: bool,
    /// How it differs from its specification.
    #[serde(default, skip_serializing_if = "Quirks::is_empty")]
    pub(super) quirks: Quirks,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ControllerFeatures {
    /// What `controller` (and `limits`, if it has them) says, for memory pages of `page` bytes.
    pub(super) fn new(
        controller: &identify::Controller,
        limits: Option<NvmLimits>,
        page: u64,
        version: Version,
        (quirks, options): (Quirks, &Options),
    ) -> Self {
        let text = |bytes| Printable(bytes).to_string();
        // The last entry of the longest list stays free, if the device would not take it for one.
        let longest = MAX_TRANSFER - if quirks.has(CHAINED_LISTS) { page as u32 } else { 0 };
        let device_limit = controller.max_transfer(page).unwrap_or(u64::MAX);
        let identity = Identity {
            model: text(controller.model()),
            serial: text(controller.serial()),
            firmware: text(controller.firmware()),
            vendor: controller.vendor(),
            version: format!("{}.{}.{}", version.major(), version.minor(), version.tertiary()),
            queues: 0,
            interrupts: None,
            max_transfer: device_limit.min(longest.into()) as u32,
            volatile_cache: controller.volatile_cache() & 1 == 1,
        };
        let has = |command| controller.nvm_commands() & command != 0;
        let zeroes = limits.map_or(0, |limits| limits.write_zeroes_shift());
        // By the specification MDTS is no limit of write zeroes. Drives that say no other one were
        // seen to fail or to hang at more.
        let zeroes = match zeroes {
            0 => identity.max_transfer,
            shift => page.checked_shl(shift.into()).unwrap_or(u64::MAX).min(1 << 31) as u32,
        };
        let discard = limits.map_or(0, |limits| limits.range_blocks());
        let stripe = controller
            .max_transfer(page)
            .filter(|bytes| quirks.has(STRIPE) && bytes.is_power_of_two())
            .and_then(|bytes| u32::try_from(bytes).ok());
        Self {
            identity,
            write_zeroes: (has(identify::Controller::ONCS_WRITE_ZEROES)
                && !quirks.has(BROKEN_WRITE_ZEROES))
            .then_some(zeroes),
            discard: has(identify::Controller::ONCS_DATASET_MANAGEMENT)
                .then_some(if discard == 0 { u32::MAX } else { discard }),
            event_requests: u16::from(controller.event_limit_0based()) + 1,
            error_entries: usize::from(controller.error_entries_0based()) + 1,
            greatest_namespace: controller.namespaces(),
            page: page as u32,
            async_events: controller.async_events(),
            shutdown: Duration::from_micros(controller.shutdown_us().into()),
            firmware_activation: Duration::from_millis(
                u64::from(controller.firmware_activation_100ms()) * 100,
            ),
            retry_delays: [
                controller.retry_delay_1(),
                controller.retry_delay_2(),
                controller.retry_delay_3(),
            ],
            sgl: controller.has_sgl(),
            changes_power_state: controller.power_state_transitions() & 1 == 1,
            power_states: power::states(controller, &quirks, options.power_latency),
            host_memory: Wanted::of(controller),
            stripe: stripe.unwrap_or(0),
            extended_formats: controller.attributes()
                & identify::Controller::ATTRIBUTE_EXTENDED_FORMATS
                != 0,
            quirks,
        }
    }

    /// The bytes whose multiples requests to `namespace` are best kept from crossing; 0 for none.
    /// Like the kernel's driver it takes powers of two alone. [NVMe-NVM 4.1.5.1, NOIOB]
    fn boundary(&self, namespace: &identify::Namespace, block_size: u32) -> u32 {
        if self.stripe > 0 {
            return self.stripe;
        }
        let bytes = u32::from(namespace.optimal_boundary()) * block_size;
        if bytes.is_power_of_two() { bytes } else { 0 }
    }

    /// The disk that `namespace` is, whatever its metadata, or why it cannot be one.
    pub(super) fn disk(&self, namespace: &identify::Namespace) -> Result<Info, Error> {
        let format = namespace.current_format().ok_or_else(|| {
            Error::Protocol(format!(
                "it is formatted with LBA format {}, which it does not have",
                namespace.format_index()
            ))
        })?;
        let block_size =
            format.block_size().filter(|size| [512, 4096].contains(size)).ok_or_else(|| {
                Error::Unsupported(format!(
                    "its blocks have 2^{} bytes; 512 and 4096 are supported: format it with one of \
                them",
                    format.data_shift()
                ))
            })?;
        if namespace.size() == 0 || namespace.size().checked_mul(block_size.into()).is_none() {
            return Err(Error::Protocol(format!(
                "it says that it has {} blocks",
                namespace.size()
            )));
        }
        let hints = namespace.features() & identify::Namespace::FEATURE_OPTIMAL_IO != 0;
        let hinted = |blocks_0based: u16| {
            if hints { block_size.saturating_mul(u32::from(blocks_0based) + 1) } else { block_size }
        };
        let max_transfer = self.identity.max_transfer.min(MAX_BLOCKS.saturating_mul(block_size));
        Ok(Info {
            model: self.identity.model.clone(),
            serial: self.identity.serial.clone(),
            firmware: self.identity.firmware.clone(),
            block_size,
            blocks: namespace.size(),
            max_transfer: max_transfer - max_transfer % block_size,
            segments: SegmentRules { boundary: self.page, ..SegmentRules::PAGES },
            optimal_io: hinted(namespace.write_granularity_0based()),
            boundary: self.boundary(namespace, block_size),
            volatile_cache: self.identity.volatile_cache,
            fua: true,
            max_write_zeroes_blocks: self
                .write_zeroes
                .map_or(0, |bytes| (bytes / block_size).clamp(1, MAX_BLOCKS)),
            discard: self.discard.map(|max_blocks| Discard {
                max_blocks,
                granularity: hinted(namespace.deallocate_granularity_0based()),
            }),
            read_only: namespace.attributes() & identify::Namespace::WRITE_PROTECTED != 0,
            rotates: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_spec::nvme::identify::LbaFormat;

    fn traits(set: impl FnOnce(&mut identify::Controller)) -> ControllerFeatures {
        let mut controller = identify::Controller::zeroed();
        set(&mut controller);
        let usual = (Quirks::default(), &Options::default());
        ControllerFeatures::new(&controller, None, 4096, Version(0x0002_0100), usual)
    }

    fn namespace(format: LbaFormat, blocks: u64) -> identify::Namespace {
        let mut namespace = identify::Namespace::zeroed();
        namespace.set_size(blocks).set_format(0, format);
        namespace
    }

    #[test]
    fn blocks_of_512_and_4096_bytes_make_a_disk() {
        let traits = traits(|_| {});
        for shift in [9, 12] {
            assert_eq!(
                traits.disk(&namespace(LbaFormat::new(shift, 0), 100)).unwrap().block_size,
                1 << shift
            );
        }
    }

    #[test]
    fn another_block_size_is_refused_with_the_ones_that_work() {
        let error = traits(|_| {}).disk(&namespace(LbaFormat::new(13, 0), 100)).unwrap_err();
        assert!(error.to_string().contains("512 and 4096"), "{error}");
    }

    #[test]
    fn an_empty_namespace_is_no_disk() {
        assert!(traits(|_| {}).disk(&namespace(LbaFormat::new(9, 0), 0)).is_err());
        assert!(traits(|_| {}).disk(&namespace(LbaFormat::new(12, 0), u64::MAX)).is_err());
    }

    #[test]
    fn without_a_limit_of_its_own_the_device_gets_what_one_list_describes() {
        assert_eq!(traits(|_| {}).identity.max_transfer, MAX_TRANSFER);
        assert_eq!(traits(|controller| controller.0[77] = 1).identity.max_transfer, 8192);
    }

    #[test]
    fn write_zeroes_has_its_own_limit_or_that_of_transfers() {
        let mut controller = identify::Controller::zeroed();
        controller
            .set_nvm_commands(identify::Controller::ONCS_WRITE_ZEROES)
            .set_max_transfer_shift(1);
        let blocks = |shift| {
            let mut limits = NvmLimits::zeroed();
            limits.set_write_zeroes_shift(shift);
            let version = Version(0x0002_0100);
            let traits = ControllerFeatures::new(
                &controller,
                Some(limits),
                4096,
                version,
                (Quirks::default(), &Options::default()),
            );
            traits.disk(&namespace(LbaFormat::new(9, 0), 1 << 20)).unwrap().max_write_zeroes_blocks
        };
        assert_eq!([0, 3, 40].map(blocks), [16, 64, MAX_BLOCKS]);
    }

    #[test]
    fn requests_have_a_boundary_if_it_is_a_power_of_two() {
        let boundary = |blocks, shift| {
            let mut namespace = namespace(LbaFormat::new(shift, 0), 100);
            namespace.set_optimal_boundary(blocks);
            traits(|_| {}).disk(&namespace).unwrap().boundary
        };
        assert_eq!(
            [0, 1, 256, 3000, 0x8000].map(|blocks| boundary(blocks, 9)),
            [0, 512, 131_072, 0, 1 << 24]
        );
        assert_eq!(boundary(0x8000, 12), 1 << 27);
    }

    #[test]
    fn optional_commands_that_are_missing_are_missing_in_the_disk() {
        let disk = traits(|_| {}).disk(&namespace(LbaFormat::new(9, 0), 8)).unwrap();
        assert_eq!((disk.discard, disk.max_write_zeroes_blocks), (None, 0));
    }
}
