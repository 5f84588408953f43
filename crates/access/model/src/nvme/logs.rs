//! Log pages. [NVMe 5.1.12]

use std::collections::VecDeque;
use std::time::Instant;

use ring3_spec::nvme::log::{self, ErrorEntry, FirmwareSlots, Smart};
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use super::prp;
use crate::Bus;

/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 64;
/// Bytes of the unit of "data units": 1000 blocks of 512 bytes. [NVMe 5.1.12.1.3]
const DATA_UNIT: u64 = 512_000;
/// 30 degrees Celsius.
const TEMPERATURE_KELVIN: u16 = 303;

/// What the controller notes of its life.
pub(super) struct Logs {
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
    reads: u64,
    writes: u64,
    bytes_read: u64,
    bytes_written: u64,
    power_cycles: u64,
    unsafe_shutdowns: u64,
    since: Instant,
    pub(super) critical_warning: u8,
    /// It counts how often it loses its power.
    pub(super) counts_power: bool,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            errors: VecDeque::new(),
            error_count: 0,
            reads: 0,
            writes: 0,
            bytes_read: 0,
            bytes_written: 0,
            power_cycles: 1,
            unsafe_shutdowns: 0,
            since: Instant::now(),
            critical_warning: 0,
            counts_power: true,
        }
    }
}

impl Logs {
    pub(super) fn note_read(&mut self, bytes: u64) {
        self.reads += 1;
        self.bytes_read += bytes;
    }

    pub(super) fn note_write(&mut self, bytes: u64) {
        self.writes += 1;
        self.bytes_written += bytes;
    }

    pub(super) fn power_cycle(&mut self, orderly: bool) {
        self.power_cycles += 1;
        self.unsafe_shutdowns += u64::from(!orderly);
    }

    pub(super) fn note_error(&mut self, queue: u16, command: &Submission, status: Status) {
        self.error_count += 1;
        let mut entry = ErrorEntry::zeroed();
        entry
            .set_count(self.error_count)
            .set_queue(queue)
            .set_command(command.id())
            .set_raw_status(status.0 << 1);
        entry.set_location(u16::MAX).set_lba(command.lba()).set_namespace(command.namespace());
        self.errors.truncate(ERROR_ENTRIES - 1);
        self.errors.push_front(entry);
    }

    fn smart(&self) -> Smart {
        let mut smart = Smart::zeroed();
        smart
            .set_critical_warning(self.critical_warning)
            .set_temperature_kelvin(TEMPERATURE_KELVIN);
        smart.set_available_spare(100).set_spare_threshold(10);
        smart.set_data_units_read(self.bytes_read.div_ceil(DATA_UNIT).into());
        smart.set_data_units_written(self.bytes_written.div_ceil(DATA_UNIT).into());
        smart.set_host_reads(self.reads.into()).set_host_writes(self.writes.into());
        let power = |count: u64| if self.counts_power { u128::from(count) } else { 0 };
        smart
            .set_power_cycles(power(self.power_cycles))
            .set_unsafe_shutdowns(power(self.unsafe_shutdowns));
        smart.set_power_on_hours((self.since.elapsed().as_secs() / 3600).into());
        smart.set_error_log_entries(self.error_count.into());
        smart
    }
}

impl NvmeModel {
    /// It has one slot.
    fn firmware_slots(&self) -> FirmwareSlots {
        let mut slots = FirmwareSlots::zeroed();
        slots.set_info(1).set_revision(1, self.shape.strings.1.as_deref().unwrap_or("1.0"));
        slots
    }

    pub(super) fn log_page(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let page = match command.log_page() {
            log::ERRORS => self.logs.errors.iter().flat_map(|entry| entry.0).collect(),
            log::SMART => self.logs.smart().0.to_vec(),
            log::FIRMWARE_SLOTS => self.firmware_slots().0.to_vec(),
            log::CHANGED_NAMESPACES => {
                let changed = std::mem::take(&mut self.changed);
                let ids = changed.into_iter().chain(std::iter::repeat(0)).take(1024);
                ids.flat_map(u32::to_le_bytes).collect()
            }
            _ => return Err(Status::INVALID_LOG_PAGE.with_do_not_retry()),
        };
        let most = ring3_spec::nvme::identify::SIZE as u64;
        if command.log_bytes() > most
            || !command.log_offset().is_multiple_of(4)
            || command.log_offset() > most
        {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let (start, len) = (command.log_offset() as usize, command.log_bytes() as usize);
        let mut bytes: Vec<u8> = page.into_iter().skip(start).take(len).collect();
        bytes.resize(len, 0);
        prp::give(bus, command, self.page(), &bytes)?;
        if !command.log_retains_event() {
            self.events.read_log(command.log_page());
            self.deliver_events(bus);
        }
        Ok(0)
    }
}
