//! The way to a device through its own node, with iommufd: no container, and of its group only that
//! nobody else drives a part of it.
//!
//! # References
//! - `[VFIO-DOC]` Linux, `Documentation/driver-api/vfio.rst`, "VFIO Device cdev Example"

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::Error;
use ring3_pci::{Address, Host, IOMMUFD, Obstacle};

use super::ioas::Ioas;
use super::way::{Opened, Way, blocked, open_file, refused};
use super::{ioctl, iommufd};
use crate::claim::claim;

/// Claims the function at `address`, which must be bound to vfio-pci, by its node `path`. It
/// is taken where somebody has one of its `files`.
pub(super) fn open(
    host: &Host,
    address: Address,
    path: &str,
    files: &[String],
) -> Result<Opened, Error> {
    let failed = |what: &str| {
        let what = format!("vfio:{address}: {what}");
        move |error: io::Error| Error::os(what.clone(), error)
    };
    let iommufd: OwnedFd = open_file(host, IOMMUFD)
        .map_err(|error| match error.raw_os_error() {
            // The file may stand there without the module behind it.
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                blocked(address, Obstacle::NoModule { module: "iommufd".into(), reason: None })
            }
            _ => refused(address, IOMMUFD, error),
        })?
        .into();
    let attempt = || {
        let device: File = open_file(host, path).map_err(|error| refused(address, path, error))?;
        match ioctl::bind(&device, &iommufd) {
            Ok(()) => Ok(Some(OwnedFd::from(device))),
            // Somebody has its group open, or has bound it by another descriptor of this node.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) => {
                Ok(None)
            }
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                Err(blocked(address, Obstacle::NoInterruptRemapping))
            }
            Err(error) => Err(failed("binding it to iommufd")(error)),
        }
    };
    let device = claim(host, files, attempt)?.map_err(|taken| blocked(address, taken))?;
    let space = iommufd::make_space(&iommufd).map_err(failed("making its device addresses"))?;
    ioctl::attach(&device, space).map_err(failed("giving it its device addresses"))?;
    Ok(Opened { device, way: Way::Node(Arc::new(Ioas::new(iommufd, space, address)?)) })
}
