//! The guest machine: where its devices sit, and what protects its memory from them.

use crate::device::Device;
use crate::error::Error;
use serde::Deserialize;
use serde_json::{Value, json};

/// A machine model of QEMU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Machine {
    /// PCI Express, with an Intel IOMMU unless told otherwise.
    #[default]
    Q35,
    /// The old PC: conventional PCI and IDE.
    Pc,
    /// PCI Express on arm64, with Arm's IOMMU and interrupt translation unless told otherwise.
    Virt,
}

/// The IOMMU between devices and the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Iommu {
    /// Intel's, with interrupt remapping. Machine q35 only.
    Intel,
    /// virtio-iommu: without interrupt remapping, so vfio wants `allow_unsafe_interrupts`.
    Virtio,
    /// Arm's third, SMMUv3. Machine virt only.
    Smmu,
    /// None: no device can be handed to a program safely.
    None,
}

/// Where a device sits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    /// QEMU's name of the bus.
    pub(crate) bus: String,
    /// Slot on it, as QEMU reads it.
    pub(crate) slot: String,
    /// The address in the guest.
    pub(crate) address: String,
    /// Whether it is the machine's own; then `bus` is what its drives hang on, and nothing is to be
    /// plugged in.
    pub(crate) onboard: bool,
}

/// IDE function of machine pc's south bridge.
const ONBOARD_IDE: &str = "0000:00:01.1";

/// The job port's slot on the root bus.
const PORT_SLOT: u8 = 0x3;
/// Root ports begin here; the slots before are for devices with an address of their own.
const FIRST_ROOT_PORT: u8 = 0x10;
/// As many root ports as there are slots up to the chip set's own functions.
const ROOT_PORTS: usize = 12;

impl Machine {
    /// QEMU's program for it.
    pub(crate) fn program(self) -> &'static str {
        if self.is_arm64() { "qemu-system-aarch64" } else { "qemu-system-x86_64" }
    }

    /// Whether programs and kernels for it are those of arm64.
    pub(crate) fn is_arm64(self) -> bool {
        self == Self::Virt
    }

    /// Its processor, as QEMU has it.
    ///
    /// On x86-64 everything but: five-level page tables, which only cost; and the string
    /// instructions' fast forms, which make the guest copy with `rep movsb`, 80 times slower under
    /// emulation than a loop of moves. On arm64 everything but signed pointers, whose emulation
    /// takes most of the time.
    pub(crate) fn processor(self) -> &'static str {
        if self.is_arm64() { "max,pauth=off" } else { "max,-la57,-erms,-fsrm,-fzrm,-fsrs" }
    }

    /// The kernel's name of its serial line.
    pub(crate) fn console(self) -> &'static str {
        if self.is_arm64() { "ttyAMA0" } else { "ttyS0" }
    }

    /// Whether it ends with an exit code of QEMU's that says that the guest meant it.
    pub(crate) fn says_its_end(self) -> bool {
        !self.is_arm64()
    }

    /// What QEMU is told to be, with `devices` of its own.
    pub(crate) fn words(self, devices: &[Device], iommu: Iommu) -> &'static str {
        let newer =
            devices.iter().any(|device| device.model == "piix4-ide" && self.has_onboard(device));
        match self {
            Self::Q35 => "q35",
            Self::Pc if newer => "pc,x-south-bridge=piix4-isa",
            Self::Pc => "pc",
            Self::Virt if iommu == Iommu::Smmu => "virt,gic-version=3,iommu=smmuv3",
            Self::Virt => "virt,gic-version=3",
        }
    }

    /// Whether `device` is the machine's own.
    fn has_onboard(self, device: &Device) -> bool {
        self == Self::Pc
            && device.addr.is_none()
            && ["piix3-ide", "piix4-ide"].contains(&device.model.as_str())
    }

    /// The IOMMU that this machine has when nothing is said.
    pub(crate) fn usual_iommu(self) -> Iommu {
        match self {
            Self::Q35 => Iommu::Intel,
            Self::Pc => Iommu::None,
            Self::Virt => Iommu::Smmu,
        }
    }

    fn root_bus(self) -> &'static str {
        match self {
            Self::Q35 | Self::Virt => "pcie.0",
            Self::Pc => "pci.0",
        }
    }

    /// The place of `device`, the `index`th without an address of its own.
    pub(crate) fn place(self, device: &Device, index: usize) -> Place {
        if self.has_onboard(device) {
            return Place {
                bus: "ide".into(),
                slot: String::new(),
                address: ONBOARD_IDE.into(),
                onboard: true,
            };
        }
        let place = |bus: String, slot: String, address: String| Place {
            bus,
            slot,
            address,
            onboard: false,
        };
        let on_root = |slot: u8| {
            place(self.root_bus().into(), format!("{slot:x}"), format!("0000:00:{slot:02x}.0"))
        };
        match (device.addr.as_deref().and_then(|text| u8::from_str_radix(text, 16).ok()), self) {
            (Some(slot), _) => on_root(slot),
            (None, Self::Pc) => on_root(FIRST_ROOT_PORT + index as u8),
            // The firmware, or the kernel, numbers the buses behind the root ports in the order of
            // their slots.
            (None, Self::Q35 | Self::Virt) => place(
                format!("port{}", index + 1),
                "0".into(),
                format!("0000:{:02x}:00.0", index + 1),
            ),
        }
    }

    /// Places of all `devices`, in their order.
    pub(crate) fn places(self, devices: &[Device]) -> Result<Vec<Place>, Error> {
        let placed = |device: &Device| device.addr.is_some() || self.has_onboard(device);
        if devices.iter().filter(|device| self.has_onboard(device)).count() > 1 {
            return Err(Error::Request(
                "machine pc has one IDE controller of its own: give the other one an addr".into(),
            ));
        }
        let free = devices.iter().filter(|device| !placed(device)).count();
        if free > ROOT_PORTS {
            return Err(Error::Request(format!(
                "{free} devices, and room for {ROOT_PORTS}: give some an addr"
            )));
        }
        let mut index = 0;
        let places = devices.iter().map(|device| {
            let place = self.place(device, index);
            index += usize::from(!placed(device));
            place
        });
        Ok(places.collect())
    }

    /// Devices of the machine itself: the IOMMU first, as QEMU wants it, then `ports` root ports
    /// and the job port.
    pub(crate) fn fixtures(self, iommu: Iommu, ports: usize) -> Result<Vec<Value>, Error> {
        let mut devices = match (iommu, self) {
            (Iommu::Intel, Self::Q35) => vec![json!({ "driver": "intel-iommu", "intremap": "on" })],
            (Iommu::Intel, _) => {
                return Err(Error::Request(
                    "only machine q35 has an intel IOMMU: say iommu = \"virtio\" or \"none\""
                        .into(),
                ));
            }
            (Iommu::Smmu, Self::Virt) => vec![],
            (Iommu::Smmu, _) => {
                return Err(Error::Request("only machine virt has Arm's IOMMU, smmu".into()));
            }
            (Iommu::Virtio, _) => {
                vec![json!({ "driver": "virtio-iommu-pci", "bus": self.root_bus(), "addr": "2" })]
            }
            (Iommu::None, _) => vec![],
        };
        for index in 0..if self == Self::Pc { 0 } else { ports } {
            let slot = FIRST_ROOT_PORT + index as u8;
            devices.push(json!({
                "driver": "pcie-root-port", "id": format!("port{}", index + 1),
                "bus": self.root_bus(), "chassis": index + 1, "addr": format!("{slot:x}"),
            }));
        }
        devices.push(json!({
            "driver": "virtio-serial-pci", "id": "ports", "bus": self.root_bus(),
            "addr": format!("{PORT_SLOT:x}"),
        }));
        devices.push(
            json!({ "driver": "virtserialport", "bus": "ports.0", "nr": 1, "chardev": "job" }),
        );
        if self.says_its_end() {
            devices.push(json!({ "driver": "isa-debug-exit", "iobase": 0x501, "iosize": 1 }));
        }
        Ok(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_without_an_address_get_a_bus_each() {
        let mut fixed = Device::new("b", "edu");
        fixed.addr = Some("5".into());
        let devices = [Device::new("a", "edu"), fixed, Device::new("c", "edu")];
        let addresses: Vec<_> =
            Machine::Q35.places(&devices).unwrap().into_iter().map(|p| p.address).collect();
        assert_eq!(addresses, ["0000:01:00.0", "0000:00:05.0", "0000:02:00.0"]);
    }

    #[test]
    fn too_many_devices_are_an_error() {
        assert!(Machine::Q35.places(&vec![Device::new("a", "edu"); 13]).is_err());
    }

    #[test]
    fn the_iommu_comes_before_what_it_guards() {
        let devices = Machine::Q35.fixtures(Iommu::Intel, 2).unwrap();
        assert_eq!(devices[0]["driver"], "intel-iommu");
    }

    #[test]
    fn machine_pc_has_no_intel_iommu() {
        assert!(Machine::Pc.fixtures(Iommu::Intel, 0).is_err());
    }
}
