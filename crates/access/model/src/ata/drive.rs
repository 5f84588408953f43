//! The drive: which commands it takes, what they do, and how they end. [ACS-3 7]

use ring3_spec::ahci::fis::QueuedErrorLog;
use ring3_spec::ata::log::{self, Directory, GeneralStatistics};
use ring3_spec::ata::{ErrorBits, SECTOR, Status, TaskFile, device, opcode};

use super::command::{self, How, Kind};
use super::identify::TRIM_SECTORS;
use super::plan::{Data, Plan, Protocol};
use super::quirk::Quirk;
use super::shape::{DriveShape, Link, Statistics};
use crate::fault::Action;
use crate::medium::Medium;

/// DRDY and DSC: a drive that is well and waits. [ACS-3 6.2, ATA-6 7.15.6.4]
pub(crate) const READY: Status = Status(0x50);
/// SET FEATURES, transfer mode: the upper bits of the count say which kind. [ACS-3 7.45.3]
const MODE_PIO: u8 = 1;
const MODE_MULTIWORD: u8 = 4;
const MODE_ULTRA: u8 = 8;
/// Pages of the device statistics: the list of pages, and the general ones.
const STATISTICS_PAGES: u16 = log::GENERAL + 1;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) status: Status,
    pub(crate) error: ErrorBits,
    /// What the address registers hold then.
    pub(crate) lba: u64,
}

impl End {
    pub(super) fn well(lba: u64) -> Self {
        Self { status: READY, error: ErrorBits(0), lba }
    }

    /// Failed, with these bits of the error register.
    pub(crate) fn error(error: ErrorBits, lba: u64) -> Self {
        Self { status: READY.with_error(1), error, lba }
    }

    /// The drive does not do this.
    pub(crate) fn aborted() -> Self {
        Self::error(ErrorBits(0).with_aborted(1), 0)
    }

    /// The drive is broken.
    pub(super) fn fault() -> Self {
        Self {
            status: READY.with_fault(1).with_error(1),
            error: ErrorBits(0).with_aborted(1),
            lba: 0,
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.status.failed()
    }
}

/// A disk.
pub(crate) struct Drive {
    pub(crate) shape: DriveShape,
    /// Which one it is of its controller.
    pub(super) number: usize,
    pub(crate) medium: Medium,
    /// Whether the write cache is on.
    pub(super) cache: bool,
    /// Blocks of READ MULTIPLE that are set; 0 for none.
    pub(super) multiple: u8,
    /// Transfer mode that is set, as SET FEATURES says it.
    pub(crate) mode: u8,
    /// How often it was powered on.
    power_ons: u32,
    /// The queued command that failed; until somebody asks, the drive does nothing else.
    failed: Option<QueuedErrorLog>,
    /// The page that tells of it names another tag.
    lies: bool,
}

impl Drive {
    pub(crate) fn new(shape: DriveShape, number: usize) -> Self {
        let medium = Medium::new(shape.bytes, shape.block_shift, shape.cache);
        Self {
            number,
            medium,
            cache: shape.cache,
            shape,
            multiple: 0,
            mode: 0,
            power_ons: 1,
            failed: None,
            lies: false,
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    /// A reset: what was under way is forgotten; settings stay, but for READ MULTIPLE's. [ACS-3
    /// 7.45.16]
    pub(crate) fn reset(&mut self) {
        self.multiple = 0;
        self.failed = None;
    }

    /// The power goes and comes back. Whoever takes it away restarts the drive.
    pub(crate) fn lose_power(&mut self) {
        self.medium.lose_power();
        self.power_ons += 1;
    }

    /// As after power-on, the medium as it is.
    pub(crate) fn restart(&mut self) {
        self.reset();
        self.cache = self.shape.cache;
        self.mode = 0;
    }

    /// Multiword and Ultra DMA mode that is selected, as the bits of IDENTIFY.
    pub(super) fn selected(&self) -> (u16, u16) {
        let bit = 1 << (self.mode & 7);
        match self.mode >> 3 {
            MODE_MULTIWORD => (bit, 0),
            MODE_ULTRA => (0, bit),
            _ => (0, 0),
        }
    }

    /// The Ultra DMA mode that is selected.
    pub(crate) fn ultra_dma(&self) -> Option<u8> {
        (self.mode >> 3 == MODE_ULTRA).then_some(self.mode & 7)
    }

    /// Whether its cable has 80 wires.
    pub(crate) fn has_wide_cable(&self) -> bool {
        matches!(self.shape.link, Link::Parallel { wide_cable: true })
    }

    /// Begins a command, as the fault wants it, or ends it at once.
    pub(crate) fn begin(&mut self, task: &TaskFile, fault: Option<Action>) -> Result<Plan, End> {
        self.lies = fault == Some(Action::LyingLog);
        match fault {
            Some(Action::Error(bits)) => return Err(End::error(ErrorBits(bits), task.lba)),
            Some(Action::DriveFault) => return Err(End::fault()),
            _ => {}
        }
        let plan = self.plan(task)?;
        Ok(Plan { corrupt: fault == Some(Action::Corrupt), ..plan })
    }

    fn plan(&mut self, task: &TaskFile) -> Result<Plan, End> {
        let is_log = matches!(task.command, opcode::READ_LOG_EXT | opcode::READ_LOG_DMA_EXT);
        if self.failed.is_some() && !is_log {
            // After an error of a queued command nothing is done until the log was read. [ACS-3
            // 4.16.3]
            return Err(End::aborted());
        }
        if command::is_ext(task.command) && !self.shape.lba48 {
            return Err(End::aborted());
        }
        if let Some(kind) = Kind::of(task.command) {
            return self.transfer(task, kind);
        }
        match task.command {
            opcode::FLUSH | opcode::FLUSH_EXT | opcode::STANDBY_IMMEDIATE => self.medium.flush(),
            opcode::DATA_SET_MANAGEMENT => return self.trim(task),
            opcode::IDENTIFY => return Ok(Plan::give(self.identify().0.to_vec(), Protocol::PioIn)),
            opcode::SET_FEATURES => self.set_feature(task)?,
            opcode::SET_MULTIPLE => self.set_multiple(task.count as u8)?,
            opcode::READ_LOG_EXT => return self.log(task, Protocol::PioIn),
            opcode::READ_LOG_DMA_EXT if self.shape.dma => return self.log(task, Protocol::DmaIn),
            opcode::SMART => return self.smart(task),
            _ => return Err(End::aborted()),
        }
        Ok(Plan::without_data())
    }

    fn transfer(&mut self, task: &TaskFile, kind: Kind) -> Result<Plan, End> {
        let asks_through = command::is_durable(task);
        let durable = asks_through && !self.shape.has(Quirk::FuaLies);
        let possible = match kind.how() {
            How::Pio => true,
            How::Multiple => self.multiple > 0,
            How::Dma => self.shape.dma,
            How::Queued => (task.count >> 3 & 0x1f) < self.shape.depth,
        };
        if !possible || asks_through && !self.shape.fua || task.device & device::LBA == 0 {
            return Err(End::aborted());
        }
        let (lba, blocks) = (task.lba, command::count(task));
        if !self.medium.contains(lba, blocks.into()) {
            return Err(End::error(ErrorBits(0).with_id_not_found(1), lba));
        }
        let writes = matches!(kind, Kind::Write(_));
        if writes {
            self.medium.begin(lba, blocks.into());
        }
        let protocol = match (kind.how(), writes) {
            (How::Pio | How::Multiple, false) => Protocol::PioIn,
            (How::Pio | How::Multiple, true) => Protocol::PioOut,
            (How::Dma | How::Queued, false) => Protocol::DmaIn,
            (How::Dma | How::Queued, true) => Protocol::DmaOut,
        };
        let at_once = if kind.how() == How::Multiple { usize::from(self.multiple) } else { 1 };
        let bytes = (blocks as usize) << self.shape.block_shift;
        let data = Data::Blocks { lba, blocks, durable: durable || !self.cache };
        Ok(Plan { protocol, bytes, block: at_once << self.shape.block_shift, corrupt: false, data })
    }

    /// DATA SET MANAGEMENT. [ACS-3 7.5]
    fn trim(&self, task: &TaskFile) -> Result<Plan, End> {
        let known = task.features == u16::from(opcode::DSM_TRIM)
            && (1..=TRIM_SECTORS).contains(&task.count);
        if !self.shape.trim || !known {
            return Err(End::aborted());
        }
        let page = vec![0; usize::from(task.count) * SECTOR];
        Ok(Plan {
            protocol: Protocol::DmaOut,
            bytes: page.len(),
            block: SECTOR,
            corrupt: false,
            data: Data::Page(page),
        })
    }

    fn set_feature(&mut self, task: &TaskFile) -> Result<(), End> {
        match task.features as u8 {
            opcode::FEATURE_TRANSFER_MODE => {
                let (kind, mode) = (task.count as u8 >> 3, task.count as u8 & 7);
                let has = match kind {
                    0 => mode <= 1,
                    MODE_PIO => mode <= 4,
                    MODE_MULTIWORD => self.shape.dma && mode <= 2,
                    MODE_ULTRA => {
                        self.shape.dma && self.shape.ultra_dma.is_some_and(|best| mode <= best)
                    }
                    _ => false,
                };
                if !has {
                    return Err(End::aborted());
                }
                if kind == MODE_MULTIWORD || kind == MODE_ULTRA {
                    self.mode = task.count as u8;
                }
            }
            opcode::FEATURE_ENABLE_CACHE if self.shape.cache => self.cache = true,
            opcode::FEATURE_DISABLE_CACHE if self.shape.cache => {
                self.cache = false;
                self.medium.flush();
            }
            _ => return Err(End::aborted()),
        }
        Ok(())
    }

    fn set_multiple(&mut self, blocks: u8) -> Result<(), End> {
        if blocks != 0 && !(blocks.is_power_of_two() && blocks <= self.shape.multiple) {
            return Err(End::aborted());
        }
        self.multiple = blocks;
        Ok(())
    }

    /// READ LOG (DMA) EXT. [ACS-3 7.24]
    fn log(&mut self, task: &TaskFile, protocol: Protocol) -> Result<Plan, End> {
        if task.count != 1 {
            return Err(End::aborted());
        }
        match log::at_address(task.lba) {
            (log::DIRECTORY, 0) => {
                let mut directory = Directory([0; SECTOR]);
                directory.set_pages(log::DIRECTORY, Directory::VERSION);
                directory.set_pages(log::QUEUED_ERROR, (self.shape.depth > 0).into());
                if self.shape.statistics != Statistics::Off {
                    directory.set_pages(log::STATISTICS, STATISTICS_PAGES);
                }
                Ok(Plan::give(directory.0.to_vec(), protocol))
            }
            (log::STATISTICS, log::GENERAL) => {
                Ok(Plan::give(self.statistics()?.0.to_vec(), protocol))
            }
            (log::QUEUED_ERROR, 0) if self.shape.depth > 0 => {
                let mut page = self.failed.take().unwrap_or_else(nothing_failed);
                if std::mem::take(&mut self.lies) {
                    page.set_tag_bits(page.tag_bits() ^ 0x1f);
                }
                let sum = page.0.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                page.0[511] = page.0[511].wrapping_sub(sum);
                Ok(Plan::give(page.0.to_vec(), protocol))
            }
            _ => Err(End::aborted()),
        }
    }

    /// The general statistics. [ACS-4 9.5]
    fn statistics(&self) -> Result<GeneralStatistics, End> {
        let flags = match self.shape.statistics {
            Statistics::On => log::SUPPORTED | log::VALID,
            Statistics::Invalid => log::SUPPORTED,
            Statistics::Off | Statistics::Refused => return Err(End::aborted()),
        };
        let mut page = GeneralStatistics::zeroed();
        page.set_revision(1).set_page(log::GENERAL as u8);
        page.set_power_on_resets_raw(u64::from(self.power_ons) | flags);
        Ok(page)
    }

    fn smart(&self, task: &TaskFile) -> Result<Plan, End> {
        if (task.lba >> 8) as u16 != opcode::SMART_KEY {
            return Err(End::aborted());
        }
        match task.features as u8 {
            opcode::SMART_RETURN_STATUS => Ok(Plan::without_data()),
            opcode::SMART_READ_DATA => Ok(Plan::give(vec![0; SECTOR], Protocol::PioIn)),
            _ => Err(End::aborted()),
        }
    }

    /// Remembers that the queued command `task` failed; all others are given up with it. [ACS-3
    /// 9.13]
    pub(crate) fn fail_queued(&mut self, task: &TaskFile, end: &End) {
        let mut page = QueuedErrorLog::zeroed();
        let queued = command::is_queued(task.command);
        page.set_tag_bits(if queued { (task.count >> 3) as u8 & 0x1f } else { 1 << 7 });
        page.set_status(end.status.0).set_error(end.error.0);
        let [a, b, c, d, e, f, ..] = end.lba.to_le_bytes();
        (page.0[4], page.0[5], page.0[6], page.0[8], page.0[9], page.0[10]) = (a, b, c, d, e, f);
        self.failed = Some(page);
    }
}

/// The page while no queued command has failed: none of them did. [ACS-3 9.13]
fn nothing_failed() -> QueuedErrorLog {
    let mut page = QueuedErrorLog::zeroed();
    page.set_tag_bits(1 << 7);
    page
}
