//! From what a user calls a device to where it is.

use std::fs;
use std::path::Path;

use ring3_device::Uri;
use ring3_pci::{Address, Function, Host, Way, bind};

use crate::manifest::{Device, Match, class_code};

/// Which address a disk was at when the kernel's driver had it and said its serial number.
const KNOWN: &str = "/run/ring3/serial";

/// Where `device` is, bound to vfio-pci if need be. `taken` are addresses of other devices. The error says why it is not there (yet).
pub fn find(device: &Device, taken: &[Address]) -> Result<Uri, String> {
    let host = Host::this();
    let address = match &device.r#match {
        Match::Device(uri) => return uri.parse().map_err(|error| format!("{error}")),
        Match::Address(address) => address.parse().map_err(|error| format!("{error}"))?,
        Match::Class(class) => {
            let (class, mask) = class_code(class).ok_or("no such class")?;
            let is_it = |function: &Function| function.class & mask == class && !taken.contains(&function.address);
            let found = Function::all(&host).into_iter().find(is_it).map(|function| function.address);
            found.ok_or_else(|| format!("no function of class {class:#08x} is there"))?
        }
        Match::Serial(serial) => by_serial(serial).ok_or_else(|| format!("no disk with the serial number {serial} is there"))?,
    };
    hold(&host, address, device.bind)?;
    format!("vfio:{address}").parse().map_err(|error| format!("{error}"))
}

/// Has `address` bound to vfio-pci.
fn hold(host: &Host, address: Address, may_bind: bool) -> Result<(), String> {
    let function = Function::read(host, address).map_err(|obstacle| obstacle.at(address).to_string())?;
    if function.way() == Some(Way::Vfio) {
        return Ok(());
    }
    if !may_bind {
        return Err(format!("{address} is not bound to vfio-pci: write bind = true in its manifest, or ring3 bind {address}"));
    }
    bind(host, address, Way::Vfio, None).map(drop).map_err(|error| error.to_string())
}

/// The function whose disk has this serial number: as the kernel's driver says, or said before the function was taken from it.
fn by_serial(serial: &str) -> Option<Address> {
    let known = Path::new(KNOWN).join(serial.trim().replace('/', "_"));
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(device) = fs::canonicalize(entry.path().join("device")) else { continue };
        if serial_of(&device).is_some_and(|found| found == serial.trim()) {
            let address = device.iter().rev().find_map(|part| part.to_str()?.parse::<Address>().ok())?;
            let _ = fs::create_dir_all(KNOWN).and_then(|()| fs::write(&known, address.to_string()));
            return Some(address);
        }
    }
    fs::read_to_string(known).ok()?.trim().parse().ok()
}

/// Of an NVMe controller, or the page "unit serial number" of a drive that speaks SCSI [SPC-4 7.8.15].
fn serial_of(device: &Path) -> Option<String> {
    let text = fs::read(device.join("serial"))
        .or_else(|_| fs::read(device.join("vpd_pg80")).map(|page| page.get(4..).unwrap_or_default().to_vec()));
    Some(String::from_utf8_lossy(&text.ok()?).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
}
