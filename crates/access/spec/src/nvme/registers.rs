//! The controller's properties, at the start of BAR 0. [NVMe 3.1.4]

use crate::fields;
use crate::register::{Reg, Ro, Rw, Wo};

/// Controller capabilities. [NVMe 3.1.4.1]
pub const CAP: Reg<Cap, Ro> = Reg::at(0x00);
/// Version. [NVMe 3.1.4.2]
pub const VS: Reg<Version, Ro> = Reg::at(0x08);
/// Interrupt mask set: ones mask vectors; not with MSI-X. [NVMe 3.1.4.3]
pub const INTMS: Reg<u32, Rw> = Reg::at(0x0c);
/// Interrupt mask clear: ones unmask vectors; not with MSI-X. [NVMe 3.1.4.4]
pub const INTMC: Reg<u32, Rw> = Reg::at(0x10);
/// Controller configuration. [NVMe 3.1.4.5]
pub const CC: Reg<Cc, Rw> = Reg::at(0x14);
/// Controller status. [NVMe 3.1.4.6]
pub const CSTS: Reg<Csts, Rw> = Reg::at(0x1c);
/// NVM subsystem reset: [`NSSR_RESET`] starts one. [NVMe 3.1.4.7]
pub const NSSR: Reg<u32, Rw> = Reg::at(0x20);
/// Admin queue attributes. [NVMe 3.1.4.8]
pub const AQA: Reg<Aqa, Rw> = Reg::at(0x24);
/// Admin submission queue base address, page aligned. [NVMe 3.1.4.9]
pub const ASQ: Reg<u64, Rw> = Reg::at(0x28);
/// Admin completion queue base address, page aligned. [NVMe 3.1.4.10]
pub const ACQ: Reg<u64, Rw> = Reg::at(0x30);
/// Controller ready timeouts; read it only where CAP.CRMS says so. [NVMe 3.1.4.21]
pub const CRTO: Reg<Crto, Ro> = Reg::at(0x68);
/// Where the doorbells begin, in bytes from the start of the BAR. [NVMe-PCIe 3.1.2]
pub const DOORBELLS: u32 = 0x1000;

/// The value of NSSR that resets the subsystem: "NVMe". [NVMe 3.1.4.7]
pub const NSSR_RESET: u32 = 0x4e56_4d65;

/// The tail doorbell of submission queue `queue`, for CAP.DSTRD = `stride`. [NVMe-PCIe 3.1.2.1]
pub const fn submission_doorbell(queue: u16, stride: u32) -> Reg<u32, Wo> {
    Reg::at(DOORBELLS + 2 * queue as u32 * (4 << stride))
}

/// The head doorbell of completion queue `queue`, for CAP.DSTRD = `stride`. [NVMe-PCIe 3.1.2.2]
pub const fn completion_doorbell(queue: u16, stride: u32) -> Reg<u32, Wo> {
    Reg::at(DOORBELLS + (2 * queue as u32 + 1) * (4 << stride))
}

/// Bytes of the BAR up to the last doorbell of `queues` queue pairs, the admin pair included.
pub const fn doorbells_end(queues: u16, stride: u32) -> u64 {
    DOORBELLS as u64 + 2 * queues as u64 * (4 << stride)
}

fields! {
    /// Controller capabilities. [NVMe 3.1.4.1]
    pub struct Cap(u64) {
        /// MQES: most entries of an I/O queue, less one.
        max_queue_entries_0based, with_max_queue_entries_0based: 15..=0;
        /// CQR: queues must be physically contiguous.
        contiguous_queues, with_contiguous_queues: 16..=16;
        /// AMS: arbitration mechanisms beyond round robin.
        arbitration, with_arbitration: 18..=17;
        /// TO: most time from a change of CC.EN until CSTS.RDY follows, in units of 500 ms.
        timeout_500ms, with_timeout_500ms: 31..=24;
        /// DSTRD: distance of doorbells is 4 bytes shifted left by this.
        doorbell_stride, with_doorbell_stride: 35..=32;
        /// NSSRS: NVM subsystem reset exists.
        subsystem_reset, with_subsystem_reset: 36..=36;
        /// CSS: command sets; see `CSS_NVM`, `CSS_IO_SETS`, `CSS_NONE`.
        command_sets, with_command_sets: 44..=37;
        /// BPS: boot partitions exist.
        boot_partitions, with_boot_partitions: 45..=45;
        /// MPSMIN: smallest memory page, 4096 bytes shifted left by this.
        page_min, with_page_min: 51..=48;
        /// MPSMAX: largest memory page, 4096 bytes shifted left by this.
        page_max, with_page_max: 55..=52;
        /// CRMS: modes of CRTO; bit 0 means with media.
        ready_modes, with_ready_modes: 60..=59;
    }
}

impl Cap {
    /// CRMS: CRTO says how long the controller may take until it is ready with its media.
    pub const READY_WITH_MEDIA: u64 = 1 << 0;
    /// CSS: the NVM command set.
    pub const CSS_NVM: u64 = 1 << 0;
    /// CSS: one or more I/O command sets are chosen with the I/O command set profile.
    pub const CSS_IO_SETS: u64 = 1 << 6;
    /// CSS: no I/O command set, admin only.
    pub const CSS_NONE: u64 = 1 << 7;

    /// Most entries of an I/O queue, 2 to 65536.
    pub const fn max_queue_entries(self) -> u32 {
        self.max_queue_entries_0based() as u32 + 1
    }

    /// The longest that enabling and disabling may take, in milliseconds.
    pub const fn timeout_ms(self) -> u64 {
        self.timeout_500ms() * 500
    }

    /// DSTRD as the doorbell functions take it.
    pub const fn stride(self) -> u32 {
        self.doorbell_stride() as u32
    }
}

fields! {
    /// Controller ready timeouts, in units of 500 ms. [NVMe 3.1.4.21]
    pub struct Crto(u32) {
        /// CRWMT: most time from CC.EN = 1 until the controller is ready with its media.
        with_media_500ms, with_with_media_500ms: 15..=0;
        /// CRIMT: the same without its media.
        without_media_500ms, with_without_media_500ms: 31..=16;
    }
}

impl Crto {
    /// The longest that enabling may take, media included, in milliseconds: up to nine hours.
    pub const fn with_media_ms(self) -> u64 {
        self.with_media_500ms() as u64 * 500
    }
}

fields! {
    /// Version. [NVMe 3.1.4.2]
    pub struct Version(u32) {
        /// Tertiary version.
        tertiary, with_tertiary: 7..=0;
        /// Minor version.
        minor, with_minor: 15..=8;
        /// Major version.
        major, with_major: 31..=16;
    }
}

fields! {
    /// Controller configuration. [NVMe 3.1.4.5]
    pub struct Cc(u32) {
        /// EN: the controller processes commands. Cleared: controller reset.
        enable, with_enable: 0..=0;
        /// CSS: command set; see `CSS_NVM` and `CSS_ALL`.
        command_set, with_command_set: 6..=4;
        /// MPS: memory page, 4096 bytes shifted left by this.
        page_size, with_page_size: 10..=7;
        /// AMS: arbitration; 0 is round robin.
        arbitration, with_arbitration: 13..=11;
        /// SHN: shutdown notification; see `SHN_NORMAL` and `SHN_ABRUPT`.
        shutdown, with_shutdown: 15..=14;
        /// IOSQES: log2 of an I/O submission queue entry's bytes.
        submission_entry, with_submission_entry: 19..=16;
        /// IOCQES: log2 of an I/O completion queue entry's bytes.
        completion_entry, with_completion_entry: 23..=20;
        /// CRIME: ready independent of media.
        ready_independent, with_ready_independent: 24..=24;
    }
}

impl Cc {
    /// CSS: the NVM command set.
    pub const CSS_NVM: u32 = 0b000;
    /// CSS: all supported I/O command sets.
    pub const CSS_ALL: u32 = 0b110;
    /// SHN: no notification.
    pub const SHN_NONE: u32 = 0b00;
    /// SHN: normal shutdown.
    pub const SHN_NORMAL: u32 = 0b01;
    /// SHN: abrupt shutdown.
    pub const SHN_ABRUPT: u32 = 0b10;
}

fields! {
    /// Controller status. [NVMe 3.1.4.6]
    pub struct Csts(u32) {
        /// RDY: follows CC.EN. Zero: the controller owns no queue and starts no transfer.
        ready, with_ready: 0..=0;
        /// CFS: a fatal error; only a reset helps.
        fatal, with_fatal: 1..=1;
        /// SHST: see `SHUTDOWN_NONE`, `SHUTDOWN_ACTIVE`, `SHUTDOWN_DONE`.
        shutdown, with_shutdown: 3..=2;
        /// NSSRO: a subsystem reset occurred; write 1 to clear.
        subsystem_reset, with_subsystem_reset: 4..=4;
        /// PP: processing of commands is paused.
        paused, with_paused: 5..=5;
    }
}

impl Csts {
    /// SHST: no shutdown was asked for.
    pub const SHUTDOWN_NONE: u32 = 0b00;
    /// SHST: under way.
    pub const SHUTDOWN_ACTIVE: u32 = 0b01;
    /// SHST: complete; power may be removed.
    pub const SHUTDOWN_DONE: u32 = 0b10;
}

fields! {
    /// Admin queue attributes: entries less one. [NVMe 3.1.4.8]
    pub struct Aqa(u32) {
        /// ASQS: entries of the submission queue, less one.
        submission_0based, with_submission_0based: 11..=0;
        /// ACQS: entries of the completion queue, less one.
        completion_0based, with_completion_0based: 27..=16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_alternate_between_submission_and_completion() {
        assert_eq!(submission_doorbell(0, 0).offset(), 0x1000);
        assert_eq!(completion_doorbell(0, 0).offset(), 0x1004);
        assert_eq!(submission_doorbell(3, 0).offset(), 0x1018);
        assert_eq!(completion_doorbell(3, 0).offset(), 0x101c);
        assert_eq!(doorbells_end(4, 0), 0x1020);
    }

    #[test]
    fn a_stride_sets_doorbells_further_apart() {
        assert_eq!(submission_doorbell(1, 4).offset(), 0x1080);
        assert_eq!(completion_doorbell(1, 4).offset(), 0x10c0);
    }

    #[test]
    fn the_largest_queue_has_one_entry_more_than_the_field_says() {
        assert_eq!(Cap(0xffff).max_queue_entries(), 65536);
    }
}
