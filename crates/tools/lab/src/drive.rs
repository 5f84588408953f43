//! ATA drives and their places on AHCI and IDE controllers.

use crate::device::{Device, merge};
use crate::machine::Place;
use serde_json::{Value, json};

/// Where a controller has its drives.
struct Controller {
    ports: u8,
    drives_per_bus: u8,
}

/// Six ports, each a bus of one drive.
const AHCI: Controller = Controller { ports: 6, drives_per_bus: 1 };
/// Two channels, each a bus of master and slave.
const IDE: Controller = Controller { ports: 4, drives_per_bus: 2 };

impl Controller {
    fn of(model: &str) -> Option<Self> {
        match model {
            "ahci" | "ich9-ahci" => Some(AHCI),
            "piix3-ide" | "piix4-ide" => Some(IDE),
            _ => None,
        }
    }
}

/// QEMU's name of a model.
pub(crate) fn qemu_model(model: &str) -> &str {
    if model == "ahci" { "ich9-ahci" } else { model }
}

/// The port of each of `device`'s drives: the one that was asked for, or the one after the drive
/// before.
fn ports(device: &Device) -> Vec<u8> {
    let mut next = 0;
    let mut take = |asked: Option<u8>| {
        let port = asked.unwrap_or(next);
        next = port.saturating_add(1);
        port
    };
    device.drives.iter().map(|drive| take(drive.port)).collect()
}

/// Says what is wrong with the drives of `device`, or with ports where there are none.
pub(crate) fn check(device: &Device) -> Result<(), String> {
    if device.namespaces.iter().any(|space| space.port.is_some()) {
        return Err("port is for a [[device.drive]]".into());
    }
    let Some(controller) = Controller::of(&device.model) else {
        return match device.drives.is_empty() {
            true => Ok(()),
            false => Err("[[device.drive]] is for the models ahci, piix3-ide and piix4-ide".into()),
        };
    };
    if device.size.is_some() {
        return Err(format!(
            "{} is a controller: its disks are [[device.drive]] tables",
            device.model
        ));
    }
    if device.drives.iter().any(|drive| drive.block_size.is_some()) {
        return Err("the logical blocks of an ATA drive have 512 bytes; options = \
            { physical_block_size = 4096 } is for the others"
            .into());
    }
    let ports = ports(device);
    for (index, port) in ports.iter().enumerate() {
        if *port >= controller.ports {
            return Err(format!(
                "a drive at port {port}, and {} has ports 0 to {}",
                device.model,
                controller.ports - 1
            ));
        }
        if ports[..index].contains(port) {
            return Err(format!("two drives at port {port}"));
        }
    }
    Ok(())
}

/// QEMU's words for the drives of `device`, whose disks are called as [`Device::parts`] calls them.
pub(crate) fn devices(device: &Device, place: &Place) -> Vec<Value> {
    let Some(controller) = Controller::of(&device.model) else { return Vec::new() };
    let buses = if place.onboard { &place.bus } else { &device.id };
    let drives =
        ports(device).into_iter().zip(&device.drives).enumerate().map(|(index, (port, drive))| {
            let (bus, unit) = (port / controller.drives_per_bus, port % controller.drives_per_bus);
            let (disk, serial) =
                (format!("{}-disk{}", device.id, index + 1), format!("{}-{port}", device.id));
            let mut words = json!({
                "driver": "ide-hd", "bus": format!("{buses}.{bus}"), "unit": unit, "drive": disk,
                "serial": serial, "write-cache": "on", "discard_granularity": 512,
            });
            merge(&mut words, &drive.options);
            words
        });
    drives.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Backing, Disk, Size};
    use crate::machine::Machine;

    fn controller(model: &str, ports: &[Option<u8>]) -> Device {
        let drive =
            |port: &Option<u8>| Disk { port: *port, ..Disk::new(Size(1 << 20), Backing::Null) };
        Device { drives: ports.iter().map(drive).collect(), ..Device::new("d", model) }
    }

    fn places(device: &Device, machine: Machine) -> Vec<(String, u64)> {
        let words = devices(device, &machine.place(device, 0));
        words
            .iter()
            .map(|words| (words["bus"].as_str().unwrap().into(), words["unit"].as_u64().unwrap()))
            .collect()
    }

    #[test]
    fn ahci_drives_have_a_port_each() {
        let device = controller("ahci", &[None, Some(3), None]);
        assert_eq!(
            places(&device, Machine::Q35),
            [("d.0".into(), 0), ("d.3".into(), 0), ("d.4".into(), 0)]
        );
    }

    #[test]
    fn ide_drives_of_machine_pc_hang_on_its_own_controller() {
        let device = controller("piix3-ide", &[None, None, None]);
        assert_eq!(
            places(&device, Machine::Pc),
            [("ide.0".into(), 0), ("ide.0".into(), 1), ("ide.1".into(), 0)]
        );
    }

    #[test]
    fn drives_that_have_no_place_are_refused() {
        let error = |device: &Device| device.check().unwrap_err().to_string();
        assert!(error(&controller("ahci", &[Some(6)])).contains("ports 0 to 5"));
        assert!(error(&controller("piix3-ide", &[None, Some(0)])).contains("two drives at port 0"));
        assert!(error(&controller("nvme", &[None])).contains("[[device.drive]] is for"));
        assert!(
            error(&Device { size: Some(Size(512)), ..controller("ahci", &[]) })
                .contains("is a controller")
        );
        assert!(controller("ahci", &[None, Some(5)]).check().is_ok());
    }
}
