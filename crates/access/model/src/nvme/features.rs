//! Features. [NVMe 5.1.11, 5.1.25]

use ring3_spec::nvme::feature::{self, AsyncEvents, QueueCounts};
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use super::prp;
use super::quirk::Quirk;
use super::shape::Shape;
use crate::Bus;

/// The settings that a host can make; a controller reset takes them back.
pub(super) struct Features {
    has_cache: bool,
    cache: u32,
    coalescing: u32,
    pub(super) async_events: AsyncEvents,
    /// What the host asked for; `None` until it does.
    queues: Option<u16>,
    /// It may change its power state by itself.
    pub(super) changes_power_state: bool,
    /// Statuses may ask for a delay before a command is repeated.
    retry_delay: bool,
}

impl Features {
    pub(super) fn new(shape: &Shape) -> Self {
        let cache = if shape.cache { feature::CACHE_ENABLED } else { 0 };
        Self {
            has_cache: shape.cache,
            cache,
            coalescing: 0,
            async_events: AsyncEvents(0),
            queues: None,
            changes_power_state: shape.has(Quirk::BrokenApst),
            retry_delay: false,
        }
    }

    pub(super) fn cache_enabled(&self) -> bool {
        self.cache & feature::CACHE_ENABLED != 0
    }

    /// `status` as the host can read it: without a delay if the host did not say that it knows what
    /// that is.
    pub(super) fn told(&self, status: Status) -> Status {
        if self.retry_delay { status } else { status.with_retry_delay(0) }
    }

    /// Queue pairs that may be created, of those that exist.
    pub(super) fn granted(&self, exist: u16) -> u16 {
        self.queues.unwrap_or(exist).min(exist)
    }
}

impl NvmeModel {
    pub(super) fn set_feature(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let value = command.feature_value();
        match command.feature() {
            feature::NUMBER_OF_QUEUES => return self.set_queue_counts(value),
            feature::VOLATILE_WRITE_CACHE if self.features.has_cache => {
                self.features.cache = value & feature::CACHE_ENABLED;
                if !self.features.cache_enabled() {
                    self.namespaces.iter_mut().for_each(|namespace| namespace.flush());
                }
            }
            feature::INTERRUPT_COALESCING => self.features.coalescing = value & 0xffff,
            feature::HOST_BEHAVIOR if !self.shape.retry_delay.is_zero() => {
                let mut bytes = [0; 512];
                prp::take(bus, command, self.page(), &mut bytes)?;
                self.features.retry_delay = bytes[0] & feature::HOST_BEHAVIOR_RETRY_DELAY != 0;
            }
            feature::POWER_STATE_TRANSITIONS if !self.shape.sleeps.is_empty() => {
                let mut table = [0; 256];
                prp::take(bus, command, self.page(), &mut table)?;
                let enabled = value & feature::TRANSITIONS_ENABLED != 0;
                self.features.changes_power_state = enabled && self.shape.has(Quirk::BrokenApst);
                let transitions = enabled.then(|| feature::transitions(&table));
                self.power.set(bus, transitions, &self.shape.sleeps);
            }
            feature::HOST_MEMORY if self.shape.host_memory.preferred > 0 => {
                self.set_host_memory(bus, command)?;
            }
            feature::ASYNC_EVENTS => self.features.async_events = AsyncEvents(value),
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        }
        Ok(0)
    }

    pub(super) fn get_feature(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        Ok(match command.feature() {
            feature::NUMBER_OF_QUEUES => {
                let granted = self.features.granted(self.shape.queues);
                QueueCounts { submission: granted, completion: granted }.to_dword()
            }
            feature::VOLATILE_WRITE_CACHE if self.features.has_cache => self.features.cache,
            feature::INTERRUPT_COALESCING => self.features.coalescing,
            feature::POWER_MANAGEMENT => self.power.counters.state as u32,
            feature::HOST_MEMORY if self.shape.host_memory.preferred > 0 => {
                return self.get_host_memory(bus, command);
            }
            feature::ASYNC_EVENTS => self.features.async_events.0,
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        })
    }

    /// Only before the first I/O queue exists, and never the reserved value 65535. [NVMe
    /// 5.1.25.2.1]
    fn set_queue_counts(&mut self, value: u32) -> Result<u32, Status> {
        if self.completion.iter().skip(1).any(Option::is_some) {
            return Err(Status::SEQUENCE.with_do_not_retry());
        }
        if value & 0xffff == 0xffff || value >> 16 == 0xffff {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let asked = QueueCounts::from_dword(value);
        let granted = asked.submission.max(asked.completion).min(self.shape.queues);
        self.features.queues = Some(granted);
        Ok(QueueCounts { submission: granted, completion: granted }.to_dword())
    }
}
