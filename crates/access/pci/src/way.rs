//! The ways on which the kernel hands a function to a process.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// A way, named by the kernel's driver that offers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum PassthroughDriver {
    /// vfio-pci: the IOMMU confines the function's transfers.
    #[default]
    #[serde(rename = "vfio-pci")]
    Vfio,
    /// uio_pci_generic: nothing confines them.
    #[serde(rename = "uio_pci_generic")]
    Uio,
}

impl PassthroughDriver {
    /// All of them, the better first.
    pub const ALL: [Self; 2] = [Self::Vfio, Self::Uio];

    /// The driver, which is also the name of its module.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Vfio => "vfio-pci",
            Self::Uio => "uio_pci_generic",
        }
    }

    /// The way that a function with this driver is on; `None` if its driver keeps it in the kernel.
    /// VFIO has drivers for single devices, too, such as `mlx5_vfio_pci`.
    pub fn of(driver: &str) -> Option<Self> {
        match driver.replace('_', "-") {
            name if name.contains("vfio-pci") => Some(Self::Vfio),
            name if name == "uio-pci-generic" => Some(Self::Uio),
            _ => None,
        }
    }

    /// The command that puts a function on this way, without `sudo`.
    pub fn bind_command(self, address: &str) -> String {
        match self {
            Self::Vfio => format!("ring3 bind {address}"),
            Self::Uio => format!("ring3 bind {address} --driver {self}"),
        }
    }
}

impl fmt::Display for PassthroughDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.driver())
    }
}

impl FromStr for PassthroughDriver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL
            .into_iter()
            .find(|way| way.driver().replace('_', "-") == text.replace('_', "-"));
        found.ok_or_else(|| {
            format!("a driver that hands functions to processes: {} or {}", Self::Vfio, Self::Uio)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_known_however_its_dashes_are_written() {
        assert_eq!("uio-pci-generic".parse(), Ok(PassthroughDriver::Uio));
        assert_eq!(
            (
                PassthroughDriver::of("vfio_pci"),
                PassthroughDriver::of("mlx5_vfio_pci"),
                PassthroughDriver::of("nvme")
            ),
            (Some(PassthroughDriver::Vfio), Some(PassthroughDriver::Vfio), None)
        );
    }
}
