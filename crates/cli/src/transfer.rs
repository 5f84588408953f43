//! How an ATA drive's data move, as the user says it.

use ring3_driver::ata::Level;

/// What `--transfer` takes.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Transfer {
    /// Many commands at once where drive and controller can (AHCI), else DMA.
    Queued,
    /// By the controller, one command at a time.
    Dma,
    /// By the processor, word by word (IDE; AHCI has no such way and uses DMA).
    Pio,
}

impl From<Transfer> for Level {
    fn from(transfer: Transfer) -> Self {
        match transfer {
            Transfer::Queued => Self::Queued,
            Transfer::Dma => Self::Dma,
            Transfer::Pio => Self::Pio,
        }
    }
}
