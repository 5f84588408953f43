//! What a simulated IDE controller is like: everything that is fixed when it is made.

use std::time::Duration;

use ring3_device::Error;

use super::chip::Chip;
use crate::Timing;
use crate::ata::{self, DriveShape, Link};
use crate::options::{Options, duration, number};
use ring3_device::Uri;

/// What a bus master's table register reads as. [BMIDE 2.3]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// What was written.
    Kept,
    /// Zero.
    Unreadable,
    /// The end of the table that the last transfer has used.
    Moves,
}

/// A controller and its drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Which chip it is.
    pub chip: Chip,
    /// Disks, 0 to 4: primary master, primary slave, secondary master, secondary slave.
    pub disks: u8,
    /// What each disk is like.
    pub drive: DriveShape,
    /// A packet drive in the place behind the disks.
    pub cdrom: bool,
    /// Whether only one of the two bus masters may be active at a time.
    pub simplex: bool,
    /// What the bus masters' table registers read as.
    pub table: Table,
    /// How long a reset of the drives takes.
    pub ready: Duration,
    /// When commands that are about data are done.
    pub timing: Timing,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            chip: Chip::Piix4,
            disks: 1,
            drive: DriveShape::new(Link::Parallel { wide_cable: true }),
            cdrom: false,
            simplex: false,
            table: Table::Kept,
            ready: Duration::ZERO,
            timing: Timing::Inline,
        }
    }
}

const KEYS: [&str; 10] =
    ["chip", "disks", "dma", "udma", "cable", "cdrom", "simplex", "table", "ready", "fault"];

/// The options of `uri` and the shape that they describe.
pub(super) fn of_uri(uri: &Uri) -> Result<(Options<'_>, Shape), Error> {
    let options = Options::of(uri, "ide", &[&KEYS[..], &ata::KEYS[..]].concat())?;
    let shape = of_options(&options)?;
    Ok((options, shape))
}

fn of_options(options: &Options<'_>) -> Result<Shape, Error> {
    let default = Shape::default();
    let mut drive = ata::of_options(options, default.drive)?;
    drive.dma = options.switch("dma", true)?;
    let mode = |text: &str| match text {
        "off" => Some(None),
        _ => number(text).filter(|mode| *mode <= 6).map(|mode| Some(mode as u8)),
    };
    drive.ultra_dma = options
        .get("udma", "a mode from 0 to 6, or off", drive.ultra_dma, mode)?
        .filter(|_| drive.dma);
    // A drive without DMA has none of the commands that are DMA alone.
    drive.trim &= drive.dma;
    let wide_cable = options.get("cable", "80 or 40 wires", true, |text| match text {
        "80" => Some(true),
        "40" => Some(false),
        _ => None,
    })?;
    drive.link = Link::Parallel { wide_cable };
    let shape = Shape {
        chip: options.get("chip", "piix3, piix4 or cmd646", default.chip, Chip::of_name)?,
        disks: options.get("disks", "0 to 4", default.disks, |text| {
            number(text).filter(|disks| *disks <= 4).map(|disks| disks as u8)
        })?,
        drive,
        cdrom: options.switch("cdrom", false)?,
        simplex: options.switch("simplex", false)?,
        table: options.get("table", "kept, unreadable or moves", default.table, |text| {
            Some(match text {
                "kept" => Table::Kept,
                "unreadable" => Table::Unreadable,
                "moves" => Table::Moves,
                _ => return None,
            })
        })?,
        ready: options.get("ready", "a time up to 60s, as 5ms", Duration::ZERO, duration)?,
        timing: options.timing()?,
    };
    if shape.disks == 4 && shape.cdrom {
        return Err(Error::Invalid("disks=4,cdrom=on: an IDE controller has four places".into()));
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
        assert_eq!(shape("sim:ide").unwrap(), Shape::default());
    }

    #[test]
    fn a_drive_can_be_without_ultra_dma() {
        assert_eq!(shape("sim:ide,udma=off").unwrap().drive.ultra_dma, None);
        assert_eq!(shape("sim:ide,udma=2,dma=off").unwrap().drive.ultra_dma, None);
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let texts = "chip=via udma=7 disks=5 cable=60 disks=4,cdrom=on multiple=3 table=on";
        for text in texts.split(' ') {
            assert!(shape(&format!("sim:ide,{text}")).is_err(), "{text}");
        }
    }
}
