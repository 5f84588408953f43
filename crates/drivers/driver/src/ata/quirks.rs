//! The quirks of ATA drives and AHCI controllers. `quirks.toml` has the reasons, and the devices.

use std::sync::LazyLock;

use ring3_device::{Device, Error};
use ring3_quirks::{Quirks, Strings, Table};
use ring3_spec::ata::{self, identify};
use ring3_spec::pci;

use super::options::Options;
use crate::quirks;

/// DMA damages data.
pub(super) const BROKEN_DMA: &str = "broken-dma";
/// Commands must not be queued.
pub(super) const BROKEN_NCQ: &str = "broken-ncq";
/// The same behind a controller of ATI.
pub(super) const BROKEN_NCQ_ON_ATI: &str = "broken-ncq-on-ati";
/// No command of more sectors.
pub(super) const MAX_128_SECTORS: &str = "max-128-sectors";
/// No command of more sectors.
pub(super) const MAX_1024_SECTORS: &str = "max-1024-sectors";
/// No command of more sectors.
pub(super) const MAX_8191_SECTORS: &str = "max-8191-sectors";
/// TRIM loses other data.
pub(super) const BROKEN_TRIM: &str = "broken-trim";
/// No TRIM of more than 128 MiB.
pub(super) const SHORT_TRIM: &str = "short-trim";
/// The link must have 1.5 Gbit/s.
pub(super) const SLOW_LINK: &str = "slow-link";
/// The log directory must not be read.
pub(super) const BROKEN_LOG_DIRECTORY: &str = "broken-log-directory";
/// FUA does not write through.
pub(super) const BROKEN_FUA: &str = "broken-fua";
/// FUA writes through: somebody has tried it.
pub(super) const TRUSTED_FUA: &str = "trusted-fua";

/// The controller must get one command at a time for each drive.
pub(super) const HBA_BROKEN_NCQ: &str = "hba-broken-ncq";
/// The controller's messages do not work.
pub(super) const HBA_BROKEN_MSI: &str = "hba-broken-msi";
/// The controller reaches addresses of 32 bits.
pub(super) const HBA_32_BIT: &str = "hba-32-bit";
/// The controller reaches addresses of 43 bits.
pub(super) const HBA_43_BIT: &str = "hba-43-bit";
/// The controller takes no command of more sectors.
pub(super) const HBA_255_SECTORS: &str = "hba-255-sectors";
/// The controller's ports may be off after its reset.
pub(super) const HBA_PORTS_OFF: &str = "hba-ports-off";
/// The controller's links get stuck, unless its ports are switched off and on.
pub(super) const HBA_LINK_STUCK: &str = "hba-link-stuck";
/// The controller has one port.
pub(super) const HBA_ONE_PORT: &str = "hba-one-port";

/// ATI's number among the vendors of PCI devices.
const ATI: u16 = 0x1002;

/// The table.
pub fn table() -> &'static Table {
    static TABLE: LazyLock<Table> =
        LazyLock::new(|| Table::parse(include_str!("quirks.toml")).expect("a test reads it"));
    &TABLE
}

/// The quirks of the controller `device`.
pub(super) fn of_controller(device: &dyn Device, options: &Options) -> Result<Quirks, Error> {
    quirks::of(table(), device, Strings::default(), &options.quirks)
}

/// The quirks of the drive that describes itself by `data`, and those of the controller `device`
/// that it is behind.
pub(super) fn of(
    device: &dyn Device,
    data: &ata::Identify,
    options: &Options,
) -> Result<Quirks, Error> {
    let text = |words| as_compared(&data.text(words).collect::<Vec<_>>());
    let (model, firmware) = (text(identify::MODEL), text(identify::FIRMWARE));
    let strings = Strings { model: Some(&model), firmware: Some(&firmware), version: None };
    quirks::of(table(), device, strings, &options.quirks)
}

/// The text that patterns are compared with: it ends at the first NUL, and spaces before it count.
/// [Linux, ata_id_c_string]
fn as_compared(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end_matches(' ').to_owned()
}

/// Whether the controller `device` is one of ATI.
pub(super) fn is_of_ati(device: &dyn Device) -> bool {
    device.config_read(pci::VENDOR_ID, 2) as u16 == ATI
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_models_padding_is_not_compared_and_spaces_before_it_are() {
        for (bytes, text) in [
            (&b"ST380013AS  \0\0"[..], "ST380013AS"),
            (b"ST380013AS\0garbage", "ST380013AS"),
            (b" 2GB ATA Flash Disk   ", " 2GB ATA Flash Disk"),
            (b"\0", ""),
        ] {
            assert_eq!(as_compared(bytes), text);
        }
    }

    #[test]
    fn the_flags_that_the_table_says_are_obeyed_are_those_that_the_drivers_ask_for() {
        let asked = BTreeSet::from([
            BROKEN_DMA,
            BROKEN_NCQ,
            BROKEN_NCQ_ON_ATI,
            MAX_128_SECTORS,
            MAX_1024_SECTORS,
            MAX_8191_SECTORS,
            BROKEN_TRIM,
            SHORT_TRIM,
            SLOW_LINK,
            BROKEN_LOG_DIRECTORY,
            BROKEN_FUA,
            TRUSTED_FUA,
            HBA_BROKEN_NCQ,
            HBA_BROKEN_MSI,
            HBA_32_BIT,
            HBA_43_BIT,
            HBA_255_SECTORS,
            HBA_PORTS_OFF,
            HBA_LINK_STUCK,
            HBA_ONE_PORT,
        ]);
        assert_eq!(asked, table().obeyed().collect());
    }
}
