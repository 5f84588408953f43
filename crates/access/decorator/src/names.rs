//! Registers by their place, for messages.

use ring3_spec::ide::{bus_master, command};
use ring3_spec::{ahci, ide, nvme, pci};

/// The register of configuration space at byte `offset`. [PCI 6.1]
pub(crate) fn config(offset: u64) -> Option<String> {
    let name = match offset {
        pci::VENDOR_ID => "vendor id",
        pci::DEVICE_ID => "device id",
        pci::COMMAND => "command",
        pci::STATUS => "status",
        pci::REVISION => "revision and class",
        pci::CLASS => "class",
        pci::BAR0..pci::BAR0_END => {
            return Some(format!("base address register {}", (offset - pci::BAR0) / 4));
        }
        pci::EXPANSION_ROM => "expansion ROM",
        pci::CAPABILITIES => "capabilities pointer",
        pci::INTERRUPT_PIN => "interrupt pin",
        _ => return None,
    };
    Some(name.into())
}

/// The register of BAR `bar` at byte `offset` of a function of `class` (24 bits).
pub(crate) fn register(class: u32, bar: u8, offset: u64) -> Option<String> {
    match class {
        nvme::CLASS if bar == 0 => of_nvme(offset),
        ahci::CLASS => of_ahci(offset),
        _ if class & ide::CLASS_MASK == ide::CLASS => of_ide(bar, offset),
        _ => None,
    }
}

fn of_nvme(offset: u64) -> Option<String> {
    use nvme::registers::{ACQ, AQA, ASQ, CAP, CC, CSTS, DOORBELLS, INTMC, INTMS, NSSR, VS};
    let names = [
        (CAP.offset(), "CAP"),
        (CAP.offset() + 4, "CAP, high half"),
        (VS.offset(), "VS"),
        (INTMS.offset(), "INTMS"),
        (INTMC.offset(), "INTMC"),
        (CC.offset(), "CC"),
        (CSTS.offset(), "CSTS"),
        (NSSR.offset(), "NSSR"),
        (AQA.offset(), "AQA"),
        (ASQ.offset(), "ASQ"),
        (ASQ.offset() + 4, "ASQ, high half"),
        (ACQ.offset(), "ACQ"),
        (ACQ.offset() + 4, "ACQ, high half"),
    ];
    if let Some(index) = offset.checked_sub(DOORBELLS.into()) {
        // With the distance that all known controllers have: CAP.DSTRD = 0.
        let (queue, head) = (index / 8, index % 8 >= 4);
        return Some(if head {
            format!("CQ{queue} head doorbell")
        } else {
            format!("SQ{queue} tail doorbell")
        });
    }
    names.iter().find(|(at, _)| *at == offset).map(|(_, name)| (*name).into())
}

fn of_ahci(offset: u64) -> Option<String> {
    use ahci::registers::{
        CAPABILITIES, CAPABILITIES2, CONTROL, HANDOFF, INTERRUPT_STATUS, LEN, PORTS, VERSION,
    };
    let own = [
        (CAPABILITIES.offset(), "CAP"),
        (CONTROL.offset(), "GHC"),
        (INTERRUPT_STATUS.offset(), "IS"),
        (PORTS.offset(), "PI"),
        (VERSION.offset(), "VS"),
        (CAPABILITIES2.offset(), "CAP2"),
        (HANDOFF.offset(), "BOHC"),
    ];
    let Some(index) = offset.checked_sub(LEN) else {
        return own.iter().find(|(at, _)| *at == offset).map(|(_, name)| (*name).into());
    };
    let (port, at) = (index / u64::from(ahci::port::STRIDE), index % u64::from(ahci::port::STRIDE));
    let names = [
        "CLB", "CLBU", "FB", "FBU", "IS", "IE", "CMD", "", "TFD", "SIG", "SSTS", "SCTL", "SERR",
        "SACT", "CI",
    ];
    let name = names
        .get(usize::try_from(at / 4).ok()?)
        .filter(|name| at.is_multiple_of(4) && !name.is_empty())?;
    Some(format!("P{port}{name}"))
}

fn of_ide(bar: u8, offset: u64) -> Option<String> {
    let channel = if bar & 1 == bar { "primary" } else { "secondary" };
    let name = match (bar, offset) {
        (0 | 2, 0..command::LEN) => [
            "data",
            "error/features",
            "count",
            "LBA low",
            "LBA mid",
            "LBA high",
            "device",
            "status/command",
        ][offset as usize],
        (1 | 3, 2) => "alternate status/device control",
        (4, 0..BUS_MASTERS) => {
            let name = match offset % u64::from(bus_master::STRIDE) {
                0 => "command",
                2 => "status",
                4 => "table",
                _ => return None,
            };
            let channel = if offset < bus_master::STRIDE.into() { "primary" } else { "secondary" };
            return Some(format!("{channel} bus master {name}"));
        }
        _ => return None,
    };
    Some(format!("{channel} {name}"))
}

/// Ports of both channels' bus masters.
const BUS_MASTERS: u64 = 2 * bus_master::STRIDE as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_names_of_their_data_sheets() {
        let name = |class, bar, offset| register(class, bar, offset).unwrap_or_default();
        assert_eq!(name(nvme::CLASS, 0, 0x14), "CC");
        assert_eq!(name(nvme::CLASS, 0, 0x1008), "SQ1 tail doorbell");
        assert_eq!(name(nvme::CLASS, 0, 0x100c), "CQ1 head doorbell");
        assert_eq!(name(ahci::CLASS, 5, 0x04), "GHC");
        assert_eq!(name(ahci::CLASS, 5, 0x1b8), "P1CI");
        assert_eq!(name(ide::CLASS | 0x8a, 0, 7), "primary status/command");
        assert_eq!(name(ide::CLASS | 0x8a, 3, 2), "secondary alternate status/device control");
        assert_eq!(name(ide::CLASS | 0x8a, 4, 0xc), "secondary bus master table");
        assert_eq!(config(0x14).unwrap(), "base address register 1");
    }

    #[test]
    fn a_place_without_a_register_has_no_name() {
        for (class, bar, offset) in [
            (nvme::CLASS, 0, 0x18),
            (nvme::CLASS, 1, 0),
            (ahci::CLASS, 5, 0x11c),
            (0xff_0000, 0, 0),
        ] {
            assert_eq!(register(class, bar, offset), None, "{class:#x} {bar} {offset:#x}");
        }
        assert_eq!(config(0x100), None);
    }
}
