//! What a controller and its namespaces say about themselves. [NVMe 5.1.13]

use crate::{fields, layout};

/// Which structure is asked for. [NVMe 5.1.13.1]
pub mod cns {
    /// [`Namespace`](super::Namespace). [NVMe-NVM 4.1.5.1]
    pub const NAMESPACE: u8 = 0x00;
    /// [`Controller`](super::Controller). [NVMe 5.1.13.2.1]
    pub const CONTROLLER: u8 = 0x01;
    /// Active namespace list: up to 1024 identifiers above the one asked for, ascending, then
    /// zeroes. [NVMe 5.1.13.2.2]
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace identification descriptors; see [`command_set`](super::command_set). [NVMe
    /// 5.1.13.2.3]
    pub const DESCRIPTORS: u8 = 0x03;
    /// Of a namespace: what its formats have beyond [`LbaFormat`](super::LbaFormat); see
    /// [`ExtendedFormat::of`](super::ExtendedFormat::of). [NVMe-NVM 4.1.5.3]
    pub const NAMESPACE_NVM: u8 = 0x05;
    /// [`NvmLimits`](super::NvmLimits), since version 2.0. [NVMe-NVM 4.1.5.4]
    pub const CONTROLLER_NVM: u8 = 0x06;
}

/// I/O command sets that a namespace may belong to. [NVMe 5.1.13.2.3, CSI]
pub mod csi {
    /// NVM: blocks that are read and written in any order.
    pub const NVM: u8 = 0x00;
    /// Key value.
    pub const KEY_VALUE: u8 = 0x01;
    /// Zoned namespaces.
    pub const ZONED: u8 = 0x02;
}

/// NIDT: the descriptor holds a UUID, 16 bytes. [NVMe 5.1.13.2.3]
const DESCRIPTOR_UUID: u8 = 0x03;
/// NIDT: the descriptor holds the command set identifier, one byte. [NVMe 5.1.13.2.3]
const DESCRIPTOR_CSI: u8 = 0x04;

/// Bytes of every identify structure. [NVMe 5.1.13]
pub const SIZE: usize = 4096;
/// Identifiers that one active namespace list holds.
pub const NAMESPACE_LIST_ENTRIES: usize = 1024;

layout! {
    /// Identify controller. [NVMe 5.1.13.2.1]
    pub struct Controller[4096] {
        /// VID: PCI vendor.
        vendor, set_vendor: u16 @ 0;
        /// SSVID: PCI subsystem vendor.
        subsystem_vendor, set_subsystem_vendor: u16 @ 2;
        /// MDTS: most bytes of one transfer, the smallest memory page (CAP.MPSMIN) shifted left by
        /// this; 0 means no limit.
        max_transfer_shift, set_max_transfer_shift: u8 @ 77;
        /// CNTLID: controller id.
        controller_id, set_controller_id: u16 @ 78;
        /// VER: version, as the register.
        version, set_version: u32 @ 80;
        /// OAES: optional asynchronous events; bit 8 namespace attribute, bit 9 firmware
        /// activation.
        async_events, set_async_events: u32 @ 92;
        /// CRDT1: the first delay that a status can ask for before a command is repeated, in units
        /// of 100 ms; 0 means none.
        retry_delay_1, set_retry_delay_1: u16 @ 128;
        /// CRDT2: the second.
        retry_delay_2, set_retry_delay_2: u16 @ 130;
        /// CRDT3: the third.
        retry_delay_3, set_retry_delay_3: u16 @ 132;
        /// CTRATT: see the `ATTRIBUTE_` constants.
        attributes, set_attributes: u32 @ 96;
        /// CNTRLTYPE: 1 is an I/O controller.
        controller_type, set_controller_type: u8 @ 111;
        /// OACS: optional admin commands.
        admin_commands, set_admin_commands: u16 @ 256;
        /// ACL: abort commands that may be outstanding, less one.
        abort_limit_0based, set_abort_limit_0based: u8 @ 258;
        /// AERL: asynchronous event requests that may be outstanding, less one.
        event_limit_0based, set_event_limit_0based: u8 @ 259;
        /// LPA: log page attributes.
        log_attributes, set_log_attributes: u8 @ 261;
        /// ELPE: entries of the error log, less one.
        error_entries_0based, set_error_entries_0based: u8 @ 262;
        /// RTD3E: time to shut down, in microseconds; 0 means not reported.
        shutdown_us, set_shutdown_us: u32 @ 88;
        /// NPSS: power states, less one.
        power_states_0based, set_power_states_0based: u8 @ 263;
        /// APSTA: bit 0, it can change its power state by itself.
        power_state_transitions, set_power_state_transitions: u8 @ 265;
        /// MTFA: how long commands may wait for the activation of firmware, in units of 100 ms; 0
        /// means not reported.
        firmware_activation_100ms, set_firmware_activation_100ms: u16 @ 270;
        /// HMPRE: the host memory buffer that it wants, in units of 4096 bytes; 0 means that it has
        /// no use for one.
        host_memory_preferred, set_host_memory_preferred: u32 @ 272;
        /// HMMIN: the smallest one that it has a use for, in the same units.
        host_memory_minimum, set_host_memory_minimum: u32 @ 276;
        /// HMMINDS: the smallest piece of one, in the same units; 0 means any.
        host_memory_smallest_piece, set_host_memory_smallest_piece: u32 @ 332;
        /// HMMAXD: most pieces of one; 0 means no limit.
        host_memory_pieces, set_host_memory_pieces: u16 @ 336;
        /// SQES: log2 of the submission entry's bytes: needed in bits 3:0, greatest in bits 7:4.
        submission_entry, set_submission_entry: u8 @ 512;
        /// CQES: log2 of the completion entry's bytes: needed in bits 3:0, greatest in bits 7:4.
        completion_entry, set_completion_entry: u8 @ 513;
        /// MAXCMD: commands that it can work on at once; 0 means not reported.
        max_commands, set_max_commands: u16 @ 514;
        /// NN: the greatest namespace id.
        namespaces, set_namespaces: u32 @ 516;
        /// ONCS: optional NVM commands; see the `ONCS_` constants.
        nvm_commands, set_nvm_commands: u16 @ 520;
        /// FNA: attributes of a format; see the `FNA_` constants.
        format_attributes, set_format_attributes: u8 @ 524;
        /// VWC: bit 0, a volatile write cache is present.
        volatile_cache, set_volatile_cache: u8 @ 525;
        /// SGLS: scatter gather lists; 0 means none.
        sgl_support, set_sgl_support: u32 @ 536;
    }
}

impl Controller {
    /// ONCS: dataset management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// OACS: format NVM.
    pub const OACS_FORMAT: u16 = 1 << 1;
    /// FNA: a format is one of all namespaces.
    pub const FNA_FORMATS_ALL: u8 = 1 << 0;
    /// CTRATT: LBA formats have an extension ([`ExtendedFormat`]).
    pub const ATTRIBUTE_EXTENDED_FORMATS: u32 = 1 << 15;
    /// ONCS: write zeroes.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;

    /// SN: serial number, without the padding.
    pub fn serial(&self) -> &[u8] {
        ascii(&self.0[4..24])
    }

    /// MN: model number, without the padding.
    pub fn model(&self) -> &[u8] {
        ascii(&self.0[24..64])
    }

    /// FR: firmware revision, without the padding.
    pub fn firmware(&self) -> &[u8] {
        ascii(&self.0[64..72])
    }

    /// Sets the three strings, padded with spaces or cut to their places.
    pub fn set_strings(&mut self, serial: &str, model: &str, firmware: &str) -> &mut Self {
        pad(&mut self.0[4..24], serial);
        pad(&mut self.0[24..64], model);
        pad(&mut self.0[64..72], firmware);
        self
    }

    /// The description of power state `state`, 0 to 31.
    pub fn power_state(&self, state: usize) -> Option<PowerState> {
        PowerState::from_bytes(self.0.get(Self::power_state_at(state)?..)?)
    }

    /// Sets the description of power state `state`; nothing beyond the last place.
    pub fn set_power_state(&mut self, state: usize, description: PowerState) -> &mut Self {
        if let Some(at) = Self::power_state_at(state) {
            self.0[at..at + PowerState::SIZE].copy_from_slice(&description.0);
        }
        self
    }

    fn power_state_at(state: usize) -> Option<usize> {
        (state < super::feature::POWER_STATES).then_some(2048 + PowerState::SIZE * state)
    }

    /// Whether commands of the NVM command set may describe data by SGLs, of pieces that are
    /// multiples of four bytes. [NVMe 5.1.13, SGLS]
    pub fn has_sgl(&self) -> bool {
        matches!(self.sgl_support() & 3, 1 | 2)
    }

    /// Most bytes of one transfer for a smallest memory page of `page` bytes; `None` if there is no
    /// limit.
    pub fn max_transfer(&self, page: u64) -> Option<u64> {
        match self.max_transfer_shift() {
            0 => None,
            shift => Some(
                page.checked_shl(shift.into())
                    .filter(|bytes| bytes >> shift == page)
                    .unwrap_or(u64::MAX),
            ),
        }
    }
}

layout! {
    /// A power state. [NVMe 5.1.13.2.1, PSD]
    pub struct PowerState[32] {
        /// MP: most power, in units that `flags` says.
        max_power, set_max_power: u16 @ 0;
        /// MXPS and NOPS: see the `FLAG_` constants.
        flags, set_flags: u8 @ 3;
        /// ENLAT: most microseconds that entering it takes.
        entry_us, set_entry_us: u32 @ 4;
        /// EXLAT: most microseconds that leaving it takes.
        exit_us, set_exit_us: u32 @ 8;
    }
}

impl PowerState {
    /// MXPS: `max_power` counts in units of 0.1 mW, and without it in units of 10 mW.
    pub const FLAG_FINE: u8 = 1 << 0;
    /// NOPS: no I/O command is done in it.
    pub const FLAG_NON_OPERATIONAL: u8 = 1 << 1;

    /// Whether I/O commands are done in it.
    pub const fn is_operational(&self) -> bool {
        self.flags() & Self::FLAG_NON_OPERATIONAL == 0
    }

    /// Most power, in microwatts; 0 means not reported.
    pub const fn microwatts(&self) -> u32 {
        let unit = if self.flags() & Self::FLAG_FINE != 0 { 100 } else { 10_000 };
        self.max_power() as u32 * unit
    }
}

layout! {
    /// Identify controller of the NVM command set: limits of some commands. [NVMe-NVM 4.1.5.4]
    pub struct NvmLimits[4096] {
        /// VSL: verify size limit, as `max_transfer_shift`.
        verify_shift, set_verify_shift: u8 @ 0;
        /// WZSL: most bytes of write zeroes, the smallest memory page shifted left by this; 0 means
        /// not reported.
        write_zeroes_shift, set_write_zeroes_shift: u8 @ 1;
        /// DMRL: most ranges of dataset management; 0 means not reported.
        ranges, set_ranges: u8 @ 3;
        /// DMRSL: most blocks of one such range; 0 means not reported.
        range_blocks, set_range_blocks: u32 @ 4;
        /// DMSL: most blocks of all ranges together; 0 means not reported.
        total_blocks, set_total_blocks: u64 @ 8;
    }
}

/// The text of a space-padded field; a device may pad with zeroes instead.
fn ascii(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&byte| byte != b' ' && byte != 0).map_or(0, |last| last + 1);
    let start = bytes[..end].iter().position(|&byte| byte != b' ').unwrap_or(0);
    &bytes[start..end]
}

fn pad(place: &mut [u8], text: &str) {
    place.fill(b' ');
    let len = text.len().min(place.len());
    place[..len].copy_from_slice(&text.as_bytes()[..len]);
}

layout! {
    /// Identify namespace, of the NVM command set. [NVMe-NVM 4.1.5.1]
    pub struct Namespace[4096] {
        /// NSZE: logical blocks.
        size, set_size: u64 @ 0;
        /// NCAP: logical blocks that may be allocated at one time.
        capacity, set_capacity: u64 @ 8;
        /// NUSE: logical blocks allocated now.
        used, set_used: u64 @ 16;
        /// NSFEAT: see the `FEATURE_` constants.
        features, set_features: u8 @ 24;
        /// NLBAF: LBA formats, less one.
        formats_0based, set_formats_0based: u8 @ 25;
        /// FLBAS: which format is in use; see [`Namespace::format_index`].
        formatted, set_formatted: u8 @ 26;
        /// MC: metadata capabilities.
        metadata_capabilities, set_metadata_capabilities: u8 @ 27;
        /// DPC: protection capabilities.
        protection_capabilities, set_protection_capabilities: u8 @ 28;
        /// DPS: protection settings; bits 2:0 are the type, 0 is none.
        protection, set_protection: u8 @ 29;
        /// DLFEAT: what a deallocated block reads as; bits 2:0 = 1 means zeroes.
        deallocate_features, set_deallocate_features: u8 @ 33;
        /// NOIOB: commands that do not cross a multiple of so many blocks are faster; 0 means not
        /// reported.
        optimal_boundary, set_optimal_boundary: u16 @ 46;
        /// NPWG: preferred write granularity in blocks, less one; holds if `FEATURE_OPTIMAL_IO`.
        write_granularity_0based, set_write_granularity_0based: u16 @ 64;
        /// NPWA: preferred write alignment in blocks, less one.
        write_alignment_0based, set_write_alignment_0based: u16 @ 66;
        /// NPDG: preferred deallocate granularity in blocks, less one.
        deallocate_granularity_0based, set_deallocate_granularity_0based: u16 @ 68;
        /// NPDA: preferred deallocate alignment in blocks, less one.
        deallocate_alignment_0based, set_deallocate_alignment_0based: u16 @ 70;
        /// NOWS: optimal write size in blocks, less one.
        optimal_write_0based, set_optimal_write_0based: u16 @ 72;
        /// NSATTR: bit 0, currently write protected.
        attributes, set_attributes: u8 @ 99;
    }
}

impl Namespace {
    /// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS hold.
    pub const FEATURE_OPTIMAL_IO: u8 = 1 << 4;
    /// NSATTR: currently write protected.
    pub const WRITE_PROTECTED: u8 = 1 << 0;
    /// Formats that the structure has place for.
    pub const FORMATS: usize = 64;

    /// Which format is in use: bits 6:5 (upper) and 3:0 of FLBAS; the upper bits count only if
    /// there are more than 16 formats.
    pub const fn format_index(&self) -> usize {
        let low = self.formatted() & 0xf;
        let high = if self.formats_0based() >= 16 { (self.formatted() >> 5 & 3) << 4 } else { 0 };
        (high | low) as usize
    }

    /// Format `index`, 0 to 63.
    pub fn format(&self, index: usize) -> Option<LbaFormat> {
        let at = 128 + 4 * index;
        (index < Self::FORMATS).then(|| {
            LbaFormat(u32::from_le_bytes([
                self.0[at],
                self.0[at + 1],
                self.0[at + 2],
                self.0[at + 3],
            ]))
        })
    }

    /// The format in use, if the device names one that it has.
    pub fn current_format(&self) -> Option<LbaFormat> {
        self.format(self.format_index())
            .filter(|_| self.format_index() <= self.formats_0based() as usize)
    }

    /// DPS: the type of its protection information, 1 to 3; 0 if there is none.
    pub const fn protection_type(&self) -> u8 {
        self.protection() & 7
    }

    /// NGUID and EUI64, one behind the other, each zero if there is none.
    pub fn unique(&self) -> [u8; 24] {
        core::array::from_fn(|index| self.0[104 + index])
    }

    /// Sets NGUID and EUI64.
    pub fn set_unique(&mut self, unique: [u8; 24]) -> &mut Self {
        self.0[104..128].copy_from_slice(&unique);
        self
    }

    /// Sets format `index`; nothing beyond the last place.
    pub fn set_format(&mut self, index: usize, format: LbaFormat) -> &mut Self {
        if index < Self::FORMATS {
            self.0[128 + 4 * index..][..4].copy_from_slice(&format.0.to_le_bytes());
        }
        self
    }
}

fields! {
    /// A way to lay out logical blocks. [NVMe-NVM 4.1.5.1, LBAF]
    pub struct LbaFormat(u32) {
        /// MS: metadata bytes of each block.
        metadata, with_metadata: 15..=0;
        /// LBADS: log2 of a block's data bytes; less than 9 means that the format is not available.
        data_shift, with_data_shift: 23..=16;
        /// RP: relative performance, 0 is best.
        performance, with_performance: 25..=24;
    }
}

fields! {
    /// What a format has beyond [`LbaFormat`]. [NVMe-NVM 4.1.5.3, ELBAF]
    pub struct ExtendedFormat(u32) {
        /// STS: bits of the reference tag's place that are a storage tag.
        storage_tag_bits, with_storage_tag_bits: 6..=0;
        /// PIF: the kind of guard; 0 has 16 bits.
        guard, with_guard: 8..=7;
    }
}

impl ExtendedFormat {
    /// Whether it adds nothing: a guard of 16 bits, and no storage tag.
    pub const fn is_plain(self) -> bool {
        self.storage_tag_bits() == 0 && self.guard() == 0
    }

    /// That of format `index`, 0 to 63, of the namespace that `structure` (CNS 05h) is about.
    pub fn of(structure: &[u8; SIZE], index: usize) -> Self {
        let at = 12 + 4 * (index % Namespace::FORMATS);
        Self(u32::from_le_bytes(core::array::from_fn(|byte| structure[at + byte])))
    }
}

impl LbaFormat {
    /// Blocks of `1 << shift` bytes with `metadata` bytes each.
    pub const fn new(shift: u32, metadata: u32) -> Self {
        Self(0).with_data_shift(shift).with_metadata(metadata)
    }

    /// Data bytes of a block; `None` if the format is not available or the device says something
    /// that cannot be.
    pub fn block_size(self) -> Option<u32> {
        (9..=31).contains(&self.data_shift()).then(|| 1 << self.data_shift())
    }
}

/// The identifiers of an active namespace list, up to the first zero. [NVMe 5.1.13.2.2]
pub fn namespace_list(bytes: &[u8; SIZE]) -> impl Iterator<Item = u32> {
    bytes
        .chunks_exact(4)
        .map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))
        .take_while(|&id| id != 0)
}

/// Builds the active namespace list of `ids` above `after`, which ascend.
pub fn build_namespace_list(ids: impl IntoIterator<Item = u32>, after: u32) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (place, id) in bytes.chunks_exact_mut(4).zip(ids.into_iter().filter(|&id| id > after)) {
        place.copy_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// The command set that a list of namespace identification descriptors names; `None` if it names
/// none. [NVMe 5.1.13.2.3]
///
/// A descriptor is its type, the length of its identifier, two reserved bytes and the identifier; a
/// length of 0 ends the list.
pub fn command_set(bytes: &[u8; SIZE]) -> Option<u8> {
    let mut rest = &bytes[..];
    while let [kind, len, _, _, identifier @ ..] = rest
        && *len != 0
    {
        if *kind == DESCRIPTOR_CSI {
            return identifier.first().copied();
        }
        rest = identifier.get(usize::from(*len)..)?;
    }
    None
}

/// Builds the list of descriptors of a namespace of `set`: a UUID made of its `id`, then the
/// command set.
pub fn build_descriptors(id: u32, set: u8) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    (bytes[0], bytes[1]) = (DESCRIPTOR_UUID, 16);
    bytes[16..20].copy_from_slice(&id.to_be_bytes());
    (bytes[20], bytes[21], bytes[24]) = (DESCRIPTOR_CSI, 1, set);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_lose_their_padding() {
        let mut controller = Controller::zeroed();
        controller.set_strings("S1", "A disk of a certain name", "1.0");
        assert_eq!((controller.serial(), controller.firmware()), (&b"S1"[..], &b"1.0"[..]));
        assert_eq!(controller.model(), b"A disk of a certain name");
        assert_eq!(Controller::zeroed().model(), b"");
    }

    #[test]
    fn a_transfer_limit_of_zero_is_no_limit() {
        let mut controller = Controller::zeroed();
        assert_eq!(controller.max_transfer(4096), None);
        assert_eq!(controller.set_max_transfer_shift(5).max_transfer(4096), Some(128 << 10));
        assert_eq!(controller.set_max_transfer_shift(255).max_transfer(4096), Some(u64::MAX));
        assert_eq!(controller.set_max_transfer_shift(60).max_transfer(4096), Some(u64::MAX));
    }

    #[test]
    fn a_power_state_is_read_back_as_it_was_set_and_there_are_32() {
        let mut state = PowerState::zeroed();
        state.set_max_power(49).set_exit_us(4).set_flags(PowerState::FLAG_FINE);
        let mut controller = Controller::zeroed();
        controller.set_power_state(31, state).set_power_state(32, state);
        assert!(controller.power_state(31) == Some(state) && controller.power_state(32).is_none());
        assert_eq!(state.microwatts(), 4900);
        assert_eq!(state.set_flags(PowerState::FLAG_NON_OPERATIONAL).microwatts(), 490_000);
        assert!(!state.is_operational());
    }

    #[test]
    fn the_upper_format_bits_count_only_with_more_than_16_formats() {
        let mut namespace = Namespace::zeroed();
        namespace.set_formatted(0b0010_0001);
        assert_eq!(namespace.format_index(), 1);
        assert_eq!(namespace.set_formats_0based(20).format_index(), 17);
    }

    #[test]
    fn a_format_that_the_namespace_does_not_have_is_none() {
        let mut namespace = Namespace::zeroed();
        namespace.set_format(0, LbaFormat::new(12, 0)).set_formatted(1);
        assert_eq!(namespace.current_format(), None);
        assert_eq!(
            namespace.set_formatted(0).current_format().and_then(LbaFormat::block_size),
            Some(4096)
        );
    }

    #[test]
    fn a_block_of_less_than_512_bytes_is_not_available() {
        assert_eq!(LbaFormat::new(8, 0).block_size(), None);
        assert_eq!(LbaFormat::new(200, 0).block_size(), None);
    }

    #[test]
    fn a_namespace_list_holds_what_lies_above() {
        let bytes = build_namespace_list([1, 2, 5, 9], 1);
        assert!(namespace_list(&bytes).eq([2, 5, 9]));
    }

    #[test]
    fn the_command_set_is_found_behind_other_descriptors() {
        assert_eq!(command_set(&build_descriptors(7, csi::ZONED)), Some(csi::ZONED));
    }

    #[test]
    fn descriptors_without_a_command_set_or_an_end_name_none() {
        assert_eq!(command_set(&[0; SIZE]), None);
        assert_eq!(command_set(&[1; SIZE]), None);
        assert_eq!(command_set(&[0xff; SIZE]), None);
    }

    #[test]
    fn a_full_namespace_list_has_1024_entries() {
        let bytes = build_namespace_list(1..=5000, 0);
        assert_eq!(namespace_list(&bytes).count(), NAMESPACE_LIST_ENTRIES);
    }
}
