//! Commands of the admin queue. [NVMe 5]

use ring3_spec::nvme::identify::cns;
use ring3_spec::nvme::opcode::admin;
use ring3_spec::nvme::{Status, Submission};

use super::controller::NvmeModel;
use super::process::{End, Taken};
use super::queue::{CompletionQueue, SubmissionQueue};
use super::quirk::Quirk;
use super::shape::NamespaceShape;
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
            admin::FORMAT_NVM => self.format(command),
            admin::ASYNC_EVENT => return self.request_event(bus, command).err().map(Err),
            _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
        })
    }

    /// All data of a namespace are lost, and its blocks are laid out anew. [NVMe 5.1.10]
    fn format(&mut self, command: &Submission) -> Result<u32, Status> {
        let (index, protection) = command.formatted();
        let (cache, formats_all) = (self.shape.cache, self.shape.has(Quirk::FormatsAll));
        let number = command.namespace().wrapping_sub(1) as usize;
        let namespace = self.namespaces.get(number).filter(|namespace| namespace.attached);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
        let format = namespace.formats.get(index as usize).copied();
        let (block_shift, metadata) = format.ok_or(Status::INVALID_FORMAT.with_do_not_retry())?;
        if protection > 3 || (protection > 0 && metadata != 8) {
            return Err(Status::INVALID_FORMAT.with_do_not_retry());
        }
        let protection = protection as u8;
        for (place, namespace) in self.namespaces.iter_mut().enumerate() {
            if formats_all || place == number {
                let shape = NamespaceShape { block_shift, metadata, protection, ..namespace.shape };
                namespace.reformat(shape, (index as usize, cache));
            }
        }
        Ok(0)
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
