//! The way to a device through its IOMMU group: container, group, device.
//!
//! # References
//! - `[VFIO-DOC]` Linux, `Documentation/driver-api/vfio.rst`, "VFIO Usage Example"

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::Error;
use ring3_pci::{Address, Host, Obstacle, group};
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_GROUP_FLAGS_VIABLE, VFIO_TYPE1v2_IOMMU,
};

use super::ioctl;
use super::type1::Type1;
use super::way::{Opened, Way, blocked, open_file, refused};
use crate::claim::claim;

/// Claims the function at `address`, which must be bound to vfio-pci, by its group `number`. It is
/// taken where somebody has one of its `files`.
pub(super) fn open(
    host: &Host,
    address: Address,
    number: u32,
    files: &[String],
) -> Result<Opened, Error> {
    let container = open_container(host, address)?;
    let group = open_group(host, address, number, files)?;
    let failed = |what: &str| {
        let what = format!("vfio:{address}: {what}");
        move |error: io::Error| Error::os(what.clone(), error)
    };
    if ioctl::group_flags(&group).map_err(failed("asking for the state of its group"))?
        & VFIO_GROUP_FLAGS_VIABLE
        == 0
    {
        return Err(blocked(
            address,
            Obstacle::GroupNotViable { group: number, blockers: group::blockers(host, number) },
        ));
    }
    ioctl::set_container(&group, &container)
        .map_err(failed("putting its group into a container"))?;
    ioctl::set_iommu(&container, VFIO_TYPE1v2_IOMMU).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EPERM) => blocked(address, Obstacle::NoInterruptRemapping),
            _ => failed("giving its container an IOMMU")(error),
        }
    })?;
    let name = CString::new(address.to_string())
        .map_err(|_| Error::Invalid(format!("{address} as a device name")))?;
    let device = ioctl::device_fd(&group, &name).map_err(failed("opening it within its group"))?;
    let iommu = Arc::new(Type1::new(container, address)?);
    Ok(Opened { device, way: Way::Group { iommu, group } })
}

fn open_container(host: &Host, address: Address) -> Result<OwnedFd, Error> {
    let path = "dev/vfio/vfio";
    let missing =
        |module: &str| blocked(address, Obstacle::NoModule { module: module.into(), reason: None });
    let container: OwnedFd = open_file(host, path)
        .map_err(|error| match error.raw_os_error() {
            // The file may stand there without the module behind it.
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => missing("vfio-pci"),
            _ => refused(address, path, error),
        })?
        .into();
    match ioctl::api_version(&container).map_err(|_| missing("vfio-pci"))? {
        version if version == VFIO_API_VERSION as i32 => {}
        version => {
            return Err(Error::Unsupported(format!(
                "vfio:{address}: version {version} of the kernel's VFIO"
            )));
        }
    }
    if !ioctl::has_iommu(&container, VFIO_TYPE1v2_IOMMU).unwrap_or(false) {
        return Err(missing("vfio_iommu_type1"));
    }
    Ok(container)
}

fn open_group(
    host: &Host,
    address: Address,
    number: u32,
    files: &[String],
) -> Result<OwnedFd, Error> {
    let path = format!("dev/vfio/{number}");
    let attempt = || match open_file(host, &path) {
        Ok(group) => Ok(Some(group.into())),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        Err(error) => Err(refused(address, &path, error)),
    };
    claim(host, files, attempt)?.map_err(|taken| blocked(address, taken))
}
