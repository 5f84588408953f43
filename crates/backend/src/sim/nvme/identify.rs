//! Identify. [NVMe 5.1.13]

use ring3_spec::nvme::identify::{Controller, LbaFormat, Namespace, build_namespace_list, cns};
use ring3_spec::nvme::{COMPLETION_SHIFT, SUBMISSION_SHIFT, Status, Submission};

use super::controller::NvmeModel;
use super::registers::VERSION;
use super::{events, logs, prp};
use crate::sim::Bus;

/// CNTRLTYPE: an I/O controller.
const IO_CONTROLLER: u8 = 1;
/// OAES: namespace attribute notices.
const NAMESPACE_NOTICES: u32 = 1 << 8;
/// LPA: get log page knows the extended length and the offset.
const LOG_EXTENDED: u8 = 1 << 2;
/// MC: metadata in a buffer of their own.
const SEPARATE_METADATA: u8 = 1 << 1;
/// DLFEAT: deallocated blocks read as zeroes.
const DEALLOCATED_ZEROES: u8 = 1;

impl NvmeModel {
    pub(super) fn identify(&mut self, bus: &Bus, command: &Submission) -> Result<u32, Status> {
        let count = self.namespaces.len() as u32;
        let bytes = match command.cns() {
            cns::CONTROLLER => self.identify_controller().0,
            cns::NAMESPACE if (1..=count).contains(&command.namespace()) => self.identify_namespace(command.namespace()).0,
            cns::ACTIVE_NAMESPACES if command.namespace() < u32::MAX - 1 => build_namespace_list(1..=count, command.namespace()),
            cns::NAMESPACE | cns::ACTIVE_NAMESPACES => return Err(Status::INVALID_NAMESPACE.with_do_not_retry()),
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        };
        prp::give(bus, command, self.page(), &bytes).map(|()| 0)
    }

    fn identify_controller(&self) -> Controller {
        let mut controller = Controller::zeroed();
        controller.set_strings("RING3SIM", "ring3 simulated NVMe disk", "1.0").set_version(VERSION.0);
        controller.set_vendor(0x1b36).set_max_transfer_shift(self.shape.mdts).set_controller_type(IO_CONTROLLER);
        controller.set_async_events(NAMESPACE_NOTICES).set_log_attributes(LOG_EXTENDED);
        controller.set_abort_limit_0based(3).set_event_limit_0based(events::LIMIT as u8 - 1);
        controller.set_error_entries_0based(logs::ERROR_ENTRIES as u8 - 1);
        controller.set_submission_entry((SUBMISSION_SHIFT << 4 | SUBMISSION_SHIFT) as u8);
        controller.set_completion_entry((COMPLETION_SHIFT << 4 | COMPLETION_SHIFT) as u8);
        controller.set_namespaces(self.namespaces.len() as u32).set_volatile_cache(self.shape.cache.into());
        controller.set_nvm_commands(Controller::ONCS_DATASET_MANAGEMENT | Controller::ONCS_WRITE_ZEROES);
        controller
    }

    fn identify_namespace(&self, id: u32) -> Namespace {
        let (shape, blocks) = {
            let namespace = &self.namespaces[id as usize - 1];
            (namespace.shape, namespace.blocks())
        };
        let mut namespace = Namespace::zeroed();
        namespace.set_size(blocks).set_capacity(blocks).set_used(blocks);
        namespace.set_format(0, LbaFormat::new(shape.block_shift, shape.metadata.into()));
        namespace.set_deallocate_features(DEALLOCATED_ZEROES);
        if shape.metadata > 0 {
            namespace.set_metadata_capabilities(SEPARATE_METADATA);
        }
        if shape.read_only {
            namespace.set_attributes(Namespace::WRITE_PROTECTED);
        }
        namespace
    }
}
