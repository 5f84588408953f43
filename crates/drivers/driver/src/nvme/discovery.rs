//! Discovery of namespaces, and of those that can be disks. [NVMe 5.1.13]
//!
//! # Trust
//! A list may be wrong or endless: it is read only as long as ids ascend, and up to [`MOST`] of
//! them. A namespace that cannot be used, or that the controller reports nothing about, does not
//! affect the others; it is refused by name.

use ring3_device::{Deadline, Error};
use ring3_spec::nvme::Submission;
use ring3_spec::nvme::identify::{self, ExtendedFormat, LbaFormat, cns, csi};

use super::admin::Admin;
use super::controller::NvmeShared;
use super::init;
use super::namespace::{Description, UniqueId};
use super::protection::Protection;
use super::quirks::{BOGUS_NID, BROKEN_DESCRIPTORS, LIMITED_IDENTIFY};

/// Most namespaces that are looked at: four pages of the list.
const MOST: usize = 4 * identify::NAMESPACE_LIST_ENTRIES;

/// Ids that are tried one after the other on a controller that has no list. Such ones have a few.
const TRIED: u32 = 1024;

/// What a controller says of a namespace.
pub(super) struct Structures {
    pub(super) set: u8,
    pub(super) namespace: identify::Namespace,
    extended: ExtendedFormat,
}

/// A namespace that cannot be used, and why.
pub(super) type Refused = (u32, Error);

impl NvmeShared {
    /// All active namespace ids, ascending, and the first that is left out if there are more than
    /// make sense. [NVMe 5.1.13.2.2]
    ///
    /// Version 1.0 has no list. Some later controllers refuse it as well, whatever version they
    /// say.
    pub(super) fn active_namespaces(&self) -> Result<(Vec<u32>, Option<Refused>), Error> {
        if self.quirks().has(LIMITED_IDENTIFY) {
            return self.tried_namespaces("it is not asked for the list of namespaces");
        }
        let mut ids: Vec<u32> = Vec::new();
        loop {
            let above = ids.last().copied().unwrap_or(0);
            let list = match self.identify(cns::ACTIVE_NAMESPACES, above, "the list of namespaces")
            {
                Err(Error::Unsupported(why)) if ids.is_empty() => {
                    return self.tried_namespaces(&why);
                }
                list => list?,
            };
            let before = ids.len();
            for id in identify::namespace_list(&list) {
                if ids.last().is_some_and(|&last| id <= last) {
                    return Err(Error::Protocol(format!(
                        "the list of namespaces does not ascend at {id}"
                    )));
                }
                if let Some(why) = self.excess(id, ids.len()) {
                    return Ok((ids, Some((id, why))));
                }
                ids.push(id);
            }
            // An id of NN is the last that there can be; asking for what lies above it may be
            // refused.
            if ids.len() - before < identify::NAMESPACE_LIST_ENTRIES
                || ids.last() == Some(&self.traits.greatest_namespace)
            {
                return Ok((ids, None));
            }
        }
    }

    /// The same for a controller that has no list: each id up to NN is asked for. NN is the
    /// controller's word, so that there are a number and a time after which no more are.
    fn tried_namespaces(&self, why: &str) -> Result<(Vec<u32>, Option<Refused>), Error> {
        tracing::info!("{}: {why}; looking for each namespace by its id", self.device.name());
        let greatest = self.traits.greatest_namespace;
        let limit = Deadline::after(self.options.timeout);
        let mut ids = Vec::new();
        for id in 1..=greatest.min(TRIED) {
            if limit.expired() {
                return Ok((
                    ids,
                    Some((
                        id,
                        Error::Unsupported("it took too long to look for each namespace".into()),
                    )),
                ));
            }
            match self.identify(cns::NAMESPACE, id, "identify namespace") {
                // Of what is not there, later versions return zeroes. [NVMe 5.1.13.2]
                Ok(structure) if identify::Namespace(structure).size() > 0 => ids.push(id),
                Ok(_) | Err(Error::Unsupported(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let left_out = || {
            Error::Unsupported(format!(
                "it has no list of namespaces, and the first {TRIED} ids are looked at"
            ))
        };
        Ok((ids, (greatest > TRIED).then(|| (TRIED + 1, left_out()))))
    }

    /// Why namespace `id`, the one after `count` others, and all that follow are left out.
    fn excess(&self, id: u32, count: usize) -> Option<Error> {
        let greatest = self.traits.greatest_namespace;
        if id > greatest {
            return Some(Error::Protocol(format!(
                "the greatest namespace that it says it can have is {greatest} (NN)"
            )));
        }
        (count == MOST).then(|| {
            Error::Unsupported(format!(
                "it has more than {MOST} namespaces: this one and what follows is left out"
            ))
        })
    }

    /// The disk that namespace `id` is, or why it cannot be one. Fails only if the controller does.
    pub(super) fn disk_of(&self, id: u32) -> Result<Result<Description, Error>, Error> {
        let found = self
            .command(|admin| self.read_namespace(admin, id))
            .and_then(|structures| self.judge(&structures));
        match found {
            Err(error @ (Error::Unsupported(_) | Error::Invalid(_) | Error::Protocol(_))) => {
                Ok(Err(error))
            }
            other => other.map(Ok),
        }
    }

    /// What the controller says of namespace `id`.
    pub(super) fn read_namespace(&self, admin: &mut Admin, id: u32) -> Result<Structures, Error> {
        let mut set = csi::NVM;
        let quirks = self.quirks();
        let answers = !quirks.has(LIMITED_IDENTIFY) && !quirks.has(BROKEN_DESCRIPTORS);
        if init::has_command_sets(self.cap) && answers {
            let descriptors = admin
                .fetch("the namespace's command set", Submission::identify(cns::DESCRIPTORS, id))?;
            set = identify::command_set(&descriptors).unwrap_or(csi::NVM);
        }
        if set != csi::NVM {
            // It has other structures.
            let (namespace, extended) = (identify::Namespace::zeroed(), ExtendedFormat(0));
            return Ok(Structures { set, namespace, extended });
        }
        let namespace = identify::Namespace(
            admin.fetch("identify namespace", Submission::identify(cns::NAMESPACE, id))?,
        );
        let mut extended = ExtendedFormat(0);
        let has_metadata = namespace.current_format().is_some_and(|format| format.metadata() > 0);
        if has_metadata && self.traits.extended_formats {
            let structure = admin
                .fetch("its extended formats", Submission::identify(cns::NAMESPACE_NVM, id))?;
            extended = ExtendedFormat::of(&structure, namespace.format_index());
        }
        Ok(Structures { set, namespace, extended })
    }

    /// The disk that it is, or why it cannot be one.
    pub(super) fn judge(&self, structures: &Structures) -> Result<Description, Error> {
        check_command_set(structures.set)?;
        let unique = match self.quirks().has(BOGUS_NID) {
            true => UniqueId::default(),
            false => UniqueId(structures.namespace.unique()),
        };
        let (namespace, extended) = (&structures.namespace, structures.extended);
        let info = self.traits.disk(namespace)?;
        let format = namespace.current_format().unwrap_or(LbaFormat(0));
        let protection = Protection::of(namespace, format, extended)?;
        Ok(Description { info, unique, protection })
    }

    fn identify(
        &self,
        structure: u8,
        namespace: u32,
        what: &str,
    ) -> Result<[u8; identify::SIZE], Error> {
        self.command(|admin| admin.fetch(what, Submission::identify(structure, namespace)))
    }
}

/// Refuses all but the NVM command set. [NVMe 5.1.13.2.3, CSI]
fn check_command_set(set: u8) -> Result<(), Error> {
    let name = match set {
        csi::NVM => return Ok(()),
        csi::KEY_VALUE => "the key value command set".to_owned(),
        csi::ZONED => "the zoned namespace command set".to_owned(),
        other => format!("command set {other:#04x}"),
    };
    Err(Error::Unsupported(format!(
        "it has {name}, not the NVM command set of disks: leave it to the kernel's driver"
    )))
}
