//! Timing registers of Intel's PIIX3 and PIIX4, in configuration space. [PIIX4 4.1]

use crate::fields;

/// PCI vendor.
pub const VENDOR: u16 = 0x8086;
/// PCI device of the PIIX3's IDE function: multiword DMA at best.
pub const PIIX3: u16 = 0x7010;
/// PCI device of the PIIX4's: Ultra DMA up to mode 2.
pub const PIIX4: u16 = 0x7111;

/// IDETIM of `channel`, 16 bits. [PIIX4 4.1.8]
pub const fn timing(channel: u8) -> u64 {
    0x40 + channel as u64 * 2
}
/// SIDETIM, 8 bits: the slaves' timing, a nibble for each channel. [PIIX4 4.1.9]
pub const SLAVE_TIMING: u64 = 0x44;
/// UDMACTL, 8 bits: Ultra DMA on, a bit for each drive. PIIX4 only. [PIIX4 4.1.10]
pub const ULTRA_DMA_CONTROL: u64 = 0x48;
/// UDMATIM, 16 bits: cycle time, two bits in a nibble for each drive. PIIX4 only. [PIIX4 4.1.11]
pub const ULTRA_DMA_TIMING: u64 = 0x4a;

fields! {
    /// IDETIM. [PIIX4 4.1.8]
    pub struct Timing(u16) {
        /// TIME0: fast timing for the master.
        master_fast, with_master_fast: 0..=0;
        /// IE0: the master's IORDY is sampled.
        master_iordy, with_master_iordy: 1..=1;
        /// PPE0: the master's data port is read ahead and written behind.
        master_posting, with_master_posting: 2..=2;
        /// DTE0: fast timing of the master for DMA alone.
        master_dma_only, with_master_dma_only: 3..=3;
        /// The same four of the slave.
        slave, with_slave: 7..=4;
        /// RTC: recovery, 4 less this many PCI clocks.
        recovery, with_recovery: 9..=8;
        /// ISP: IORDY sample point, 5 less this many PCI clocks.
        sample, with_sample: 13..=12;
        /// SITRE: the slave has timing of its own, in SIDETIM.
        slave_timing, with_slave_timing: 14..=14;
        /// IDE: the channel's ports are decoded.
        enabled, with_enabled: 15..=15;
    }
}
