//! What a simulated AHCI controller is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::Error;

use super::quirk::{QUIRKS, Quirk};
use crate::Timing;
use crate::ata::{self, DriveShape, Link};
use crate::options::{Options, duration, number};
use ring3_device::Uri;

/// A controller and its drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ports, 1 to 32.
    pub ports: u8,
    /// Command slots of each port, 1 to 32.
    pub slots: u8,
    /// Disks, in the first ports.
    pub disks: u8,
    /// What each disk is like.
    pub drive: DriveShape,
    /// A packet drive in the port behind the disks.
    pub cdrom: bool,
    /// A port multiplier in the last port.
    pub multiplier: bool,
    /// Whether the controller has queued commands (SNCQ).
    pub queued: bool,
    /// Whether it takes addresses of 64 bits (S64A).
    pub wide: bool,
    /// PCI vendor and device.
    pub id: (u16, u16),
    /// Whether it has MSI besides its pin.
    pub msi: bool,
    /// Whether firmware owns it until the system asks for it (BOHC).
    pub handoff: bool,
    /// How long a reset of the controller or of a drive takes.
    pub ready: Duration,
    /// When commands that are about data are done.
    pub timing: Timing,
    /// Its own faults.
    pub quirks: Vec<Quirk>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ports: 6,
            slots: 32,
            disks: 1,
            drive: DriveShape::new(Link::Serial),
            cdrom: false,
            multiplier: false,
            queued: true,
            wide: true,
            id: ID,
            msi: true,
            handoff: false,
            ready: Duration::ZERO,
            timing: Timing::Inline,
            quirks: Vec::new(),
        }
    }
}

/// Vendor and device of ICH9's, which QEMU has too.
const ID: (u16, u16) = (0x8086, 0x2922);

const KEYS: [&str; 14] = [
    "id",
    "disks",
    "ports",
    "slots",
    "ncq",
    "depth",
    "wide",
    "msi",
    "cdrom",
    "multiplier",
    "handoff",
    "hba",
    "ready",
    "fault",
];

/// The options of `uri` and the shape that they describe.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let options = Options::of(uri, "ahci", &[&KEYS[..], &ata::KEYS[..]].concat())?;
    let shape = of_options(&options)?;
    Ok((options, shape))
}

fn of_options(options: &Options<'_>) -> Result<Shape, Error> {
    let default = Shape::default();
    let within = |least: u64, most: u64| {
        move |text: &str| number(text).filter(|n| (least..=most).contains(n))
    };
    let mut drive = ata::of_options(options, default.drive)?;
    let queued = options.switch("ncq", drive.lba48)? && drive.lba48;
    drive.depth = options.get("depth", "1 to 32", 32, within(1, 32))? as u16;
    if !queued {
        drive.depth = 0;
    }
    let shape = Shape {
        ports: options.get("ports", "1 to 32", default.ports.into(), within(1, 32))? as u8,
        slots: options.get("slots", "1 to 32", default.slots.into(), within(1, 32))? as u8,
        disks: options.get("disks", "0 to 32", default.disks.into(), within(0, 32))? as u8,
        drive,
        cdrom: options.switch("cdrom", false)?,
        multiplier: options.switch("multiplier", false)?,
        queued,
        wide: options.switch("wide", true)?,
        id: options.id(default.id)?,
        msi: options.switch("msi", true)?,
        handoff: options.switch("handoff", false)?,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
        quirks: options.quirks("hba", &QUIRKS)?,
    };
    let wanted = shape.disks + u8::from(shape.cdrom) + u8::from(shape.multiplier);
    if wanted > shape.ports {
        return Err(Error::Invalid(format!(
            "{wanted} drives need as many ports, and there are ports={}",
            shape.ports
        )));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Result<Shape, Error> {
        let uri: Uri = text.parse().unwrap();
        of_uri(&uri).map(|(_, shape)| shape)
    }

    #[test]
    fn no_options_make_the_default_shape() {
        assert_eq!(shape("sim:ahci").unwrap(), Shape::default());
    }

    #[test]
    fn a_drive_without_48_bits_has_nothing_that_needs_them() {
        let shape = shape("sim:ahci,lba48=off").unwrap();
        assert!(!shape.queued && !shape.drive.fua && !shape.drive.trim && shape.drive.depth == 0);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for text in [
            "ports=0",
            "slots=33",
            "disks=7",
            "block=1024",
            "depth=0",
            "disks=6,cdrom=on",
            "multiple=3",
        ] {
            assert!(shape(&format!("sim:ahci,{text}")).is_err(), "{text}");
        }
    }
}
