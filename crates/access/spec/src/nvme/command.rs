//! The submission queue entry: what a command says, for who builds it and for who takes it apart.
//! [NVMe 4.1]

use super::feature::QueueCounts;
use super::{ALL_NAMESPACES, SUBMISSION_WORDS, feature, opcode};

/// One command, as eight little-endian 64-bit words. [NVMe 4.1]
///
/// | word | low half | high half |
/// |---|---|---|
/// | 0 | opcode, fused, PSDT, command id | namespace id |
/// | 1 | command dword 2 | command dword 3 |
/// | 2 | metadata pointer | |
/// | 3 | PRP entry 1, or an SGL descriptor's address | |
/// | 4 | PRP entry 2, or that descriptor's length | its identifier |
/// | 5 | command dword 10 | command dword 11 |
/// | 6 | command dword 12 | command dword 13 |
/// | 7 | command dword 14 | command dword 15 |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Submission(pub [u64; SUBMISSION_WORDS]);

const _: () = assert!(size_of::<Submission>() == 64);

/// PSDT = 01b: the data pointer is an SGL descriptor, in command dword 0. [NVMe 4.1, CDW0.PSDT]
const SGL: u64 = 1 << 14;
/// FUA of read, write and write zeroes, in command dword 12. [NVMe-NVM 3.3.6]
const FUA: u32 = 1 << 30;
/// PRACT of read, write and write zeroes, in command dword 12: the controller makes the protection
/// information, or takes it off. [NVMe-NVM 3.3.4, PRINFO]
const PROTECTION_ACTION: u32 = 1 << 29;
/// Deallocate of write zeroes, in command dword 12. [NVMe-NVM 3.3.8]
const DEALLOCATE: u32 = 1 << 25;
/// Attribute "deallocate" of dataset management, in command dword 11. [NVMe-NVM 3.3.3]
const DSM_DEALLOCATE: u32 = 1 << 2;
/// Physically contiguous, in command dword 11 of the create commands. [NVMe 5.2.1]
const CONTIGUOUS: u32 = 1 << 0;
/// Queue priority (QPRIO), in command dword 11 of create submission queue: 0 is urgent. [NVMe
/// 5.2.2]
const QUEUE_PRIORITY: u32 = 3 << 1;
const MEDIUM_PRIORITY: u32 = 2 << 1;
/// Interrupts enabled, in command dword 11 of create completion queue. [NVMe 5.2.1]
const INTERRUPTS: u32 = 1 << 1;
/// Retain asynchronous event, in command dword 10 of get log page. [NVMe 5.1.12]
const RETAIN_EVENT: u32 = 1 << 15;

impl Submission {
    /// A command without data, command id 0.
    #[inline]
    pub const fn new(opcode: u8, namespace: u32) -> Self {
        Self([opcode as u64 | (namespace as u64) << 32, 0, 0, 0, 0, 0, 0, 0])
    }

    /// The same with command id `id`. [NVMe 4.1, CDW0.CID]
    #[inline]
    pub const fn with_id(mut self, id: u16) -> Self {
        self.0[0] = (self.0[0] & !0xffff_0000) | (id as u64) << 16;
        self
    }

    /// The same with data where the two PRP entries say. [NVMe 4.3.1]
    #[inline]
    pub const fn with_data(mut self, prp1: u64, prp2: u64) -> Self {
        (self.0[3], self.0[4]) = (prp1, prp2);
        self
    }

    /// The same with `bytes` bytes of data in one piece: an SGL data block descriptor. For
    /// controllers that [have them](super::identify::Controller::has_sgl), and no admin command.
    /// [NVMe 4.4]
    #[inline]
    pub const fn with_block(mut self, iova: u64, bytes: u32) -> Self {
        self.0[0] |= SGL;
        // The identifier in the last byte is 0: a data block, by its address.
        (self.0[3], self.0[4]) = (iova, bytes as u64);
        self
    }

    /// The same with command dword `index`, 10 to 15 (others stay as they are).
    #[inline]
    pub const fn with_dword(mut self, index: usize, value: u32) -> Self {
        if index >= 10 && index < 16 {
            let shift = (index % 2) as u32 * 32;
            let word = index / 2;
            self.0[word] = (self.0[word] & !((u32::MAX as u64) << shift)) | (value as u64) << shift;
        }
        self
    }

    /// Opcode; see [`opcode`].
    pub const fn opcode(&self) -> u8 {
        self.0[0] as u8
    }

    /// FUSE and PSDT, bits 15 to 8 of the first dword: zero for the commands that we send, but for
    /// [`SGL_FLAG`](Self::SGL_FLAG).
    pub const fn flags(&self) -> u8 {
        (self.0[0] >> 8) as u8
    }

    /// Command id.
    pub const fn id(&self) -> u16 {
        (self.0[0] >> 16) as u16
    }

    /// Namespace id.
    pub const fn namespace(&self) -> u32 {
        (self.0[0] >> 32) as u32
    }

    /// PSDT = 01b among [`flags`](Self::flags): data is where an SGL descriptor says.
    pub const SGL_FLAG: u8 = (SGL >> 8) as u8;

    /// PRP entry 1.
    pub const fn prp1(&self) -> u64 {
        self.0[3]
    }

    /// PRP entry 2.
    pub const fn prp2(&self) -> u64 {
        self.0[4]
    }

    /// Command dword `index`, 0 to 15; zero beyond.
    pub const fn dword(&self, index: usize) -> u32 {
        if index < 16 { (self.0[index / 2] >> (index % 2 * 32)) as u32 } else { 0 }
    }
}

/// Admin commands. [NVMe 5]
impl Submission {
    /// Identify: the structure `cns` (see [`identify::cns`](super::identify::cns)) into 4096 bytes.
    /// [NVMe 5.1.13]
    pub const fn identify(cns: u8, namespace: u32) -> Self {
        Self::new(opcode::admin::IDENTIFY, namespace).with_dword(10, cns as u32)
    }

    /// Identify: which structure.
    pub const fn cns(&self) -> u8 {
        self.dword(10) as u8
    }

    /// Create I/O completion queue `queue` of `entries` (2 to 65536) at `base`, with interrupts on
    /// `vector` if any. [NVMe 5.2.1]
    pub const fn create_cq(queue: u16, entries: u32, base: u64, vector: Option<u16>) -> Self {
        let flags = match vector {
            Some(vector) => (vector as u32) << 16 | INTERRUPTS | CONTIGUOUS,
            None => CONTIGUOUS,
        };
        Self::new(opcode::admin::CREATE_CQ, 0)
            .with_data(base, 0)
            .with_queue(queue, entries)
            .with_dword(11, flags)
    }

    /// Create I/O submission queue `queue` of `entries` at `base`, completing to queue
    /// `completion`. [NVMe 5.2.2]
    pub const fn create_sq(queue: u16, entries: u32, base: u64, completion: u16) -> Self {
        let flags = (completion as u32) << 16 | CONTIGUOUS;
        Self::new(opcode::admin::CREATE_SQ, 0)
            .with_data(base, 0)
            .with_queue(queue, entries)
            .with_dword(11, flags)
    }

    /// Delete I/O submission queue `queue`. [NVMe 5.2.4]
    pub const fn delete_sq(queue: u16) -> Self {
        Self::new(opcode::admin::DELETE_SQ, 0).with_dword(10, queue as u32)
    }

    /// Delete I/O completion queue `queue`. [NVMe 5.2.3]
    pub const fn delete_cq(queue: u16) -> Self {
        Self::new(opcode::admin::DELETE_CQ, 0).with_dword(10, queue as u32)
    }

    const fn with_queue(self, queue: u16, entries: u32) -> Self {
        self.with_dword(10, queue as u32 | (entries.wrapping_sub(1) & 0xffff) << 16)
    }

    /// Create and delete commands: which queue.
    pub const fn queue(&self) -> u16 {
        self.dword(10) as u16
    }

    /// Create commands: entries, 1 to 65536.
    pub const fn queue_entries(&self) -> u32 {
        (self.dword(10) >> 16) + 1
    }

    /// Create commands: the queue is physically contiguous.
    pub const fn queue_contiguous(&self) -> bool {
        self.dword(11) & CONTIGUOUS != 0
    }

    /// Create completion queue: the interrupt vector, if interrupts are enabled.
    pub const fn queue_vector(&self) -> Option<u16> {
        if self.dword(11) & INTERRUPTS != 0 { Some((self.dword(11) >> 16) as u16) } else { None }
    }

    /// Create submission queue: of medium priority (QPRIO), where it was urgent. [NVMe 5.2.2]
    pub const fn with_medium_priority(self) -> Self {
        self.with_dword(11, self.dword(11) | MEDIUM_PRIORITY)
    }

    /// Create submission queue: whether it is of medium priority.
    pub const fn has_medium_priority(&self) -> bool {
        self.dword(11) & QUEUE_PRIORITY == MEDIUM_PRIORITY
    }

    /// Create submission queue: the completion queue that it completes to.
    pub const fn queue_completion(&self) -> u16 {
        (self.dword(11) >> 16) as u16
    }

    /// Abort the command `id` of submission queue `queue`. Bit 0 of the result is 0 if it was
    /// aborted. [NVMe 5.1.1]
    pub const fn abort(queue: u16, id: u16) -> Self {
        Self::new(opcode::admin::ABORT, 0).with_dword(10, queue as u32 | (id as u32) << 16)
    }

    /// Abort: submission queue and command id.
    pub const fn aborted(&self) -> (u16, u16) {
        (self.dword(10) as u16, (self.dword(10) >> 16) as u16)
    }

    /// Set feature `feature` (see [`feature`]) to `value`, in command dword 11. [NVMe 5.1.25]
    pub const fn set_feature(feature: u8, value: u32) -> Self {
        Self::new(opcode::admin::SET_FEATURES, 0)
            .with_dword(10, feature as u32)
            .with_dword(11, value)
    }

    /// Get feature `feature`; the value is the result. [NVMe 5.1.11]
    pub const fn get_feature(feature: u8) -> Self {
        Self::new(opcode::admin::GET_FEATURES, 0).with_dword(10, feature as u32)
    }

    /// Set feature [`HOST_MEMORY`](feature::HOST_MEMORY) to `value`: `pages` memory pages (CC.MPS)
    /// in pieces, which a list of `entries` at `list`, a multiple of 16, describes. [NVMe
    /// 5.1.25.2.4]
    pub const fn set_host_memory(value: u32, pages: u32, list: u64, entries: u32) -> Self {
        Self::set_feature(feature::HOST_MEMORY, value)
            .with_dword(12, pages)
            .with_dword(13, list as u32)
            .with_dword(14, (list >> 32) as u32)
            .with_dword(15, entries)
    }

    /// Set feature [`HOST_MEMORY`](feature::HOST_MEMORY): pages, and the list with its entries.
    pub const fn host_memory(&self) -> (u32, u64, u32) {
        let list = self.dword(13) as u64 | (self.dword(14) as u64) << 32;
        (self.dword(12), list, self.dword(15))
    }

    /// Asks for `counts` I/O queues; the result says how many there are. [NVMe 5.1.25.2.1]
    pub const fn set_queue_counts(counts: QueueCounts) -> Self {
        Self::set_feature(feature::NUMBER_OF_QUEUES, counts.to_dword())
    }

    /// Set and get features: which.
    pub const fn feature(&self) -> u8 {
        self.dword(10) as u8
    }

    /// Set features: the value.
    pub const fn feature_value(&self) -> u32 {
        self.dword(11)
    }

    /// Format namespace `namespace` with LBA format `index` (0 to 63) and protection information of
    /// type `protection` (0 for none) in the last bytes of metadata, which lie in a buffer of their
    /// own. [NVMe 5.1.10]
    pub const fn format(namespace: u32, index: u32, protection: u32) -> Self {
        let format = (index & 0xf) | (index >> 4 & 3) << 12;
        Self::new(opcode::admin::FORMAT_NVM, namespace)
            .with_dword(10, format | (protection & 7) << 5)
    }

    /// Format: which LBA format, and the type of protection information.
    pub const fn formatted(&self) -> (u32, u32) {
        let dword = self.dword(10);
        ((dword & 0xf) | (dword >> 12 & 3) << 4, dword >> 5 & 7)
    }

    /// Asynchronous event request. [NVMe 5.1.2]
    pub const fn async_event() -> Self {
        Self::new(opcode::admin::ASYNC_EVENT, 0)
    }

    /// Get the first `bytes` (a multiple of 4) of log page `page` (see [`log`](super::log)) for all
    /// namespaces; `retain` keeps the asynchronous event that announced it. [NVMe 5.1.12]
    pub const fn get_log_page(page: u8, bytes: u32, retain: bool) -> Self {
        let dwords = (bytes / 4).wrapping_sub(1);
        let retain = if retain { RETAIN_EVENT } else { 0 };
        Self::new(opcode::admin::GET_LOG_PAGE, ALL_NAMESPACES)
            .with_dword(10, page as u32 | retain | (dwords & 0xffff) << 16)
            .with_dword(11, dwords >> 16)
    }

    /// Get log page: which.
    pub const fn log_page(&self) -> u8 {
        self.dword(10) as u8
    }

    /// Get log page: how many bytes.
    pub const fn log_bytes(&self) -> u64 {
        (((self.dword(10) >> 16) as u64 | (self.dword(11) as u64 & 0xffff) << 16) + 1) * 4
    }

    /// Get log page: from which byte on. [NVMe 5.1.12, LPOL and LPOU]
    pub const fn log_offset(&self) -> u64 {
        self.0[6]
    }

    /// Get log page: the event that announced it stays.
    pub const fn log_retains_event(&self) -> bool {
        self.dword(10) & RETAIN_EVENT != 0
    }
}

/// What is the same in all reads, or in all writes, of a namespace: the first word.
#[derive(Clone, Copy, Debug)]
pub struct Transfer(u64);

impl Transfer {
    /// Read or write (`opcode`).
    pub const fn new(opcode: u8, namespace: u32) -> Self {
        Self(Submission::new(opcode, namespace).0[0])
    }

    /// Command `id` for a block at `lba` and `further` (0 to 65535) behind it, through to the
    /// medium if `fua`. [NVMe-NVM 3.3.4, 3.3.6]
    #[inline]
    pub const fn of(self, id: u16, lba: u64, further: u64, fua: bool) -> Submission {
        let dword12 = further | (fua as u64) << FUA.trailing_zeros();
        Submission([self.0 | (id as u64) << 16, 0, 0, 0, 0, lba, dword12, 0])
    }
}

/// Where PRCHK lies in command dword 12.
const PROTECTION_CHECK: u32 = 26;

/// What of a block's protection information the controller checks. [NVMe-NVM 5.3.3, PRCHK]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtectionCheck(u32);

impl ProtectionCheck {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The checksum of its data.
    pub const GUARD: Self = Self(1 << 2);
    /// The checksum, and the number that says where the block lies.
    pub const GUARD_AND_REFERENCE: Self = Self(1 << 2 | 1 << 0);

    /// Whether the checksum is checked.
    pub const fn guard(self) -> bool {
        self.0 & 1 << 2 != 0
    }

    /// Whether the application tag is.
    pub const fn application(self) -> bool {
        self.0 & 1 << 1 != 0
    }

    /// Whether the reference tag is.
    pub const fn reference(self) -> bool {
        self.0 & 1 << 0 != 0
    }
}

/// Commands of the NVM command set. [NVMe-NVM 3.3]
impl Submission {
    /// Read or write (`opcode`) of `blocks` (1 to 65536) from `lba` on, through to the medium if
    /// `fua`. [NVMe-NVM 3.3.4, 3.3.6]
    #[inline]
    pub const fn transfer(opcode: u8, namespace: u32, lba: u64, blocks: u32, fua: bool) -> Self {
        Transfer::new(opcode, namespace).of(0, lba, blocks.wrapping_sub(1) as u16 as u64, fua)
    }

    /// The same read, write or write zeroes of blocks with protection information, which the
    /// controller makes, or checks as `check` says and takes off. `reference` is the reference tag
    /// of the first block. [NVMe-NVM 3.3.4, 5.3.3]
    pub const fn with_protection(self, check: ProtectionCheck, reference: u32) -> Self {
        let prinfo = PROTECTION_ACTION | check.0 << PROTECTION_CHECK;
        self.with_dword(12, self.dword(12) | prinfo).with_dword(14, reference)
    }

    /// Read, write and write zeroes: whether the controller makes or takes off the protection
    /// information.
    pub const fn protection_action(&self) -> bool {
        self.dword(12) & PROTECTION_ACTION != 0
    }

    /// Read, write and write zeroes: what of the protection information is checked.
    pub const fn protection_check(&self) -> ProtectionCheck {
        ProtectionCheck(self.dword(12) >> PROTECTION_CHECK & 7)
    }

    /// Read, write and write zeroes: the reference tag of the first block.
    pub const fn reference_tag(&self) -> u32 {
        self.dword(14)
    }

    /// Flush. [NVMe 7.2]
    #[inline]
    pub const fn flush(namespace: u32) -> Self {
        Self::new(opcode::nvm::FLUSH, namespace)
    }

    /// Write zeroes over `blocks` (1 to 65536) from `lba` on; `deallocate` permits to free them.
    /// [NVMe-NVM 3.3.8]
    #[inline]
    pub const fn write_zeroes(
        namespace: u32,
        lba: u64,
        blocks: u32,
        fua: bool,
        deallocate: bool,
    ) -> Self {
        let mut command = Self::transfer(opcode::nvm::WRITE_ZEROES, namespace, lba, blocks, fua);
        if deallocate {
            command.0[6] |= DEALLOCATE as u64;
        }
        command
    }

    /// Dataset management: deallocate `ranges` (1 to 256) [`DsmRange`]s, which lie in the data.
    /// [NVMe-NVM 3.3.3]
    #[inline]
    pub const fn deallocate(namespace: u32, ranges: u32) -> Self {
        Self::new(opcode::nvm::DATASET_MANAGEMENT, namespace)
            .with_dword(10, ranges.wrapping_sub(1) & 0xff)
            .with_dword(11, DSM_DEALLOCATE)
    }

    /// Read, write, write zeroes: first block.
    pub const fn lba(&self) -> u64 {
        self.0[5]
    }

    /// Read, write, write zeroes: blocks, 1 to 65536.
    pub const fn blocks(&self) -> u32 {
        (self.dword(12) & 0xffff) + 1
    }

    /// Read, write, write zeroes: force unit access.
    pub const fn fua(&self) -> bool {
        self.dword(12) & FUA != 0
    }

    /// Write zeroes: the blocks may be deallocated.
    pub const fn may_deallocate(&self) -> bool {
        self.dword(12) & DEALLOCATE != 0
    }

    /// Dataset management: ranges, 1 to 256.
    pub const fn dsm_ranges(&self) -> u32 {
        (self.dword(10) & 0xff) + 1
    }

    /// Dataset management: the ranges shall be deallocated.
    pub const fn dsm_deallocates(&self) -> bool {
        self.dword(11) & DSM_DEALLOCATE != 0
    }
}

/// One range of dataset management, as two little-endian 64-bit words. [NVMe-NVM 3.3.3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsmRange {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u32,
}

impl DsmRange {
    /// Bytes of a range.
    pub const SIZE: usize = 16;

    /// The words that the device reads. The first holds the context attributes (zero) and the
    /// length.
    pub const fn to_words(self) -> [u64; 2] {
        [(self.blocks as u64) << 32, self.lba]
    }

    /// The range that these words say.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { lba: words[1], blocks: (words[0] >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_dword_is_half_of_a_word() {
        let command = Submission::new(0, 0)
            .with_dword(10, 0x1111)
            .with_dword(11, 0x2222)
            .with_dword(10, 0x3333);
        assert_eq!(command.0[5], 0x2222_0000_3333);
        assert_eq!((command.dword(10), command.dword(11)), (0x3333, 0x2222));
    }

    #[test]
    fn host_memory_is_read_back_as_it_was_described() {
        let command = Submission::set_host_memory(3, 0x4000, 0x12_3456_7000, 1);
        assert_eq!((command.feature(), command.feature_value()), (feature::HOST_MEMORY, 3));
        assert_eq!(command.host_memory(), (0x4000, 0x12_3456_7000, 1));
    }

    #[test]
    fn data_in_one_piece_is_described_by_the_command_itself() {
        let command = Submission::transfer(opcode::nvm::READ, 7, 1, 256, false)
            .with_block(0x1_2345_6000, 0x2_0000)
            .with_id(9);
        assert_eq!(
            (command.flags(), command.id(), command.opcode()),
            (Submission::SGL_FLAG, 9, opcode::nvm::READ)
        );
        assert_eq!((command.0[3], command.0[4]), (0x1_2345_6000, 0x2_0000));
    }

    #[test]
    fn a_second_id_replaces_the_first_and_leaves_opcode_and_namespace() {
        let command = Submission::new(0x55, 0x8000_0001).with_id(0xffff).with_id(0x1234);
        assert_eq!(
            (command.opcode(), command.id(), command.namespace()),
            (0x55, 0x1234, 0x8000_0001)
        );
    }

    #[test]
    fn a_write_of_the_most_blocks_is_read_back_as_it_was_built() {
        let command = Submission::transfer(opcode::nvm::WRITE, 7, u64::MAX - 1, 65536, true);
        assert_eq!((command.lba(), command.blocks(), command.fua()), (u64::MAX - 1, 65536, true));
        assert_eq!((command.dword(10), command.dword(11)), (u32::MAX - 1, u32::MAX));
    }

    #[test]
    fn write_zeroes_says_whether_blocks_may_be_freed() {
        assert!(Submission::write_zeroes(1, 0, 1, false, true).may_deallocate());
        assert!(!Submission::write_zeroes(1, 0, 1, true, false).may_deallocate());
    }

    #[test]
    fn queue_creation_is_read_back_as_it_was_built() {
        let cq = Submission::create_cq(3, 65536, 0x9000, Some(5));
        assert_eq!(
            (cq.queue(), cq.queue_entries(), cq.prp1(), cq.queue_vector()),
            (3, 65536, 0x9000, Some(5))
        );
        assert_eq!(Submission::create_cq(3, 2, 0x9000, None).queue_vector(), None);
        let sq = Submission::create_sq(4, 1024, 0xa000, 3);
        assert_eq!(
            (sq.queue(), sq.queue_entries(), sq.queue_completion(), sq.queue_contiguous()),
            (4, 1024, 3, true)
        );
    }

    #[test]
    fn a_log_page_longer_than_the_low_count_uses_the_high_one() {
        let command = Submission::get_log_page(2, 512, false);
        assert_eq!(
            (command.log_page(), command.log_bytes(), command.log_retains_event()),
            (2, 512, false)
        );
        assert_eq!(Submission::get_log_page(2, 1 << 20, true).log_bytes(), 1 << 20);
    }

    #[test]
    fn a_range_is_read_back_as_it_was_built() {
        let range = DsmRange { lba: 1 << 40, blocks: 0xffff_fff0 };
        assert_eq!(DsmRange::from_words(range.to_words()), range);
    }
}
