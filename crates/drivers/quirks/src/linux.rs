//! The tables of quirks in a kernel's source: ids, strings, boards and flags, and no more of C than
//! these need.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{Linux, SourceKind, Table};

/// What a table says: of each device, and of each name, its flags as the kernel calls them.
pub type Facts = BTreeMap<String, BTreeSet<String>>;

/// Where names of vendors are.
const VENDORS: &str = "include/linux/pci_ids.h";

/// What the tables that `linux` names say in the source at `tree`.
pub fn read(tree: &Path, linux: &Linux) -> Result<Facts, String> {
    let text = |file: &str| {
        let path = tree.join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(without_comments(&text)),
            Err(error) => Err(format!("{}: {error}: is that a kernel's source?", path.display())),
        }
    };
    let vendors = vendors(&text(VENDORS)?);
    let mut facts = Facts::new();
    for source in linux.source.iter().filter(|source| source.kind != SourceKind::Own) {
        let missing = || format!("{} is not in {}", source.name, source.file);
        let body = text(&source.file)?;
        let body = body_of(&body, &source.name, source.kind).ok_or_else(missing)?;
        let found = match source.kind {
            SourceKind::Flags => flags(body, &linux.prefix),
            SourceKind::PciIds => by_ids(body, &linux.prefix, &vendors)?,
            SourceKind::Strings => by_strings(body, &linux.prefix),
            SourceKind::Drives => by_patterns(body, &linux.prefix),
            SourceKind::Boards => boards(body),
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
    for source in table.linux.source.iter().filter(|source| source.kind == SourceKind::Flags) {
        for name in table.flags.values().filter_map(|flag| flag.linux.as_ref()) {
            facts.entry(format!("{} {name}", source.name)).or_default();
        }
    }
    for entry in table.entries.iter().filter(|entry| table.kind(entry) != Some(SourceKind::Own)) {
        let kind = table.kind(entry);
        let id = |id: Option<u16>| id.map_or_else(String::new, |id| format!("{id:04x}"));
        let keys = match kind {
            Some(SourceKind::PciIds) => vec![format!("{}:{}", id(entry.vendor), id(entry.device))],
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
        SourceKind::PciIds | SourceKind::Strings | SourceKind::Drives => {
            format!("{name}[] = {{")
        }
        SourceKind::Boards => format!("{name}("),
        SourceKind::Own => return None,
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
    let of_line = |line: &str| {
        let mut words = words(line.strip_prefix("#define PCI_VENDOR_ID_")?);
        Some((words.next()?.to_owned(), number(words.next()?)?))
    };
    text.lines().filter_map(of_line).collect()
}

fn flags(body: &str, prefix: &str) -> Facts {
    flags_in(body, prefix).into_iter().map(|flag| (flag, BTreeSet::new())).collect()
}

/// Entries that begin with `PCI_DEVICE(VENDOR, DEVICE)` or `PCI_VDEVICE(VENDOR, DEVICE)`. One for a
/// whole class has nothing to say.
fn by_ids(body: &str, prefix: &str, vendors: &BTreeMap<String, u16>) -> Result<Facts, String> {
    let mut facts = Facts::new();
    for entry in body.split("{ PCI_").skip(1) {
        let Some((macro_name, rest)) = entry.split_once('(') else { continue };
        if macro_name == "DEVICE_CLASS" {
            continue;
        }
        let ids = rest.split_once(')').map_or("", |(ids, _)| ids);
        let of_name =
            |word: &str| vendors.get(word.strip_prefix("PCI_VENDOR_ID_").unwrap_or(word)).copied();
        let mut ids = words(ids).map(|word| number(word).or_else(|| of_name(word)));
        let (Some(Some(vendor)), Some(Some(device)), None) = (ids.next(), ids.next(), ids.next())
        else {
            let entry = entry.trim();
            return Err(format!("an entry that is none of a vendor and a device: PCI_{entry}"));
        };
        let key = format!("{vendor:04x}:{device:04x}");
        facts.entry(key).or_default().extend(flags_in(rest, prefix));
    }
    Ok(facts)
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
        let facts = by_ids(&without_comments(IDS), "Q_", &vendors).unwrap();
        let wanted: [(&str, Vec<&str>); 3] = [
            ("106b:2001", vec!["ONE"]),
            ("144d:a80b", vec![]),
            ("8086:0953", vec!["STRIPE", "ZEROES"]),
        ];
        assert_eq!(found(&facts), wanted);
    }

    #[test]
    fn an_entry_of_another_form_is_an_error_and_not_left_out() {
        let entry = "{ PCI_DEVICE_SUB(0x1, 0x2, 0x3, 0x4) },";
        assert!(by_ids(entry, "Q_", &BTreeMap::new()).is_err());
        assert!(by_ids("{ PCI_VDEVICE(NOBODY, 0x2) },", "Q_", &BTreeMap::new()).is_err());
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
