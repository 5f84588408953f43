//! Identify. [NVMe 5.1.13]

use ring3_spec::nvme::identify::{
    Controller, LbaFormat, Namespace, PowerState, build_descriptors, build_namespace_list, cns, csi,
};
use ring3_spec::nvme::registers::{Cc, Version};
use ring3_spec::nvme::{COMPLETION_SHIFT, SUBMISSION_SHIFT, Status, Submission};

use super::controller::NvmeModel;
use super::quirk::Quirk;
use super::shape::NamespaceShape;
use super::{events, logs, prp};
use crate::Bus;
use crate::options::WILD_TEXT;

/// The first version with the list of namespaces. [NVMe 1.1 5.11]
const LISTS: Version = Version(0x0001_0100);
/// CNTRLTYPE: an I/O controller.
const IO_CONTROLLER: u8 = 1;
/// OAES: namespace attribute notices.
const NAMESPACE_NOTICES: u32 = 1 << 8;
/// OAES: firmware activation notices.
const ACTIVATION_NOTICES: u32 = 1 << 9;
/// LPA: get log page knows the extended length and the offset.
const LOG_EXTENDED: u8 = 1 << 2;
/// MP of power state 0: 8 W; each other state takes half of the one before.
const MOST_POWER: u16 = 800;
/// MC: metadata in a buffer of their own.
const SEPARATE_METADATA: u8 = 1 << 1;
/// DLFEAT: deallocated blocks read as zeroes.
const DEALLOCATED_ZEROES: u8 = 1;

impl NvmeModel {
    pub(super) fn identify(
        &mut self,
        bus: &Bus,
        command: &Submission,
        endless: bool,
    ) -> Result<u32, Status> {
        let id = command.namespace();
        let bytes = match command.cns() {
            other if other > cns::CONTROLLER && self.shape.has(Quirk::NoCns02) => {
                self.identify_controller().0
            }
            // Version 1.0 has two structures. [NVMe 1.0e 5.11]
            other if other > cns::CONTROLLER && self.shape.version.0 < LISTS.0 => {
                return Err(Status::INVALID_FIELD.with_do_not_retry());
            }
            cns::CONTROLLER if endless => self.identify_controller().set_namespaces(u32::MAX - 1).0,
            cns::CONTROLLER => self.identify_controller().0,
            cns::NAMESPACE => {
                // The structure is that of the NVM command set. [NVMe-NVM 4.1.5.1]
                let shape = self.active(id).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
                if shape.command_set != csi::NVM {
                    return Err(Status::INVALID_FIELD.with_do_not_retry());
                }
                self.identify_namespace(id).0
            }
            cns::DESCRIPTORS => {
                let shape = self.active(id).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
                build_descriptors(id, shape.command_set)
            }
            cns::ACTIVE_NAMESPACES if id >= u32::MAX - 1 => {
                return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
            }
            cns::ACTIVE_NAMESPACES if endless => {
                build_namespace_list(id + 1..=id.saturating_add(1024), id)
            }
            cns::ACTIVE_NAMESPACES => {
                let all = 1..=self.namespaces.len() as u32;
                build_namespace_list(all.filter(|&id| self.active(id).is_some()), id)
            }
            _ => return Err(Status::INVALID_FIELD.with_do_not_retry()),
        };
        prp::give(bus, command, self.page(), &bytes).map(|()| 0)
    }

    /// Namespace `id`, if it is active: without CC.CSS = 110b, only those of the NVM command set
    /// are.
    fn active(&self, id: u32) -> Option<NamespaceShape> {
        let shape = self
            .namespaces
            .get(id.wrapping_sub(1) as usize)
            .filter(|namespace| namespace.attached)?
            .shape;
        (shape.command_set == csi::NVM || self.cc.command_set() == Cc::CSS_ALL).then_some(shape)
    }

    fn identify_controller(&self) -> Controller {
        let mut controller = Controller::zeroed();
        let plain = ["RING3SIM", "ring3 simulated NVMe disk", "1.0"];
        let [serial, model, firmware] = if self.shape.wild_text { WILD_TEXT } else { plain };
        let (own_model, own_firmware) = &self.shape.strings;
        let model = own_model.as_deref().unwrap_or(model);
        let firmware = own_firmware.as_deref().unwrap_or(firmware);
        let serial = self.serial.as_deref().unwrap_or(serial);
        controller.set_strings(serial, model, firmware).set_version(self.shape.version.0);
        controller.set_retry_delay_1((self.shape.retry_delay.as_millis() / 100) as u16);
        controller
            .set_vendor(self.shape.id.0)
            .set_max_transfer_shift(self.shape.mdts)
            .set_controller_type(IO_CONTROLLER);
        let activation = self.shape.activation;
        let notices = if activation.is_zero() { 0 } else { ACTIVATION_NOTICES };
        controller.set_firmware_activation_100ms((activation.as_millis() / 100) as u16);
        controller.set_async_events(NAMESPACE_NOTICES | notices).set_log_attributes(LOG_EXTENDED);
        controller.set_abort_limit_0based(3).set_event_limit_0based(events::LIMIT as u8 - 1);
        controller.set_error_entries_0based(logs::ERROR_ENTRIES as u8 - 1);
        controller.set_submission_entry((SUBMISSION_SHIFT << 4 | SUBMISSION_SHIFT) as u8);
        controller.set_completion_entry((COMPLETION_SHIFT << 4 | COMPLETION_SHIFT) as u8);
        controller
            .set_namespaces(self.namespaces.len() as u32)
            .set_volatile_cache(self.shape.cache.into());
        let units = |bytes: u64| (bytes / 4096).min(u32::MAX.into()) as u32;
        let memory = self.shape.host_memory;
        controller
            .set_host_memory_preferred(units(memory.preferred))
            .set_host_memory_minimum(units(memory.minimum))
            .set_host_memory_smallest_piece(units(memory.smallest_piece))
            .set_host_memory_pieces(memory.pieces);
        let sleeps = &self.shape.sleeps;
        controller
            .set_power_states_0based(sleeps.len() as u8)
            .set_power_state_transitions((!sleeps.is_empty()).into());
        for (number, sleep) in (1..).zip(sleeps) {
            let mut state = PowerState::zeroed();
            state
                .set_max_power(MOST_POWER.checked_shr(number as u32).unwrap_or(0))
                .set_flags(PowerState::FLAG_NON_OPERATIONAL)
                .set_entry_us(sleep.entry.as_micros() as u32)
                .set_exit_us(sleep.exit.as_micros() as u32);
            controller.set_power_state(number, state);
        }
        if !sleeps.is_empty() {
            let mut state = PowerState::zeroed();
            state.set_max_power(MOST_POWER);
            controller.set_power_state(0, state);
        }
        controller.set_admin_commands(Controller::OACS_FORMAT);
        if self.shape.has(Quirk::FormatsAll) {
            controller.set_format_attributes(Controller::FNA_FORMATS_ALL);
        }
        // 1: supported, of any length and alignment.
        controller.set_sgl_support(self.shape.sgl.into());
        controller
            .set_nvm_commands(Controller::ONCS_DATASET_MANAGEMENT | Controller::ONCS_WRITE_ZEROES);
        controller
    }

    fn identify_namespace(&self, id: u32) -> Namespace {
        let (shape, blocks, unique, formats, format) = {
            let namespace = &self.namespaces[id as usize - 1];
            let (formats, format) = (namespace.formats, namespace.format);
            (namespace.shape, namespace.blocks(), namespace.unique, formats, format)
        };
        let unique = match self.shape.has(Quirk::BogusNid) {
            true => [self.counters.enables as u8 + 1; 24],
            false => unique,
        };
        let mut namespace = Namespace::zeroed();
        namespace.set_size(blocks).set_capacity(blocks).set_used(blocks).set_unique(unique);
        for (index, (block_shift, metadata)) in formats.into_iter().enumerate() {
            namespace.set_format(index, LbaFormat::new(block_shift, metadata.into()));
        }
        namespace.set_formats_0based(formats.len() as u8 - 1).set_formatted(format as u8);
        namespace.set_deallocate_features(DEALLOCATED_ZEROES);
        namespace.set_optimal_boundary(self.shape.optimal_boundary);
        if shape.metadata > 0 {
            namespace.set_metadata_capabilities(SEPARATE_METADATA);
        }
        if shape.protection > 0 {
            // DPC: all three types, in the first or in the last bytes.
            namespace.set_protection_capabilities(0x1f).set_protection(shape.protection);
        }
        if shape.read_only {
            namespace.set_attributes(Namespace::WRITE_PROTECTED);
        }
        namespace
    }
}
