//! Commands of I/O queues. [NVMe-NVM 3.3]

use ring3_spec::nvme::identify::csi;
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::{ALL_NAMESPACES, Status, Submission};

use super::controller::{NvmeModel, PAGE};
use super::namespace::{Namespace, Transfer};
use super::prp::Pages;
use super::quirk::Quirk;
use crate::Bus;

impl NvmeModel {
    /// Does an I/O command; `corrupt` inverts the first byte of its data.
    #[inline]
    pub(super) fn io(
        &mut self,
        bus: &Bus,
        command: &Submission,
        corrupt: bool,
    ) -> Result<u32, Status> {
        if command.flags() & !(if self.shape.sgl { Submission::SGL_FLAG } else { 0 }) != 0 {
            // No fused commands, and no metadata by scatter gather lists. [NVMe 4.1, CDW0]
            return Err(Status::INVALID_FIELD.with_do_not_retry());
        }
        if command.opcode() == nvm::FLUSH && command.namespace() == ALL_NAMESPACES {
            self.namespaces.iter_mut().for_each(Namespace::flush);
            return Ok(0);
        }
        let how = Transfer {
            pages: Pages { page: self.page(), chained: self.shape.has(Quirk::ChainedLists) },
            most: self.most_bytes(),
            corrupt,
            cached: self.features.cache_enabled(),
        };
        let index = command.namespace().wrapping_sub(1) as usize;
        let namespace = self
            .namespaces
            .get_mut(index)
            .filter(|namespace| namespace.attached)
            .ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
        if namespace.shape.command_set != csi::NVM {
            return Err(Status::INVALID_OPCODE.with_do_not_retry());
        }
        match command.opcode() {
            nvm::READ => {
                let bytes = namespace.read(bus, command, how)?;
                self.logs.note_read(bytes);
            }
            nvm::WRITE => {
                let bytes = namespace.write(bus, command, how)?;
                self.logs.note_write(bytes);
            }
            nvm::FLUSH => namespace.flush(),
            nvm::WRITE_ZEROES => namespace.write_zeroes(command, how.cached)?,
            nvm::DATASET_MANAGEMENT => namespace.deallocate(bus, command, how)?,
            _ => return Err(Status::INVALID_OPCODE.with_do_not_retry()),
        }
        Ok(0)
    }

    /// MDTS in bytes, counted in the smallest page. [NVMe 5.1.13.2.1]
    fn most_bytes(&self) -> Option<u64> {
        (self.shape.mdts > 0).then(|| PAGE << (self.shape.mpsmin + u32::from(self.shape.mdts)))
    }
}
