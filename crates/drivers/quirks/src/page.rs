//! The page docs/quirks.md, made of tables.

use std::fmt::Write as _;

use crate::{Cards, Class, Entry, Flag, Function, SourceKind, Table};

/// How the page begins.
const HEAD: &str = "\
# Quirks

Devices that are otherwise than their specification, and what ring3's drivers do about it. The facts
are those of Linux. A driver knows a device by its PCI ids, by the model and the firmware that it
says, and by the board that it is in. `ring3 devices` shows those that are known by ids and
board; `ring3 nvme id` and `ring3 ata id` show all. `--quirk NAME` of `ring3 run nvme`,
`ring3 run ata`, `ring3 nvme`, `ring3 ata` and `ring3 blk` sets one, and `--quirk no-NAME` clears
one; `quirks = [\"NAME\"]` does so in a [manifest](supervisor.md). Flags that ring3 has nothing to
do with cannot be set.

This page is made of the tables beside the drivers, and a test compares the two. To make it anew,
and to see what the source of another kernel has otherwise:

    ring3 quirks show --markdown > docs/quirks.md
    ring3 quirks compare /usr/src/linux-source-6.12
";

/// How the part about cards begins.
const CARDS: &str = "
## Network cards

Cards that the kernel's drivers of Intel's gigabit cards take. What ring3 has no driver of its own
for is driven by the kernel's, [hosted](hosting.md) in a process: `--driver dde:NAME` of `ring3 run
net`, or `driver = \"dde:NAME\"` in a manifest. That driver has its own workarounds for each card.
`ring3 devices` names the driver of each card of a machine. Intel's 2.5 Gbit/s cards (I225, I226)
have neither.
";

impl Flag {
    /// What ring3 does about it, as the rest of a sentence whose subject that is.
    pub fn answer(&self) -> String {
        match self.class {
            Class::Refused => format!("refuses it: \"{}\"", self.ring3),
            _ => self.ring3.clone(),
        }
    }
}

/// The whole page, of `tables` with the names of their drivers, and of `cards`.
pub fn page<'t>(tables: impl IntoIterator<Item = (&'t str, &'t Table)>, cards: &[Cards]) -> String {
    let sections = tables.into_iter().map(|(driver, table)| section(driver, table));
    let text = sections.fold(HEAD.to_owned(), |text, section| text + &section);
    text + &network_cards(cards)
}

/// Each card of the kernel's drivers, by who drives it.
fn network_cards(cards: &[Cards]) -> String {
    let mut text = CARDS.to_owned();
    let list = |functions: &[Function]| {
        functions.iter().map(Function::to_string).collect::<Vec<_>>().join(", ")
    };
    for Cards { driver, table, own, hosted } in cards {
        let _ = write!(
            text,
            "\n### {driver}\n\n`{}` in `{}/{}`.\n{} ids: {} are driven by ring3's own driver, \
             {} by `dde:{driver}`.\n\n| driver | ids |\n|---|---|\n",
            table.name,
            table.folder,
            table.file,
            own.len() + hosted.len(),
            own.len(),
            hosted.len(),
        );
        let _ = writeln!(text, "| ring3's own | {} |", list(own));
        let _ = writeln!(text, "| `dde:{driver}` | {} |", list(hosted));
    }
    text
}

/// What ring3 makes of the device of an entry.
fn class(table: &Table, entry: &Entry) -> Class {
    let has = |wanted: &[Class]| {
        let flags = entry.flags.iter().filter_map(|name| table.flags.get(name));
        flags.into_iter().any(|flag| wanted.contains(&flag.class))
    };
    if has(&[Class::Refused]) {
        Class::Refused
    } else if has(&[Class::Obeyed]) {
        Class::Obeyed
    } else {
        Class::Unconcerned
    }
}

fn section(driver: &str, table: &Table) -> String {
    let devices = |entry: &Entry| entry.ids.len().max(1);
    let count = |wanted| {
        let entries = table.entries.iter().filter(|entry| class(table, entry) == wanted);
        entries.map(devices).sum::<usize>()
    };
    let files: Vec<_> = table
        .linux
        .source
        .iter()
        .map(|source| match source.kind {
            SourceKind::Own => format!("and {}", source.file),
            SourceKind::FlagsInFile => format!("`{}`", source.file),
            _ => format!("`{}` in `{}`", source.name, source.file),
        })
        .collect();
    let unclassified =
        |entry: &&Entry| entry.flags.iter().any(|name| !table.flags.contains_key(name));
    let mut text = format!(
        "\n## {driver}\n\nLinux {}: {}.\n\n{} entries: {} handled, {} refused, {} do not concern \
         ring3, {} unclassified.\n",
        table.linux.version,
        files.join(",\n"),
        table.entries.iter().map(devices).sum::<usize>(),
        count(Class::Obeyed),
        count(Class::Refused),
        count(Class::Unconcerned),
        table.entries.iter().filter(unclassified).count(),
    );
    for (title, classes) in [
        ("handled", &[Class::Obeyed][..]),
        ("refused", &[Class::Refused]),
        ("that do not concern ring3", &[Class::Unconcerned]),
    ] {
        let _ = write!(
            text,
            "\n### Flags {title}\n\n| flag | Linux | the device | ring3 | test |\n\
             |---|---|---|---|---|\n"
        );
        for (name, flag) in table.flags.iter().filter(|(_, flag)| classes.contains(&flag.class)) {
            let test = flag.test.as_deref().and_then(|test| test.split_once(": "));
            let test = test.map_or_else(String::new, |(file, name)| format!("`{name}` in {file}"));
            let (device, ring3) = (&flag.device, flag.answer());
            let linux = flag.linux.as_deref().unwrap_or_default();
            let _ = writeln!(text, "| `{name}` | {linux} | {device} | {ring3} | {test} |");
        }
    }
    text += "\n### Devices\n\n| device | known by | handled | refused | of no concern |\n\
             |---|---|---|---|---|\n";
    for entry in &table.entries {
        let of = |wanted: &[Class]| {
            let has = |name: &&String| {
                table.flags.get(*name).is_some_and(|flag| wanted.contains(&flag.class))
            };
            entry.flags.iter().filter(has).cloned().collect::<Vec<_>>().join(", ")
        };
        let concern = entry.note.clone().unwrap_or_else(|| of(&[Class::Unconcerned]));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {concern} |",
            entry.what,
            known_by(entry),
            of(&[Class::Obeyed]),
            of(&[Class::Refused]),
        );
    }
    text
}

fn known_by(entry: &Entry) -> String {
    let mut parts = Vec::new();
    match (entry.vendor, entry.device) {
        (Some(vendor), Some(device)) => parts.push(format!("{vendor:04x}:{device:04x}")),
        (Some(vendor), None) => parts.push(format!("vendor {vendor:04x}")),
        _ => {}
    }
    parts.extend(entry.ids.iter().map(Function::to_string));
    if let Some((vendor, device)) = entry.subsystem {
        parts.push(format!("of {}", Function { vendor, device }));
    }
    if let Some(version) = entry.below_version {
        parts.push(format!("version before {}.{}", version >> 16, version >> 8 & 0xff));
    }
    for (what, text) in [
        ("model", &entry.model),
        ("firmware", &entry.firmware),
        ("maker", &entry.sys_vendor),
        ("machine", &entry.product_name),
        ("board's maker", &entry.board_vendor),
        ("board", &entry.board_name),
    ] {
        parts.extend(text.iter().map(|text| format!("{what} `{text}`")));
    }
    parts.join(", ")
}
