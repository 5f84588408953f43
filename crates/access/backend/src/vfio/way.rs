//! Which of the kernel's two ways leads to a function, and what must stay open of it.
//!
//! Its group, in a container with a type 1 IOMMU, is what every kernel has. Its own node, with
//! iommufd, is the newer one (6.6 and later), which some distributions leave out (Debian) and a
//! kernel may have alone. Where both are there and may be opened, the node is taken.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::Iommu;
use ring3_pci::{Address, Function, Host, Obstacle, PassthroughDriver, group as groups};
use serde::{Deserialize, Serialize};

use super::ioas::Ioas;
use super::type1::Type1;
use super::{group, node};

/// What an opener gives back, whichever way it went.
pub(super) struct Opened {
    /// The device.
    pub(super) device: OwnedFd,
    /// What must stay open as long as the device is used.
    pub(super) way: Way,
}

/// The way to an opened function.
pub(super) enum Way {
    /// A container and the group in it.
    Group {
        /// The container.
        iommu: Arc<Type1>,
        /// The group.
        group: OwnedFd,
    },
    /// A space of device addresses.
    Node(Arc<Ioas>),
}

/// What another process must know of a [`Way`] beside its descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SavedWay {
    /// Nothing; also what was saved before there was a second way.
    #[default]
    Group,
    /// The number of the space of device addresses.
    Node { space: u32 },
}

impl Way {
    /// The address translation.
    pub(super) fn iommu(&self) -> Arc<dyn Iommu> {
        match self {
            Self::Group { iommu, .. } => iommu.clone(),
            Self::Node(ioas) => ioas.clone(),
        }
    }

    /// What must stay open beside the device, by names.
    pub(super) fn descriptors(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        match self {
            Self::Group { iommu, group } => {
                vec![("container", iommu.container()), ("group", group.as_fd())]
            }
            Self::Node(ioas) => vec![("iommufd", ioas.iommufd())],
        }
    }

    /// What [`Way::adopt`] wants to know.
    pub(super) fn save(&self) -> SavedWay {
        match self {
            Self::Group { .. } => SavedWay::Group,
            Self::Node(ioas) => SavedWay::Node { space: ioas.space() },
        }
    }

    /// The way to the function at `address` that another process has gone, of whose descriptors
    /// `take` gives each by its name.
    pub(super) fn adopt(
        saved: SavedWay,
        address: Address,
        take: &mut dyn FnMut(&str) -> Result<OwnedFd, Error>,
    ) -> Result<Self, Error> {
        Ok(match saved {
            SavedWay::Group => Self::Group {
                iommu: Arc::new(Type1::new(take("container")?, address)?),
                group: take("group")?,
            },
            SavedWay::Node { space } => {
                Self::Node(Arc::new(Ioas::new(take("iommufd")?, space, address)?))
            }
        })
    }
}

/// Claims the function at `address`, which must be bound to vfio-pci. `iommu` is the way that the
/// user wants: `type1` or `iommufd`.
pub(super) fn open(host: &Host, address: Address, iommu: Option<&str>) -> Result<Opened, Error> {
    let function = Function::read(host, address).map_err(|obstacle| blocked(address, obstacle))?;
    let without_iommu = || blocked(address, Obstacle::NoIommu);
    if !function.is_confined(host) {
        return Err(without_iommu());
    }
    if function.way() != Some(PassthroughDriver::Vfio) {
        return Err(blocked(
            address,
            Obstacle::NotBound { way: PassthroughDriver::Vfio, driver: function.driver },
        ));
    }
    let number = function.iommu_group.ok_or_else(without_iommu)?;
    let node = match iommu {
        Some("type1") => None,
        Some(_) => Some(function.node(host).ok_or_else(|| {
            Error::Unsupported(format!(
                "vfio:{address}: this kernel has no node for it, because it was built without \
                 iommufd or VFIO_DEVICE_CDEV; to mend it: leave iommu=iommufd out"
            ))
        })?),
        None => function.usable_node(host),
    };
    let files = function.files(host);
    match node {
        Some(path) => {
            // The kernel does not say whether it is this that it refuses.
            let blockers = groups::blockers(host, number);
            if !blockers.is_empty() {
                return Err(blocked(address, Obstacle::GroupNotViable { group: number, blockers }));
            }
            node::open(host, address, &path, &files)
        }
        None => group::open(host, address, number, &files),
    }
}

pub(super) fn open_file(host: &Host, path: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(host.path(path))
}

pub(super) fn refused(address: Address, path: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            blocked(address, Obstacle::NoPermission { path: format!("/{path}") })
        }
        _ => Error::os(format!("vfio:{address}: opening /{path}"), error),
    }
}

/// The error for an obstacle, with what mends it.
pub(super) fn blocked(address: Address, obstacle: Obstacle) -> Error {
    let blocked = obstacle.at(address);
    // The problem begins with the address.
    let text = format!("vfio:{blocked}");
    match blocked.obstacle {
        Obstacle::Busy { .. } => Error::Busy(text),
        _ => Error::Claim(text),
    }
}
