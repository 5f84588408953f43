//! Asynchronous events as text for the log. [NVMe 5.1.2.1]

use std::fmt;

use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::{Status, log};

/// Something that the controller reported without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An error that no request's completion reports.
    Error {
        /// Which, see `AsyncEvent`'s constants.
        info: u32,
        /// The newest entry of the error log, if it could be read.
        status: Option<Status>,
    },
    /// The health changed; the critical warnings of the SMART log, if it could be read.
    Health {
        /// Which, see `AsyncEvent`'s constants.
        info: u32,
        /// Bits as in [`log::Smart`].
        warnings: Option<u8>,
    },
    /// New firmware is about to be activated: commands wait until it is.
    FirmwareActivation,
    /// Namespaces were added, removed or changed. What follows says which.
    NamespacesChanged,
    /// A namespace has grown. Its disk keeps the size that it had.
    NamespaceGrown {
        /// Its id.
        id: u32,
        /// How many blocks it has now.
        blocks: u64,
    },
    /// A namespace is gone, or not what it was: its disk has ended.
    NamespaceOver {
        /// Its id.
        id: u32,
    },
    /// A namespace is there that was not there when the controller was opened.
    NamespaceNew {
        /// Its id.
        id: u32,
    },
    /// Another notice, or an event of a kind that this driver does not know.
    Other(AsyncEvent),
}

impl Event {
    /// Which log page must be read so that events of this type can come again. [NVMe 5.1.2]
    pub(super) fn log_page(event: AsyncEvent) -> Option<u8> {
        [log::ERRORS, log::SMART, log::FIRMWARE_SLOTS, log::CHANGED_NAMESPACES]
            .into_iter()
            .find(|&page| u32::from(page) == event.log_page())
    }

    /// The event, with what its log page (if it was read) adds.
    pub(super) fn new(event: AsyncEvent, page: Option<&[u8]>) -> Self {
        let info = event.info();
        match event.kind() {
            AsyncEvent::ERROR => {
                let newest =
                    page.and_then(log::ErrorEntry::from_bytes).filter(|entry| entry.count() != 0);
                Self::Error { info, status: newest.map(|entry| entry.status()) }
            }
            AsyncEvent::HEALTH => Self::Health {
                info,
                warnings: page
                    .and_then(log::Smart::from_bytes)
                    .map(|smart| smart.critical_warning()),
            },
            AsyncEvent::NOTICE if info == AsyncEvent::NAMESPACE_CHANGED => Self::NamespacesChanged,
            AsyncEvent::NOTICE if info == AsyncEvent::FIRMWARE_ACTIVATION => {
                Self::FirmwareActivation
            }
            _ => Self::Other(event),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error { info, status } => {
                let what = match *info {
                    AsyncEvent::INVALID_DOORBELL => "a doorbell of no queue was written",
                    AsyncEvent::INVALID_DOORBELL_VALUE => {
                        "an invalid value was written to a doorbell"
                    }
                    AsyncEvent::DIAGNOSTIC_FAILURE => "diagnostic failure",
                    AsyncEvent::PERSISTENT_INTERNAL => "persistent internal error",
                    AsyncEvent::TRANSIENT_INTERNAL => "transient internal error",
                    _ => "error",
                };
                f.write_str(what)?;
                status
                    .map_or(Ok(()), |status| write!(f, "; newest entry of the error log: {status}"))
            }
            Self::Health { info, warnings } => {
                let what = match *info {
                    AsyncEvent::RELIABILITY => "reliability is degraded",
                    AsyncEvent::TEMPERATURE => "temperature beyond a threshold",
                    AsyncEvent::SPARE => "spare below its threshold",
                    _ => "health changed",
                };
                f.write_str(what)?;
                warnings.map_or(Ok(()), |bits| write!(f, "; critical warnings {bits:#04x}"))
            }
            Self::FirmwareActivation => {
                f.write_str("new firmware is activated; requests wait until it runs")
            }
            Self::NamespacesChanged => f.write_str("namespaces changed"),
            Self::NamespaceGrown { id, blocks } => {
                write!(
                    f,
                    "namespace {id} has grown to {blocks} blocks; its disk keeps its size until \
                    the driver is restarted (on Linux before 6.16: until it is stopped)"
                )
            }
            Self::NamespaceOver { id } => {
                write!(f, "namespace {id} is gone, or not what it was: its disk has ended")
            }
            Self::NamespaceNew { id } => {
                write!(f, "namespace {id} is new; restart the driver to have it as a disk")
            }
            Self::Other(event) => {
                write!(f, "event type {} information {:#04x}", event.kind(), event.info())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_event_says_the_warnings_of_the_log() {
        let mut smart = log::Smart::zeroed();
        smart.set_critical_warning(log::Smart::WARNING_TEMPERATURE);
        let event = Event::new(
            AsyncEvent::new(AsyncEvent::HEALTH, AsyncEvent::TEMPERATURE, log::SMART),
            Some(&smart.0),
        );
        assert_eq!(event.to_string(), "temperature beyond a threshold; critical warnings 0x02");
    }

    #[test]
    fn an_error_event_without_its_log_still_says_what_it_is() {
        let event = Event::new(
            AsyncEvent::new(AsyncEvent::ERROR, AsyncEvent::PERSISTENT_INTERNAL, log::ERRORS),
            None,
        );
        assert_eq!(event.to_string(), "persistent internal error");
    }

    #[test]
    fn an_unknown_log_page_is_not_asked_for() {
        assert_eq!(Event::log_page(AsyncEvent::new(7, 0, 0xc0)), None);
    }
}
