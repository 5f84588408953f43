//! The table of a driver: flags with reasons, and the devices that have them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Board, Function, Overrides, Quirks, Strings, glob};

/// What a driver knows of devices that are otherwise than their specification.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Where its facts are from.
    pub linux: Linux,
    /// The flags by their names.
    #[serde(rename = "flag")]
    pub flags: BTreeMap<String, Flag>,
    /// The devices.
    #[serde(rename = "entry")]
    pub entries: Vec<Entry>,
}

/// The kernel whose tables were read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linux {
    /// Its version.
    pub version: String,
    /// What its names of flags begin with.
    pub prefix: String,
    /// The tables.
    pub source: Vec<Source>,
}

/// A table of the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// What is in it.
    pub kind: SourceKind,
    /// The file, from the root of the kernel's tree.
    pub file: String,
    /// Its name there.
    pub name: String,
    /// What its names of flags begin with, if that is not the kernel's own prefix.
    pub prefix: Option<String>,
    /// Where the flags of the kinds are that its entries name.
    pub kinds: Option<String>,
}

/// What is in a table of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// An enumeration of flags.
    Flags,
    /// A file with an enumeration of flags that has no name; the table's name is the file's.
    FlagsInFile,
    /// Entries by PCI ids.
    PciIds,
    /// Entries by PCI ids, each of a kind that another table gives flags.
    Kinds,
    /// Entries by vendor, model and firmware.
    Strings,
    /// A function that compares the names of boards.
    Boards,
    /// Entries by patterns of model and firmware, of which a drive has the first that matches.
    Drives,
    /// None of the kernel's: what ring3 knows by itself.
    Own,
}

/// A flag.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Flag {
    /// Its name in the kernel, without the prefix; none for a flag of ring3's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux: Option<String>,
    /// The source that its name is from; the first one if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What ring3 makes of it.
    pub class: Class,
    /// What such a device does.
    pub device: String,
    /// What the driver does, says, or why it has nothing to do.
    pub ring3: String,
    /// The test, `file: name`; for a flag that ring3 obeys or refuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
}

/// What ring3 makes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The driver obeys it, for devices that have it.
    Obeyed,
    /// The driver does not drive such a device.
    Refused,
    /// It is about something that ring3 does not do.
    Unconcerned,
}

/// A device, or several. What is left out matches all.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What it is, in words.
    pub what: String,
    /// The source, by its name in the kernel.
    pub source: String,
    /// PCI vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<u16>,
    /// PCI device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u16>,
    /// Or several functions: `VENDOR:DEVICE` in hexadecimal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<Function>,
    /// PCI subsystem: vendor and device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<(u16, u16)>,
    /// The model that the device says; a pattern, if it is of a table of drives or ring3's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The firmware that it says; as the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// It follows an earlier version of the specification than this one, as its register says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below_version: Option<u32>,
    /// Maker of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sys_vendor: Option<String>,
    /// The machine's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product_name: Option<String>,
    /// Maker of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board_vendor: Option<String>,
    /// The board's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub board_name: Option<String>,
    /// Why it has no flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its flags.
    pub flags: Vec<String>,
}

impl Table {
    /// Of `text`, a TOML document, whose entries have flags and sources that it describes.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (name, flag) in &table.flags {
            // `no-` before a name clears the flag.
            if name.starts_with("no-") {
                return Err(format!("flag {name}: its name begins with no-"));
            }
            if flag.test.is_none() && flag.class != Class::Unconcerned {
                return Err(format!("flag {name} has no test"));
            }
            if let Some(source) = flag.source.as_ref().filter(|source| !table.has_source(source)) {
                return Err(format!("flag {name}: there is no source {source}"));
            }
        }
        for entry in &table.entries {
            if let Some(flag) = entry.flags.iter().find(|flag| !table.flags.contains_key(*flag)) {
                return Err(format!("{}: there is no flag {flag}", entry.what));
            }
            if entry.flags.is_empty() != entry.note.is_some() {
                return Err(format!("{}: it has either flags or a note", entry.what));
            }
            if !table.has_source(&entry.source) {
                return Err(format!("{}: there is no source {}", entry.what, entry.source));
            }
        }
        Ok(table)
    }

    fn has_source(&self, name: &str) -> bool {
        self.linux.source.iter().any(|source| source.name == name)
    }

    /// What the source of `entry` is.
    pub(crate) fn kind(&self, entry: &Entry) -> Option<SourceKind> {
        let source = self.linux.source.iter().find(|source| source.name == entry.source);
        source.map(|source| source.kind)
    }

    /// The flags that a driver must ask for.
    pub fn obeyed(&self) -> impl Iterator<Item = &str> {
        let obeyed = |(_, flag): &(&String, &Flag)| flag.class == Class::Obeyed;
        self.flags.iter().filter(obeyed).map(|(name, _)| name.as_str())
    }

    /// The flags that a driver looks at.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let concerned = |(_, flag): &(&String, &Flag)| flag.class != Class::Unconcerned;
        self.flags.iter().filter(concerned).map(|(name, _)| name.as_str())
    }

    /// Why a device with `quirks` is not driven, if it is not.
    pub fn refusal(&self, quirks: &Quirks) -> Option<String> {
        quirks.names().find_map(|name| {
            let flag = self.flags.get(name).filter(|flag| flag.class == Class::Refused)?;
            Some(format!("{} (quirk {name})", flag.ring3))
        })
    }

    /// The flags that hold for a device, all of every entry that matches, as `overrides` want it.
    /// Of the entries for drives, the first that matches counts. `subsystem` reads its ids, where
    /// an entry asks for them.
    pub fn quirks(
        &self,
        function: Function,
        subsystem: impl Fn() -> Option<(u16, u16)>,
        strings: Strings<'_>,
        board: &Board,
        overrides: &Overrides,
    ) -> Result<Quirks, String> {
        let mut is_decided = false;
        let matching = self.entries.iter().filter(|entry| {
            let kind = self.kind(entry);
            let is_drive = kind == Some(SourceKind::Drives);
            let has_patterns = is_drive || kind == Some(SourceKind::Own);
            let is_it = !(is_drive && is_decided)
                && entry.fits(function, strings, board, has_patterns)
                && entry.subsystem.is_none_or(|wanted| subsystem() == Some(wanted));
            is_decided |= is_it && is_drive;
            is_it
        });
        let mut quirks: Quirks = matching.flat_map(|entry| &entry.flags).cloned().collect();
        overrides.apply(self, &mut quirks)?;
        Ok(quirks)
    }
}

impl Entry {
    /// Whether a device may be one of it, as far as its subsystem does not matter.
    fn fits(
        &self,
        function: Function,
        strings: Strings<'_>,
        board: &Board,
        is_pattern: bool,
    ) -> bool {
        let id = |wanted: Option<u16>, is| wanted.is_none_or(|wanted| wanted == is);
        let text = |wanted: &Option<String>, is: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| is == Some(wanted))
        };
        let said = |wanted: &Option<String>, is: Option<&str>| match wanted {
            Some(pattern) if is_pattern => is.is_some_and(|is| glob::matches(pattern, is)),
            _ => text(wanted, is),
        };
        id(self.vendor, function.vendor)
            && id(self.device, function.device)
            && (self.ids.is_empty() || self.ids.contains(&function))
            && said(&self.model, strings.model)
            && said(&self.firmware, strings.firmware)
            && self.below_version.is_none_or(|end| strings.version.is_some_and(|is| is < end))
            && text(&self.sys_vendor, board.sys_vendor.as_deref())
            && text(&self.product_name, board.product_name.as_deref())
            && text(&self.board_vendor, board.board_vendor.as_deref())
            && text(&self.board_name, board.board_name.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [linux]
        version = "6.12"
        prefix = "DISK_"
        source = [{ kind = "pci-ids", file = "disk.c", name = "ids" }]
        [flag.slow]
        linux = "SLOW"
        class = "obeyed"
        device = "is slow"
        ring3 = "waits"
        test = "tests/slow.rs: it_is_waited_for"
        [flag.sleepy]
        linux = "NO_SLEEP"
        class = "obeyed"
        device = "does not wake up"
        ring3 = "keeps it awake"
        test = "tests/sleep.rs: it_is_kept_awake"
        [flag.led]
        linux = "LED"
        class = "unconcerned"
        device = "has no light"
        ring3 = "no light is looked at"
        [[entry]]
        what = "a disk"
        source = "ids"
        vendor = 1
        device = 2
        flags = ["slow", "led"]
        [[entry]]
        what = "another disk with the same ids"
        source = "ids"
        vendor = 1
        device = 2
        subsystem = [3, 4]
        model = "X5"
        board_name = "B"
        below_version = 0x10200
        flags = ["sleepy"]
    "#;

    fn quirks(device: u16, strings: Strings<'_>, words: &[&str]) -> Result<Vec<String>, String> {
        let board = Board { board_name: Some("B".into()), ..Board::default() };
        let function = Function { vendor: 1, device };
        let overrides = Overrides(words.iter().map(|&word| word.into()).collect());
        Table::parse(TEXT)?
            .quirks(function, || Some((3, 4)), strings, &board, &overrides)
            .map(|quirks| quirks.names().map(str::to_owned).collect())
    }

    const X5: Strings<'static> =
        Strings { model: Some("X5"), firmware: None, version: Some(0x10100) };

    #[test]
    fn a_device_has_the_flags_of_every_entry_that_matches() {
        assert_eq!(quirks(2, Strings::default(), &[]).unwrap(), ["led", "slow"]);
        assert_eq!(quirks(2, X5, &[]).unwrap(), ["led", "sleepy", "slow"]);
        assert!(quirks(3, X5, &[]).unwrap().is_empty());
    }

    #[test]
    fn an_entry_asks_for_all_that_it_names() {
        let other = Strings { model: Some("X6"), ..X5 };
        let later = Strings { version: Some(0x10200), ..X5 };
        for strings in [other, later] {
            assert_eq!(quirks(2, strings, &[]).unwrap(), ["led", "slow"], "{strings:?}");
        }
    }

    #[test]
    fn a_drive_has_the_first_entry_whose_patterns_match_and_those_of_ring3s_own() {
        let text = format!(
            "{}{}",
            TEXT.replace(
                "name = \"ids\" }]",
                "name = \"ids\" }, { kind = \"drives\", file = \"ata.c\", name = \"drives\" },
                 { kind = \"own\", file = \"x\", name = \"own\" }]"
            ),
            r#"
            [[entry]]
            what = "old firmware"
            source = "drives"
            model = "ST3*AS"
            firmware = "SD1[5-9]"
            flags = ["slow"]
            [[entry]]
            what = "all of them"
            source = "drives"
            model = "ST*"
            flags = ["sleepy"]
            [[entry]]
            what = "seen"
            source = "own"
            model = "*3AS"
            flags = ["led"]
            "#
        );
        let table = Table::parse(&text).unwrap();
        let quirks = |model, firmware| {
            let strings = Strings { model: Some(model), firmware: Some(firmware), version: None };
            let function = Function { vendor: 9, device: 9 };
            table
                .quirks(function, || None, strings, &Board::default(), &Overrides::default())
                .unwrap()
                .names()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(quirks("ST3AS", "SD17"), "led slow");
        assert_eq!(quirks("ST3AS", "SD20"), "led sleepy");
        assert_eq!(quirks("ST4", "SD17"), "sleepy");
        assert_eq!(quirks("WD", "SD17"), "");
    }

    #[test]
    fn the_users_word_wins_over_the_table_and_the_last_one_counts() {
        assert_eq!(quirks(2, X5, &["no-slow", "no-sleepy"]).unwrap(), ["led"]);
        assert_eq!(quirks(3, X5, &["slow"]).unwrap(), ["slow"]);
        assert_eq!(quirks(3, X5, &["slow", "no-slow"]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_word_that_is_no_flag_of_the_driver_is_refused_with_those_that_are() {
        for word in ["fast", "no-fast", "led", ""] {
            let error = quirks(2, X5, &[word]).unwrap_err();
            assert!(error.contains("sleepy, slow"), "{error}");
        }
    }

    #[test]
    fn a_table_whose_entry_has_an_unknown_flag_source_or_key_is_refused() {
        for (from, to) in [
            ("\"slow\", \"led\"", "\"fast\""),
            ("source = \"ids\"", "source = \"others\""),
            ("what = \"a disk\"", "what = \"a disk\"\nserial = \"1\""),
            ("test = \"tests/slow.rs: it_is_waited_for\"", ""),
            ("flag.slow", "flag.no-haste"),
            ("class = \"obeyed\"", "class = \"liked\""),
        ] {
            assert!(TEXT.contains(from), "{from}");
            assert!(Table::parse(&TEXT.replacen(from, to, 1)).is_err(), "{to}");
        }
    }
}
