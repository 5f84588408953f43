//! The tables of quirks in a kernel's source: ids, strings, boards and flags, and no more of C than
//! these need.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{CardTable, Flag, Function, Linux, Source, SourceKind, Table};

/// What a table says: of each device, and of each name, its flags as the kernel calls them.
pub type Facts = BTreeMap<String, BTreeSet<String>>;

/// Where names of vendors are.
const VENDORS: &str = "include/linux/pci_ids.h";
/// The operations of a kind of controller that has none of its own.
const USUAL_OPERATIONS: &str = "ahci_ops";

/// What the tables that `linux` names say in the source at `tree`.
pub fn read(tree: &Path, linux: &Linux) -> Result<Facts, String> {
    let vendors = vendors(&read_text(tree, VENDORS)?);
    let mut facts = Facts::new();
    for source in linux.source.iter().filter(|source| source.kind != SourceKind::Own) {
        let Source { kind, file, name, kinds, .. } = source;
        let prefix = source.prefix.as_ref().unwrap_or(&linux.prefix);
        let text = read_text(tree, file)?;
        let body = |name: &str| {
            body_of(&text, name, *kind).ok_or_else(|| format!("{name} is not in {file}"))
        };
        let found = match kind {
            SourceKind::Flags => flags(body(name)?, prefix),
            SourceKind::FlagsInFile => flags(&text, prefix),
            SourceKind::PciIds => by_ids(body(name)?, &vendors, |rest| flags_in(rest, prefix))?,
            SourceKind::Kinds => {
                let kinds = kinds.as_ref().ok_or_else(|| format!("{name} has no kinds"))?;
                let kinds = flags_of_kinds(&text, body(kinds)?, prefix);
                let flags = |rest: &str| {
                    words(rest).filter_map(|word| kinds.get(word)).flatten().cloned().collect()
                };
                by_ids(body(name)?, &vendors, flags)?
            }
            SourceKind::Strings => by_strings(body(name)?, prefix),
            SourceKind::Drives => by_patterns(body(name)?, prefix),
            SourceKind::Boards => boards(body(name)?),
            SourceKind::Own => continue,
        };
        if found.is_empty() {
            return Err(format!("{} has no entry that can be read", source.name));
        }
        for (key, flags) in found {
            facts.entry(format!("{} {key}", source.name)).or_default().extend(flags);
        }
    }
    Ok(facts)
}

/// The same of a table of ring3's.
pub fn facts_of(table: &Table) -> Facts {
    let mut facts = Facts::new();
    let first = table.linux.source.first().map(|source| &source.name);
    let is_list = |kind| matches!(kind, SourceKind::Flags | SourceKind::FlagsInFile);
    for source in table.linux.source.iter().filter(|source| is_list(source.kind)) {
        let here = |flag: &&Flag| flag.source.as_ref().or(first) == Some(&source.name);
        for name in table.flags.values().filter(here).filter_map(|flag| flag.linux.as_ref()) {
            facts.entry(format!("{} {name}", source.name)).or_default();
        }
    }
    for entry in table.entries.iter().filter(|entry| table.kind(entry) != Some(SourceKind::Own)) {
        let kind = table.kind(entry);
        let id = |id: Option<u16>| id.map_or_else(String::new, |id| format!("{id:04x}"));
        let keys = match kind {
            Some(SourceKind::PciIds | SourceKind::Kinds) => {
                let one = entry.vendor.zip(entry.device);
                let one = one.map(|(vendor, device)| Function { vendor, device });
                one.iter()
                    .chain(&entry.ids)
                    .map(|&function| by_function(function, entry.subsystem))
                    .collect()
            }
            Some(SourceKind::Strings | SourceKind::Drives) => {
                vec![by_string(
                    &id(entry.vendor),
                    entry.model.as_deref(),
                    entry.firmware.as_deref(),
                )]
            }
            _ => [&entry.sys_vendor, &entry.product_name, &entry.board_vendor, &entry.board_name]
                .into_iter()
                .flatten()
                .map(|text| format!("{text:?}"))
                .collect(),
        };
        let is_board = kind == Some(SourceKind::Boards);
        for key in keys {
            let flags = facts.entry(format!("{} {key}", entry.source)).or_default();
            let names = entry.flags.iter().filter_map(|name| table.flags.get(name));
            flags.extend(names.filter(|_| !is_board).filter_map(|flag| flag.linux.clone()));
        }
    }
    facts
}

/// How `theirs` differs from `ours`, in lines. The order of entries is not compared: a kernel that
/// changes it can change which entry a drive has.
pub fn differences(ours: &Facts, theirs: &Facts) -> Vec<String> {
    let none = BTreeSet::new();
    let keys: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let words = |flags: &BTreeSet<String>| match flags.is_empty() {
        true => String::new(),
        false => format!(" ({})", flags.iter().cloned().collect::<Vec<_>>().join(", ")),
    };
    keys.into_iter()
        .filter_map(|key| match (ours.get(key), theirs.get(key)) {
            (None, flags) => {
                Some(format!("{key}: ring3 does not know it{}", words(flags.unwrap_or(&none))))
            }
            (flags, None) => {
                Some(format!("{key}: the kernel does not have it{}", words(flags.unwrap_or(&none))))
            }
            (Some(ours), Some(theirs)) if ours != theirs => {
                Some(format!("{key}: ring3 has{}, the kernel{}", words(ours), words(theirs)))
            }
            _ => None,
        })
        .collect()
}

/// A file of the source at `tree`, without comments.
fn read_text(tree: &Path, file: &str) -> Result<String, String> {
    let path = tree.join(file);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(without_comments(&text)),
        Err(error) => Err(format!("{}: {error}: is that a kernel's source?", path.display())),
    }
}

fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(start) = rest.find("/*") {
        kept.push_str(&rest[..start]);
        let Some(end) = rest[start..].find("*/") else { return kept };
        rest = &rest[start + end + 2..];
    }
    kept.push_str(rest);
    kept
}

/// What stands between the braces behind the definition of `name`.
fn body_of<'t>(text: &'t str, name: &str, kind: SourceKind) -> Option<&'t str> {
    let definition = match kind {
        SourceKind::Flags => format!("enum {name} {{"),
        SourceKind::PciIds | SourceKind::Kinds | SourceKind::Strings | SourceKind::Drives => {
            format!("{name}[] = {{")
        }
        SourceKind::Boards => format!("{name}("),
        SourceKind::FlagsInFile | SourceKind::Own => return None,
    };
    let text = &text[text.find(&definition)?..];
    let text = &text[text.find('{')? + 1..];
    Some(&text[..text.find("\n}")?])
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

/// The flags that are named in `text`, without their `prefix`. A flag may be named by the number of
/// its bit, with underscores before it; the last such name counts them.
fn flags_in(text: &str, prefix: &str) -> BTreeSet<String> {
    words(text)
        .filter_map(|word| word.trim_start_matches('_').strip_prefix(prefix))
        .filter(|&word| word != "MAX")
        .map(str::to_owned)
        .collect()
}

fn number(word: &str) -> Option<u16> {
    u16::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// Numbers of vendors by what follows `PCI_VENDOR_ID_`.
fn vendors(text: &str) -> BTreeMap<String, u16> {
    defines(text, "PCI_VENDOR_ID_")
}

/// The numbers that `text` defines, by what follows `prefix` in their names.
fn defines(text: &str, prefix: &str) -> BTreeMap<String, u16> {
    let of_line = |line: &str| {
        let mut words = words(line.strip_prefix("#define ")?);
        let name = words.next()?.strip_prefix(prefix)?;
        Some((name.to_owned(), number(words.next()?)?))
    };
    text.lines().filter_map(of_line).collect()
}

fn flags(body: &str, prefix: &str) -> Facts {
    flags_in(body, prefix).into_iter().map(|flag| (flag, BTreeSet::new())).collect()
}

/// Entries that begin with `PCI_DEVICE(VENDOR, DEVICE)`, `PCI_VDEVICE(VENDOR, DEVICE)` or
/// `PCI_DEVICE_SUB(VENDOR, DEVICE, SUBVENDOR, SUBDEVICE)`; `flags` finds those of one in what
/// follows. One for a whole class has nothing to say.
fn by_ids(
    body: &str,
    vendors: &BTreeMap<String, u16>,
    flags: impl Fn(&str) -> BTreeSet<String>,
) -> Result<Facts, String> {
    let mut facts = Facts::new();
    let entries = body.split('{').filter_map(|entry| entry.trim_start().strip_prefix("PCI_"));
    for entry in entries.filter(|entry| !entry.contains("PCI_ANY_ID")) {
        let (name, rest) = entry.split_once('(').unwrap_or((entry, ""));
        if name == "DEVICE_CLASS" {
            continue;
        }
        let (ids, rest) = rest.split_once(')').unwrap_or((rest, ""));
        let of_name =
            |word: &str| vendors.get(word.strip_prefix("PCI_VENDOR_ID_").unwrap_or(word)).copied();
        let ids: Vec<_> = words(ids).map(|word| number(word).or_else(|| of_name(word))).collect();
        let key = match ids[..] {
            [Some(vendor), Some(device)] => by_function(Function { vendor, device }, None),
            [Some(vendor), Some(device), Some(by), Some(id)] => {
                by_function(Function { vendor, device }, Some((by, id)))
            }
            _ => {
                let entry = entry.trim();
                return Err(format!("an entry that is none of a vendor and a device: PCI_{entry}"));
            }
        };
        facts.entry(key).or_default().extend(flags(rest));
    }
    Ok(facts)
}

fn by_function(function: Function, subsystem: Option<(u16, u16)>) -> String {
    let of = |(vendor, device)| format!(" of {}", Function { vendor, device });
    format!("{function}{}", subsystem.map_or_else(String::new, of))
}

/// Of each kind of libata's controllers what is particular to it: flags of the host and of its
/// links, and operations of its own. `text` gives some of them second names.
fn flags_of_kinds(text: &str, body: &str, prefix: &str) -> Facts {
    let mut kinds = Facts::new();
    for entry in body.split("\n\t[").skip(1) {
        let Some((name, rest)) = entry.split_once(']') else { continue };
        let mut flags = flags_in(rest, prefix);
        flags.extend(words(rest).filter(|word| word.starts_with("ATA_LFLAG_")).map(str::to_owned));
        let operations = rest.split_once(".port_ops").and_then(|(_, rest)| words(rest).next());
        flags.extend(operations.filter(|&name| name != USUAL_OPERATIONS).map(str::to_owned));
        kinds.insert(name.to_owned(), flags);
    }
    // `SECOND = FIRST,` in the enumeration of kinds.
    for (second, first) in text.lines().filter_map(|line| line.split_once('=')) {
        let first = first.trim().trim_end_matches(',');
        if let Some(flags) = kinds.get(first).cloned() {
            kinds.insert(second.trim().to_owned(), flags);
        }
    }
    kinds
}

/// The functions that `table` has in the source at `tree`.
pub fn cards(tree: &Path, table: &CardTable) -> Result<BTreeSet<Function>, String> {
    let CardTable { folder, file, name, ids } = table;
    let vendors = vendors(&read_text(tree, VENDORS)?);
    let devices = defines(&read_text(tree, &format!("{folder}/{ids}"))?, "");
    let text = read_text(tree, &format!("{folder}/{file}"))?;
    let body = body_of(&text, name, SourceKind::PciIds)
        .ok_or_else(|| format!("{name} is not in {folder}/{file}"))?;
    let functions: Result<BTreeSet<_>, _> = card_entries(body, &vendors, &devices).collect();
    functions.and_then(|functions| match functions.is_empty() {
        true => Err(format!("{name} has no entry that can be read")),
        false => Ok(functions),
    })
}

/// Entries `MACRO(VENDOR, DEVICE)`, or `MACRO(DEVICE)` where the macro is one of Intel's.
fn card_entries<'t>(
    body: &'t str,
    vendors: &'t BTreeMap<String, u16>,
    devices: &'t BTreeMap<String, u16>,
) -> impl Iterator<Item = Result<Function, String>> + 't {
    let entries = body.split('(').zip(body.split('(').skip(1));
    entries.map(|(before, ids)| {
        let macro_name = words(before).last().unwrap_or_default();
        let ids: Vec<_> = words(ids.split_once(')').map_or(ids, |(ids, _)| ids)).collect();
        let device = |word: &str| number(word).or_else(|| devices.get(word).copied());
        let vendor =
            |word: &str| vendors.get(word.strip_prefix("PCI_VENDOR_ID_").unwrap_or(word)).copied();
        let function = match ids[..] {
            [of] if macro_name.starts_with("INTEL_") => vendor("INTEL").zip(device(of)),
            [by, of] => vendor(by).zip(device(of)),
            _ => None,
        };
        function
            .map(|(vendor, device)| Function { vendor, device })
            .ok_or_else(|| format!("an entry that is no card: {macro_name}({})", ids.join(", ")))
    })
}

fn by_string(vendor: &str, model: Option<&str>, firmware: Option<&str>) -> String {
    let said = |what, text: Option<&str>| {
        text.map_or_else(String::new, |text| format!(" {what} {text:?}"))
    };
    format!("{vendor}{}{}", said("model", model), said("firmware", firmware))
}

/// Structures with `.vid`, `.mn` (model), `.fr` (firmware) and `.quirks`.
fn by_strings(body: &str, prefix: &str) -> Facts {
    let of = |entry: &str| {
        let field = |name: &str| entry.split_once(name).map(|(_, rest)| rest);
        let text = |name| field(name)?.split('"').nth(1);
        let vendor = words(field(".vid")?).find_map(number)?;
        let key = by_string(&format!("{vendor:04x}"), text(".mn"), text(".fr"));
        Some((key, flags_in(entry, prefix)))
    };
    body.split('{').filter_map(of).collect()
}

/// Entries `{ "MODEL", "FIRMWARE", FLAGS }`; without a firmware it is NULL.
fn by_patterns(body: &str, prefix: &str) -> Facts {
    let of = |entry: &str| {
        let (_, rest) = entry.split_once('"')?;
        let (model, rest) = rest.split_once('"')?;
        let (firmware, flags) = rest.trim_start_matches([',', ' ', '\t']).split_once(',')?;
        let firmware = firmware.trim().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let flags = flags.split_once('}').map_or(flags, |(flags, _)| flags);
        Some((by_string("", Some(model), firmware), flags_in(flags, prefix)))
    };
    body.split("\n\t{").filter_map(of).collect()
}

/// The texts that a function compares: of boards, machines and their makers.
fn boards(body: &str) -> Facts {
    let texts = body.split('"').skip(1).step_by(2);
    texts.map(|text| (format!("{text:?}"), BTreeSet::new())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: &str = "
        { PCI_VDEVICE(INTEL, 0x0953),\t/* a drive */
            .driver_data = Q_STRIPE |
                    Q_ZEROES, },
        { PCI_DEVICE(0x144d, 0xa80B) },
        { PCI_DEVICE(PCI_VENDOR_ID_APPLE, 0x2001), .driver_data = Q_ONE },
        { PCI_DEVICE_CLASS(PCI_CLASS_STORAGE_EXPRESS, 0xffffff) },
        { 0, }";

    fn facts(list: &[(&str, &[&str])]) -> Facts {
        list.iter()
            .map(|(key, flags)| {
                ((*key).to_owned(), flags.iter().map(|&flag| flag.to_owned()).collect())
            })
            .collect()
    }

    #[test]
    fn what_is_new_gone_and_different_is_said_and_nothing_else() {
        let ours = facts(&[("a", &["X"]), ("b", &["X"]), ("c", &[])]);
        let theirs = facts(&[("a", &["X"]), ("b", &["X", "Y"]), ("d", &["Z"])]);
        assert_eq!(
            differences(&ours, &theirs),
            [
                "b: ring3 has (X), the kernel (X, Y)",
                "c: the kernel does not have it",
                "d: ring3 does not know it (Z)",
            ]
        );
        assert!(differences(&ours, &ours).is_empty());
    }

    fn found(facts: &Facts) -> Vec<(&str, Vec<&str>)> {
        let mut list = Vec::new();
        for (key, flags) in facts {
            list.push((key.as_str(), flags.iter().map(String::as_str).collect()));
        }
        list
    }

    #[test]
    fn a_table_of_ids_is_read_with_names_of_vendors_and_without_its_class() {
        let vendors =
            vendors("#define PCI_VENDOR_ID_INTEL\t0x8086\n#define PCI_VENDOR_ID_APPLE 0x106b");
        let flags = |rest: &str| flags_in(rest, "Q_");
        let facts = by_ids(&without_comments(IDS), &vendors, flags).unwrap();
        let wanted: [(&str, Vec<&str>); 3] = [
            ("106b:2001", vec!["ONE"]),
            ("144d:a80b", vec![]),
            ("8086:0953", vec!["STRIPE", "ZEROES"]),
        ];
        assert_eq!(found(&facts), wanted);
    }

    #[test]
    fn an_entry_of_another_form_is_an_error_and_not_left_out() {
        for entry in ["{ PCI_DEVICE_DATA(A, B, 0x3) },", "{ PCI_VDEVICE(NOBODY, 0x2) },"] {
            assert!(by_ids(entry, &BTreeMap::new(), |_| BTreeSet::new()).is_err(), "{entry}");
        }
    }

    #[test]
    fn controllers_have_the_flags_of_their_kind_by_each_of_its_names() {
        let kinds = flags_of_kinds(
            "enum {\n\tkind_third\t= kind_second,\n};",
            "
\t[kind_first] = {
\t\t.flags\t= COMMON,
\t\t.port_ops\t= &ahci_ops,
\t},
\t[kind_second] = {
\t\tFLAGS(H_A | H_B),
\t\t.link_flags\t= ATA_LFLAG_C,
\t\t.port_ops\t= &its_ops,
\t},",
            "H_",
        );
        let all = vec!["A", "ATA_LFLAG_C", "B", "its_ops"];
        let wanted = [("kind_first", vec![]), ("kind_second", all.clone()), ("kind_third", all)];
        assert_eq!(found(&kinds), wanted);
    }

    #[test]
    fn an_entry_for_a_subsystem_is_another_one_than_that_for_all() {
        let body = "{ PCI_DEVICE_SUB(0x1, 0x2, 0x3, 0x4), Q_A }, { PCI_DEVICE(0x1, 0x2), Q_B },
            { PCI_VENDOR_ID_A, PCI_ANY_ID, Q_C }, { PCI_ANY_ID, PCI_ANY_ID, Q_C }, {
            PCI_DEVICE(0x1, 0x3),
            .driver_data = Q_C,
        }";
        let facts = by_ids(body, &BTreeMap::new(), |rest| flags_in(rest, "Q_")).unwrap();
        assert_eq!(
            found(&facts),
            [
                ("0001:0002", vec!["B"]),
                ("0001:0002 of 0003:0004", vec!["A"]),
                ("0001:0003", vec!["C"])
            ]
        );
    }

    #[test]
    fn cards_are_read_by_names_and_by_numbers_and_another_form_is_an_error() {
        let (vendors, devices) = (
            defines("#define PCI_VENDOR_ID_INTEL 0x8086", "PCI_VENDOR_ID_"),
            defines("#define DEV_ID_X 0x10D3", ""),
        );
        let read = |body| card_entries(body, &vendors, &devices).collect::<Result<Vec<_>, _>>();
        let body = "INTEL_CARD(0x1000),\n{ PCI_VDEVICE(INTEL, DEV_ID_X), board }, { 0, }";
        let text: Vec<_> = read(body).unwrap().iter().map(Function::to_string).collect();
        assert_eq!(text, ["8086:1000", "8086:10d3"]);
        for body in ["CARD(0x1000)", "{ PCI_VDEVICE(INTEL, DEV_ID_Y) }", "{ PCI_DEVICE(1, 2, 3) }"]
        {
            assert!(read(body).is_err(), "{body}");
        }
    }

    #[test]
    fn patterns_of_drives_are_read_and_flags_by_the_numbers_of_their_bits() {
        let body = "
\t{ \"WDC {A} 10\",\tNULL,\t\tQ_A },
\t{ \" 2GB, Flash\", \"ADMA428M\",\tQ_A |
\t\t\t\tQ_B, },
\t{ \"INTEL*\",\tNULL,\t0 },
\t{ }";
        let facts = by_patterns(body, "Q_");
        let wanted = [
            (" model \" 2GB, Flash\" firmware \"ADMA428M\"", vec!["A", "B"]),
            (" model \"INTEL*\"", vec![]),
            (" model \"WDC {A} 10\"", vec!["A"]),
        ];
        assert_eq!(found(&facts), wanted);
        let names = flags("__Q_A,\n__Q_B,\n__Q_MAX", "Q_");
        assert_eq!(found(&names), [("A", vec![]), ("B", vec![])]);
    }

    #[test]
    fn models_and_firmware_are_read() {
        let body = "{ .vid = 0x1179, .mn = \"THNS TOSHIBA\", .quirks = Q_A },
                    { .vid = 0x14a4, .fr = \"22\", .quirks = Q_B | Q_C, }";
        let facts = by_strings(body, "Q_");
        let wanted =
            [("1179 model \"THNS TOSHIBA\"", vec!["A"]), ("14a4 firmware \"22\"", vec!["B", "C"])];
        assert_eq!(found(&facts), wanted);
    }
}
