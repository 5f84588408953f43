//! What a controller's namespaces and firmware are, whether or not they can be used, and other
//! formats for a namespace. [NVMe 5.1.10, 5.1.12.1.4]

use std::time::Duration;

use ring3_device::Error;
use ring3_spec::nvme::identify::{self, ExtendedFormat, cns, csi};
use ring3_spec::nvme::log::FirmwareSlots;
use ring3_spec::nvme::{Submission, log};
use ring3_spec::text::Printable;

use super::controller::Controller;
use super::reset::Use;
use crate::lifetime::lock;

/// A format takes no longer: what the kernel's users wait for one at most.
const FORMAT: Duration = Duration::from_secs(600);

/// A namespace, used or not.
#[derive(Clone, Debug)]
pub struct NamespaceReport {
    /// Its id.
    pub id: u32,
    /// Its I/O command set, as `ring3_spec::nvme::identify::csi` numbers them. Of others than NVM
    /// nothing else is known.
    pub command_set: u8,
    /// Logical blocks.
    pub blocks: u64,
    /// Which of its formats it has.
    pub format: usize,
    /// The type of its protection information; 0 for none.
    pub protection: u8,
    /// Those that it could have.
    pub formats: Vec<Format>,
    /// Why it is no disk.
    pub refused: Option<String>,
}

/// A format of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its number.
    pub index: usize,
    /// Bytes of a block's data.
    pub block_size: u32,
    /// Bytes of its metadata.
    pub metadata: u32,
    /// How fast it is compared with the others, 0 (best) to 3.
    pub performance: u32,
}

/// Which format a namespace is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes of a block's data.
    pub block_size: u32,
    /// The type of its protection information, 1 to 3, which is 8 bytes of metadata; 0 for none.
    pub protection: u8,
    /// Other namespaces may be formatted with it, where the controller formats all at once.
    pub all: bool,
}

/// The firmware of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// The slot whose firmware runs.
    pub active: u8,
    /// The one whose firmware runs after the next reset, if that was said.
    pub next: Option<u8>,
    /// Slots that hold firmware, with its revision.
    pub slots: Vec<(u8, String)>,
}

impl Controller {
    /// All active namespaces, as the controller describes them now.
    pub fn describe_namespaces(&self) -> Result<Vec<NamespaceReport>, Error> {
        let (ids, _) = self.shared.active_namespaces()?;
        ids.into_iter().map(|id| self.describe_namespace(id)).collect()
    }

    /// Namespace `id` as the controller describes it now.
    pub fn describe_namespace(&self, id: u32) -> Result<NamespaceReport, Error> {
        let structures = self.shared.command(|admin| self.shared.read_namespace(admin, id))?;
        let namespace = &structures.namespace;
        let format = |index| {
            let format = namespace.format(index)?;
            let (metadata, performance) = (format.metadata(), format.performance());
            Some(Format { index, block_size: format.block_size()?, metadata, performance })
        };
        let formats = match structures.set {
            csi::NVM => (0..=usize::from(namespace.formats_0based())).filter_map(format).collect(),
            _ => Vec::new(),
        };
        Ok(NamespaceReport {
            id,
            command_set: structures.set,
            blocks: namespace.size(),
            format: namespace.format_index(),
            protection: namespace.protection_type(),
            formats,
            refused: self.shared.judge(&structures).err().map(|why| why.to_string()),
        })
    }

    /// The firmware that it has. [NVMe 5.1.12.1.4]
    pub fn firmware(&self) -> Result<Firmware, Error> {
        let command =
            Submission::get_log_page(log::FIRMWARE_SLOTS, FirmwareSlots::SIZE as u32, true);
        let log = self.shared.command(|admin| admin.fetch("the firmware slots", command))?;
        let log = FirmwareSlots(log);
        let slot = |number: u8| {
            let text = Printable(log.revision(number)).to_string();
            (!text.is_empty()).then_some((number, text))
        };
        Ok(Firmware {
            active: log.active(),
            next: Some(log.next()).filter(|&next| next > 0),
            slots: (1..=7).filter_map(slot).collect(),
        })
    }

    /// Formats namespace `id`: all its data are lost, and, where the controller formats all of its
    /// namespaces at once, those of the others. None of them is a disk of this controller any more:
    /// open it anew. [NVMe 5.1.10]
    ///
    /// Fails with [`Error::Invalid`] if there is no such format, with [`Error::Unsupported`] if the
    /// controller cannot or does not want to, and with [`Error::Busy`] if a queue is open; nothing
    /// has changed then.
    pub fn format(&self, id: u32, wanted: Wanted) -> Result<(), Error> {
        let shared = &self.shared;
        let controller = shared.command(|admin| {
            admin.fetch("identify controller", Submission::identify(cns::CONTROLLER, 0))
        })?;
        let controller = identify::Controller(controller);
        if controller.admin_commands() & identify::Controller::OACS_FORMAT == 0 {
            return Err(Error::Unsupported(
                "the controller has no command to format a namespace (OACS)".into(),
            ));
        }
        let formats_all =
            controller.format_attributes() & identify::Controller::FNA_FORMATS_ALL != 0;
        if formats_all && !wanted.all {
            return Err(Error::Invalid(
                "the controller formats all of its namespaces at once (FNA): say that all may be \
                 erased (--all-namespaces)"
                    .into(),
            ));
        }
        let index = self.find_format(&self.describe_namespace(id)?, wanted)?;
        if lock(&shared.members).queues.iter().any(|used| *used != Use::Free) {
            return Err(Error::Busy("a queue is open: close it, then format".into()));
        }
        let command = Submission::format(id, index as u32, wanted.protection.into());
        shared.command(|admin| {
            admin.execute_within(command, FORMAT)?.map_err(|status| {
                Error::Unsupported(format!("the controller refused the format: {status}"))
            })
        })?;
        for unit in &lock(&shared.members).namespaces {
            if formats_all || unit.id == id {
                unit.end("it was formatted".into());
            }
        }
        Ok(())
    }

    /// The fastest format of `report` as `wanted`, which is one that the driver can drive: who
    /// formats with another loses the data, and has no disk.
    fn find_format(&self, report: &NamespaceReport, wanted: Wanted) -> Result<usize, Error> {
        let shared = &self.shared;
        if report.command_set != csi::NVM {
            let set = report.command_set;
            return Err(Error::Unsupported(format!("it has command set {set:#04x}, not NVM")));
        }
        if wanted.protection > 3 {
            return Err(Error::Invalid("protection information is of type 1, 2 or 3".into()));
        }
        let metadata = if wanted.protection > 0 { 8 } else { 0 };
        let extended = match metadata > 0 && shared.traits.extended_formats {
            true => Some(shared.command(|admin| {
                let command = Submission::identify(cns::NAMESPACE_NVM, report.id);
                admin.fetch("its extended formats", command)
            })?),
            false => None,
        };
        let is_plain =
            |index| extended.as_ref().is_none_or(|all| ExtendedFormat::of(all, index).is_plain());
        let is_wanted = |format: &&Format| {
            (format.block_size, format.metadata) == (wanted.block_size, metadata)
                && is_plain(format.index)
        };
        let found = report.formats.iter().filter(is_wanted).min_by_key(|format| format.performance);
        found.map(|format| format.index).ok_or_else(|| {
            let all: Vec<_> = report
                .formats
                .iter()
                .map(|format| format!("{}+{}", format.block_size, format.metadata))
                .collect();
            Error::Invalid(format!(
                "namespace {} has no format with {}+{} bytes of data and metadata; it has {}",
                report.id,
                wanted.block_size,
                metadata,
                all.join(", ")
            ))
        })
    }
}
