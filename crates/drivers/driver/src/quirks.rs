//! The quirks of a device, as its driver's table and the user have them.

use ring3_device::{Device, Error};
use ring3_quirks::{Board, Function, Overrides, Quirks, Strings, Table};
use ring3_spec::pci;

/// What the user and the machine add to a driver's table.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Circumstances {
    /// What the user wants otherwise than the table has it.
    #[serde(default)]
    pub overrides: Overrides,
    /// The machine that the device is in. A process that goes on with a device has its quirks from
    /// the one before.
    #[serde(skip)]
    pub board: Board,
}

impl Circumstances {
    /// With the user's `words`: `NAME` or `no-NAME`.
    pub fn wanting(words: Vec<String>) -> Self {
        Self { overrides: Overrides(words), board: Board::default() }
    }

    /// Whether the user has no word to say. The machine is not saved.
    pub(crate) fn wants_nothing(&self) -> bool {
        self.overrides.is_empty()
    }

    /// The same, in this machine.
    pub fn here(self) -> Self {
        Self { board: Board::this(), ..self }
    }
}

/// The flags of `table` that hold for `device`, as far as it has said `strings` about itself. An
/// error if it has one that its driver refuses, or if the user's word is no flag.
pub(crate) fn of(
    table: &Table,
    device: &dyn Device,
    strings: Strings<'_>,
    Circumstances { overrides, board }: &Circumstances,
) -> Result<Quirks, Error> {
    let ids = |register| {
        let both = device.config_read(register, 4);
        (both as u16, (both >> 16) as u16)
    };
    let (vendor, device_id) = ids(pci::VENDOR_ID);
    let function = Function { vendor, device: device_id };
    let subsystem = || Some(ids(pci::SUBSYSTEM));
    let quirks = table
        .quirks(function, subsystem, strings, board, overrides)
        .map_err(|why| Error::Invalid(format!("--quirk: {why}")))?;
    match table.refusal(&quirks) {
        Some(why) => Err(Error::Unsupported(why)),
        None => Ok(quirks),
    }
}
