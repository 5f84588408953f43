//! Commands of the admin queue. [NVMe 5]

use ring3_spec::nvme::identify::cns;
use ring3_spec::nvme::opcode::admin;
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use super::process::{End, Taken};
use super::queue::{CompletionQueue, SubmissionQueue};
use super::quirk::Quirk;
use crate::Bus;

impl NvmeModel {
    /// Does an admin command; `endless` makes the list of namespaces one without end.
    pub(super) fn admin(&mut self, bus: &Bus, command: &Submission, endless: bool) -> End {
        if command.flags() != 0 {
            return Some(Err(Status::INVALID_FIELD.with_do_not_retry()));
        }
        if command.opcode() == admin::IDENTIFY
            && command.cns() == cns::DESCRIPTORS
            && self.shape.has(Quirk::NoCns03)
        {
            return None;
        }
        Some(match command.opcode() {
            admin::IDENTIFY => self.identify(bus, command, endless),
            admin::CREATE_CQ => self.create_completion_queue(command),
            admin::CREATE_SQ => self.create_submission_queue(command),
            admin::DELETE_SQ => self.delete_submission_queue(bus, command),
            admin::DELETE_CQ => self.delete_completion_queue(bus, command),
            admin::SET_FEATURES => self.set_feature(bus, command),
            admin::GET_FEATURES => self.get_feature(bus, command),
            admin::GET_LOG_PAGE => self.log_page(bus, command),
            admin::ABORT => self.abort(bus, command),
            admin::ASYNC_EVENT => return self.request_event(bus, command).err().map(Err),
            _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
        })
    }

    /// What both create commands demand of the queue that they make. [NVMe 5.2.1, 5.2.2]
    fn check_new_queue(&self, command: &Submission, taken: bool) -> Result<usize, Status> {
        let queue = command.queue();
        if queue == 0 || queue > self.features.granted(self.shape.queues) || taken {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        if !(2..=self.shape.entries_taken()).contains(&command.queue_entries())
            || !self.entry_sizes_are_set()
        {
            return Err(Status::INVALID_QUEUE_SIZE.with_do_not_retry());
        }
        if !command.queue_contiguous() {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        if !command.prp1().is_multiple_of(self.page()) {
            return Err(Status::INVALID_PRP_OFFSET.with_do_not_retry());
        }
        Ok(queue.into())
    }

    fn create_completion_queue(&mut self, command: &Submission) -> Result<u32, Status> {
        let taken = matches!(self.completion.get(usize::from(command.queue())), Some(Some(_)));
        let queue = self.check_new_queue(command, taken)?;
        let vector = command.queue_vector();
        let vectors =
            if self.shape.has(Quirk::SingleVector) { 1 } else { self.shape.vectors.max(1) };
        if vector.is_some_and(|vector| vector >= vectors) {
            return Err(Status::INVALID_INTERRUPT_VECTOR.with_do_not_retry());
        }
        self.completion[queue] =
            Some(CompletionQueue::new(command.prp1(), command.queue_entries(), vector));
        Ok(0)
    }

    fn create_submission_queue(&mut self, command: &Submission) -> Result<u32, Status> {
        let taken = matches!(self.submission.get(usize::from(command.queue())), Some(Some(_)));
        let queue = self.check_new_queue(command, taken)?;
        if self.shape.has(Quirk::NoUrgent) && !command.has_medium_priority() {
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        let target = command.queue_completion();
        if target == 0 || !matches!(self.completion.get(usize::from(target)), Some(Some(_))) {
            return Err(Status::INVALID_CQ.with_do_not_retry());
        }
        self.submission[queue] =
            Some(SubmissionQueue::new(command.prp1(), command.queue_entries(), target));
        Ok(0)
    }

    /// The commands that the queue still had are ended first. [NVMe 5.2.4]
    fn delete_submission_queue(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let queue = command.queue();
        if queue == 0 || !matches!(self.submission.get(usize::from(queue)), Some(Some(_))) {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        while let Some(waiting) = self.held.take_one(|waiting| waiting.queue == queue) {
            self.finish(bus, queue, &waiting.command, Err(Status::ABORTED_SQ_DELETION), None);
        }
        self.submission[usize::from(queue)] = None;
        Ok(0)
    }

    fn delete_completion_queue(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let queue = command.queue();
        if queue == 0 || !matches!(self.completion.get(usize::from(queue)), Some(Some(_))) {
            return Err(Status::INVALID_QUEUE_ID.with_do_not_retry());
        }
        if self.submission.iter().flatten().any(|submission| submission.completion == queue) {
            return Err(Status::INVALID_QUEUE_DELETION.with_do_not_retry());
        }
        self.completion[usize::from(queue)] = None;
        self.update_pin(bus);
        Ok(0)
    }

    /// A command that waits is ended; one that is done (or was lost) is not. [NVMe 5.1.1]
    fn abort(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let (queue, id) = command.aborted();
        if queue == 0 && self.events.withdraw(id) {
            let request = Submission::async_event().with_id(id);
            self.finish(bus, 0, &request, Err(Status::ABORTED), None);
            return Ok(0);
        }
        let asked = |waiting: &Taken| waiting.queue == queue && waiting.command.id() == id;
        let Some(waiting) = self.held.take_one(asked) else { return Ok(1) };
        self.finish(bus, queue, &waiting.command, Err(Status::ABORTED), None);
        Ok(0)
    }
}
