//! What the two ends say.

use serde::{Deserialize, Serialize};

/// The protocol's version.
pub const VERSION: u32 = 1;

/// What a driver's half asks of the holder. All but a posted write is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first: what is leased?
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Reads configuration space: [`Answer::Value`].
    ConfigRead {
        /// The first byte.
        offset: u64,
        /// Bytes: 1, 2 or 4.
        width: u8,
    },
    /// Writes it, as a driver may.
    ConfigWrite {
        /// The first byte.
        offset: u64,
        /// Bytes: 1, 2 or 4.
        width: u8,
        /// In its low bits.
        value: u32,
    },
    /// Reads a register: [`Answer::Value`].
    Read {
        /// The BAR.
        bar: u8,
        /// The first byte.
        offset: u64,
        /// Bytes: 1, 2, 4 or 8.
        width: u8,
    },
    /// Writes a register.
    Write {
        /// The BAR.
        bar: u8,
        /// The first byte.
        offset: u64,
        /// Bytes: 1, 2, 4 or 8.
        width: u8,
        /// In its low bits.
        value: u64,
        /// Nothing answers it; what is asked later comes behind it.
        posted: bool,
    },
    /// Lets the device reach a part of the file beside the message, which must not be able to
    /// shrink, until it is unmapped or the driver is fenced.
    Map(Memory),
    /// Takes back what was mapped so, as one range.
    Unmap {
        /// The device address.
        iova: u64,
        /// Bytes.
        len: u64,
    },
    /// Enables interrupts: [`Answer::Vectors`], with an eventfd for each beside it. Those that are
    /// enabled already stay as they are.
    Irqs {
        /// How they are signalled.
        kind: Kind,
        /// Vectors 0 and on; 0 disables them.
        count: u16,
    },
    /// Holds a vector back, or lets it through.
    Mask {
        /// Which of those that are enabled.
        vector: u16,
        /// Held back.
        masked: bool,
    },
    /// Allows or forbids the function to start transfers.
    BusMaster {
        /// Allowed.
        on: bool,
    },
    /// Resets the function.
    Reset,
}

/// What the holder answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Request::Hello`].
    Facts(Box<DeviceDescription>),
    /// What was read; all ones where there is nothing.
    Value(u64),
    /// The interrupts are enabled.
    Vectors {
        /// [`Request::Mask`] holds them back.
        maskable: bool,
    },
    /// It is done.
    Done,
    /// It is not done.
    Refused(Refusal),
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The device is gone.
    Gone,
    /// The device or its backend cannot do it.
    Unsupported(String),
    /// It makes no sense.
    Invalid(String),
    /// Somebody else has it.
    Busy(String),
    /// Something else, in words.
    Failed(String),
}

/// The ways to signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The pin.
    Intx,
    /// Messages to one address.
    Msi,
    /// Messages by a table.
    MsiX,
}

/// A part of a file at a device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The device address of its first byte.
    pub iova: u64,
    /// Where in the file that is.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A leased device. Beside it travel, in this order: a descriptor for each of `arena` and `mapped`,
/// then `removal`, `bus_errors` and `device`, those of them that are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDescription {
    /// The holder's [`VERSION`].
    pub version: u32,
    /// What the user calls it.
    pub name: String,
    /// By index; shorter if the last ones are absent.
    pub bars: Vec<Option<LeasedBar>>,
    /// How many interrupts it has.
    pub vectors: Vectors,
    /// The memory that the claim has mapped for it.
    pub arena: Vec<Memory>,
    /// What drivers have mapped and no fence has taken back.
    pub mapped: Vec<Memory>,
    /// The device addresses that may be used, each with the last one, ascending.
    pub ranges: Vec<(u64, u64)>,
    /// The device reaches only addresses below.
    pub below: u64,
    /// The smallest unit of mapping, in bytes.
    pub page_size: u64,
    /// Whether more can be mapped.
    pub can_map: bool,
    /// Whether the function reaches other memory if it takes these addresses for the machine's. A
    /// holder that does not say may have such a function.
    #[serde(default = "yes")]
    pub bypassable: bool,
    /// There is an eventfd that says that the platform wants the device back.
    pub removal: bool,
    /// There is an eventfd that says that the bus reported an error.
    pub bus_errors: bool,
    /// There is a file in which the [windows](LeasedBar::window) of BARs lie.
    pub device: bool,
    /// What the function is. Without it, configuration space is asked.
    #[serde(default)]
    pub function: Option<Function>,
}

fn yes() -> bool {
    true
}

/// What configuration space says of a function, always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Vendor in the low half, device in the high one. [PCI 6.2.1]
    pub ids: u32,
    /// The revision in the lowest byte, the class code above. [PCI 6.2.1]
    pub class: u32,
    /// Its MSI-X capability.
    pub msix: Option<Msix>,
}

/// An MSI-X capability. [PCI 6.8.2]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Msix {
    /// Its first byte in configuration space.
    pub at: u64,
    /// The BAR that holds the table.
    pub bar: u8,
    /// The table's first byte in it.
    pub offset: u64,
    /// Entries of 16 bytes.
    pub entries: u16,
}

/// How many vectors of each kind a function has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vectors {
    /// The pin.
    pub intx: u16,
    /// Messages to one address.
    pub msi: u16,
    /// Messages by a table.
    pub msix: u16,
}

/// A base address register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeasedBar {
    /// Bytes.
    pub len: u64,
    /// Ports, not memory.
    pub ports: bool,
    /// Where it is in the device's file; without it, the holder is asked for each access.
    pub window: Option<Window>,
}

/// A BAR in the device's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Its first byte there.
    pub offset: u64,
    /// The parts of the BAR that can be mapped, each with the byte behind it; the rest is read and
    /// written.
    pub mappable: Vec<(u64, u64)>,
}
