//! What the drive says about itself. [ACS-3 7.12.6]

use ring3_spec::ata::{Identify, LBA28_SECTORS, identify};

use super::drive::Drive;
use super::shape::{Link, Statistics};
use crate::options::WILD_TEXT;

/// Words 83, 84, 86 and 87 hold. [ACS-3 7.12.6.35]
const HOLDS: u16 = 1 << 14;
const SMART: u16 = 1 << 0;
const CACHE: u16 = 1 << 5;
const LBA48: u16 = 1 << 10;
const FLUSH: u16 = 1 << 12;
const FLUSH_EXT: u16 = 1 << 13;
const FUA: u16 = 1 << 6;
const LOGS: u16 = 1 << 5;
/// Units of 512 bytes of TRIM ranges in one command.
pub(super) const TRIM_SECTORS: u16 = 8;

impl Drive {
    pub(super) fn identify(&self) -> Identify {
        let shape = &self.shape;
        let mut id = Identify::zeroed();
        let serial: String =
            if self.number == 0 { "RING3SIM".into() } else { format!("RING3SIM-{}", self.number) };
        let plain = [&serial, "ring3 simulated ATA disk", "1.0"];
        let [serial, model, firmware] = if shape.wild_text { WILD_TEXT } else { plain };
        let (own_model, own_firmware) = &shape.strings;
        let model = own_model.as_deref().unwrap_or(model);
        let firmware = own_firmware.as_deref().unwrap_or(firmware);
        id.set_text(identify::SERIAL, serial);
        id.set_text(identify::FIRMWARE, firmware);
        id.set_text(identify::MODEL, model);
        // Words 83 and 84 with the bit that was always reserved as one. [ACS-3 7.12.6.19]
        id.set_max_multiple(0x8000 | u16::from(shape.multiple));
        id.set_multiple(if self.multiple > 0 { 1 << 8 | u16::from(self.multiple) } else { 0 });
        id.set_capabilities(1 << 9 | if shape.dma { 1 << 8 } else { 0 });
        id.set_valid(1 << 1 | if shape.ultra_dma.is_some() { 1 << 2 } else { 0 });
        id.set_sectors28(self.blocks().min(LBA28_SECTORS) as u32).set_advanced_pio(0b11);
        id.set_versions(0x01f0).set_rotation(1);
        if shape.dma {
            let (multiword, ultra) = self.selected();
            id.set_multiword_dma(0b111 | multiword << 8);
            id.set_ultra_dma(shape.ultra_dma.map_or(0, |best| (1 << (best + 1)) - 1) | ultra << 8);
        }
        self.identify_sets(&mut id);
        match shape.link {
            Link::Serial => {
                id.set_sata(0b111 << 1 | if shape.depth > 0 { 1 << 8 } else { 0 });
                id.set_queue_depth_0based(shape.depth.saturating_sub(1));
            }
            Link::Parallel { wide_cable } => {
                id.set_reset_result(HOLDS | 1 | if wide_cable { 1 << 13 } else { 0 });
            }
        }
        if shape.block_shift > 9 {
            id.set_sector_sizes(1 << 14 | 1 << 12).set_block_words(1 << (shape.block_shift - 1));
        }
        id.seal();
        id
    }

    /// Command sets: supported, and of these the ones that are switched on.
    fn identify_sets(&self, id: &mut Identify) {
        let shape = &self.shape;
        let when = |on: bool, bit: u16| if on { bit } else { 0 };
        id.set_sets82(SMART | when(shape.cache, CACHE))
            .set_enabled85(SMART | when(self.cache, CACHE));
        let sets83 = FLUSH | when(shape.lba48, LBA48 | FLUSH_EXT);
        id.set_sets83(HOLDS | sets83).set_enabled86(sets83);
        let has_logs = shape.depth > 0 || shape.statistics != Statistics::Off;
        let sets84 = when(shape.fua, FUA) | when(has_logs, LOGS);
        id.set_sets84(HOLDS | sets84).set_enabled87(HOLDS | sets84);
        if shape.lba48 {
            id.set_sectors48(self.blocks());
        }
        if shape.trim {
            id.set_data_set_management(1)
                .set_max_trim_sectors(TRIM_SECTORS)
                .set_additional(1 << 14 | 1 << 5);
        }
    }
}
