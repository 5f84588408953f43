//! What a command that was accepted does with data.

/// Which way data go, and who moves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    NonData,
    PioIn,
    PioOut,
    DmaIn,
    DmaOut,
}

impl Protocol {
    /// Whether memory is read and the drive written.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::PioOut | Self::DmaOut)
    }
}

/// Where the data are, seen from the drive.
pub(super) enum Data {
    None,
    /// On the medium.
    Blocks {
        lba: u64,
        blocks: u32,
        durable: bool,
    },
    /// In the drive: what it says, or TRIM ranges that it is told.
    Page(Vec<u8>),
}

/// A command that was accepted.
pub(crate) struct Plan {
    pub(crate) protocol: Protocol,
    /// Bytes of its data.
    pub(crate) bytes: usize,
    /// Bytes that PIO moves for each interrupt.
    pub(crate) block: usize,
    /// The first byte is inverted on its way.
    pub(super) corrupt: bool,
    pub(super) data: Data,
}

impl Plan {
    pub(super) fn without_data() -> Self {
        Self { protocol: Protocol::NonData, bytes: 0, block: 0, corrupt: false, data: Data::None }
    }

    /// `page` goes to the host.
    pub(super) fn give(page: Vec<u8>, protocol: Protocol) -> Self {
        Self {
            protocol,
            bytes: page.len(),
            block: ring3_spec::ata::SECTOR,
            corrupt: false,
            data: Data::Page(page),
        }
    }
}
