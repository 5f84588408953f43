//! Asynchronous events: what the completion of an asynchronous event request says. [NVMe 5.1.2.1]

use crate::fields;

fields! {
    /// Dword 0 of the completion.
    pub struct AsyncEvent(u32) {
        /// Type: see `ERROR`, `HEALTH`, `NOTICE`.
        kind, with_kind: 2..=0;
        /// Information, by type.
        info, with_info: 15..=8;
        /// The log page to read; reading it lets events of this type come again.
        log_page, with_log_page: 23..=16;
    }
}

impl AsyncEvent {
    /// Type: an error that no command's completion reports.
    pub const ERROR: u32 = 0;
    /// Type: SMART / health status.
    pub const HEALTH: u32 = 1;
    /// Type: notice.
    pub const NOTICE: u32 = 2;
    /// Type: specific to the vendor.
    pub const VENDOR: u32 = 7;

    /// ERROR: a doorbell of a queue that does not exist was written.
    pub const INVALID_DOORBELL: u32 = 0;
    /// ERROR: an invalid value was written to a doorbell.
    pub const INVALID_DOORBELL_VALUE: u32 = 1;
    /// ERROR: diagnostic failure.
    pub const DIAGNOSTIC_FAILURE: u32 = 2;
    /// ERROR: persistent internal error.
    pub const PERSISTENT_INTERNAL: u32 = 3;
    /// ERROR: transient internal error.
    pub const TRANSIENT_INTERNAL: u32 = 4;

    /// HEALTH: the subsystem's reliability is degraded.
    pub const RELIABILITY: u32 = 0;
    /// HEALTH: a temperature threshold was passed.
    pub const TEMPERATURE: u32 = 1;
    /// HEALTH: the spare is below its threshold.
    pub const SPARE: u32 = 2;

    /// NOTICE: a namespace attribute changed.
    pub const NAMESPACE_CHANGED: u32 = 0;
    /// NOTICE: new firmware is about to be activated; commands wait meanwhile (CSTS.PP).
    pub const FIRMWARE_ACTIVATION: u32 = 1;

    /// An event.
    pub const fn new(kind: u32, info: u32, log_page: u8) -> Self {
        Self(0).with_kind(kind).with_info(info).with_log_page(log_page as u32)
    }
}
