//! Asynchronous events. [NVMe 5.1.2]

use std::collections::VecDeque;

use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use crate::Bus;

/// Requests that may be outstanding.
pub(super) const LIMIT: usize = 4;
/// Events that are kept for later requests.
const KEPT: usize = 16;

/// Requests that wait for events, and events that wait for requests.
#[derive(Default)]
pub(super) struct Events {
    requests: VecDeque<u16>,
    pending: VecDeque<AsyncEvent>,
    /// Types, one bit each, that are silent until their log page is read.
    silent: u8,
}

impl Events {
    /// Takes an outstanding request back; false if there is none of that id.
    pub(super) fn withdraw(&mut self, id: u16) -> bool {
        let found = self.requests.iter().position(|&request| request == id);
        found.and_then(|index| self.requests.remove(index)).is_some()
    }

    /// The log page that announces this event's type was read: the type may speak again.
    pub(super) fn read_log(&mut self, page: u8) {
        self.silent &= match page {
            ring3_spec::nvme::log::ERRORS => !(1 << AsyncEvent::ERROR),
            ring3_spec::nvme::log::SMART => !(1 << AsyncEvent::HEALTH),
            _ => !(1 << AsyncEvent::NOTICE),
        };
    }

    /// An event and a request that fit together.
    fn pair(&mut self) -> Option<(u16, AsyncEvent)> {
        let silent = self.silent;
        let index = self.pending.iter().position(|event| silent >> event.kind() & 1 == 0)?;
        let request = self.requests.pop_front()?;
        let event = self.pending.remove(index)?;
        self.silent |= 1 << event.kind();
        Some((request, event))
    }
}

impl NvmeModel {
    /// Takes an asynchronous event request: it ends when there is an event.
    pub(super) fn request_event(&mut self, bus: &Bus, command: &Submission) -> Result<(), Status> {
        if self.events.requests.len() == LIMIT {
            return Err(Status::EVENT_LIMIT.with_do_not_retry());
        }
        self.events.requests.push_back(command.id());
        self.deliver_events(bus);
        Ok(())
    }

    /// Reports an event, now or when the host asks for it.
    pub(super) fn post_event(&mut self, bus: &Bus, event: AsyncEvent) {
        let pending = &mut self.events.pending;
        if pending.len() < KEPT && !pending.contains(&event) {
            pending.push_back(event);
        }
        self.deliver_events(bus);
    }

    pub(super) fn deliver_events(&mut self, bus: &Bus) {
        while let Some((id, event)) = self.events.pair() {
            let request = Submission::async_event().with_id(id);
            self.finish(bus, 0, &request, Ok(event.0), None);
        }
    }
}
