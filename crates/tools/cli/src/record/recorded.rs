//! The command that stands in a recording.
//!
//! # Trust
//! A recording comes from another machine, so its command is input. It runs unasked only if it is
//! one of [`COMMANDS`], each option is one of [`FLAGS`] or [`VALUES`], and so nothing but its
//! device can be reached by it. Every other command is shown, and runs when the user repeats it.

use std::fmt;

use anyhow::{Result, ensure};
use ring3_backend::Uri;
use ring3_spec::text::Printable;

/// Commands that use their device, print, and do nothing else.
const COMMANDS: [&[&str]; 13] = [
    &["ata", "id"],
    &["blk", "bench"],
    &["blk", "check"],
    &["blk", "info"],
    &["blk", "read"],
    &["faults", "lone"],
    &["net", "check"],
    &["net", "info"],
    &["nvme", "errors"],
    &["nvme", "id"],
    &["nvme", "power"],
    &["nvme", "smart"],
    &["run", "edu"],
];
/// A driver of Linux. Its name is a word of the command.
const HOSTED: [&str; 2] = ["dde", "run"];
/// Options without a value that change how a device is driven, or how the answer is printed.
const FLAGS: [&str; 9] = [
    "--destroy",
    "--json",
    "--no-msix",
    "--overwrite",
    "--read-only",
    "--reflect",
    "--unprotected",
    "--verbose",
    "--wide",
];
/// Options with a value, none of which names a file, a program or another device.
const VALUES: [&str; 31] = [
    "--arena",
    "--burst",
    "--depth",
    "--device",
    "--dma",
    "--drive",
    "--driver",
    "--fragments",
    "--hmb",
    "--idle",
    "--irq",
    "--left",
    "--length",
    "--lwip",
    "--mappings",
    "--mtu",
    "--namespace",
    "--offset",
    "--packets",
    "--patience",
    "--patience-s",
    "--poll",
    "--power-latency",
    "--quirk",
    "--requests",
    "--seconds",
    "--seed",
    "--socket",
    "--throttle",
    "--transfer",
    "--workload",
];
/// The only file that a recorded command may write unasked.
const NO_FILE: &str = "/dev/null";
/// Where the socket of a replayed driver is. What its users did is in the recording, so nobody
/// connects, and nothing can be created below a file.
const NO_SOCKET: &str = "/dev/null/replay";

/// A command as a user can type it, with everything that is no visible character escaped.
pub struct Shown<'a>(pub &'a [String]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, word) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let text = Printable(word.as_bytes());
            let plain =
                |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
            match !word.is_empty() && word.chars().all(plain) {
                true => write!(f, "{space}{text}")?,
                false => write!(f, "{space}'{}'", text.to_string().replace('\'', "'\\''"))?,
            }
        }
        Ok(())
    }
}

/// The words of the command that a recording names, if they may be run unasked.
pub fn words(recorded: &[String], file: &str) -> Result<Vec<String>> {
    let command = match recorded.iter().position(|word| word == "--") {
        Some(at) if recorded[0] == "record" => &recorded[at + 1..],
        _ => recorded,
    };
    ensure!(!command.is_empty(), "{file}: no command made it: say which one drives it, behind --");
    let shown = Shown(command);
    // Cut, because a recording can name a command of any length.
    let text: String = shown.to_string().chars().take(2000).collect();
    let words = harmless(command);
    let words = words.map_err(|why| {
        anyhow::anyhow!(
            "{file} was made by another command than those that only use their device ({why}), and \
             is not run because a file says so. If you want it, repeat it: ring3 replay {file} -- \
             {text}"
        )
    })?;
    errln!("ring3: replaying: {text}");
    Ok(words)
}

/// The same words without what reaches outside; what they have that is not known otherwise.
fn harmless(command: &[String]) -> Result<Vec<String>, String> {
    let (mut words, mut verbs) = (Vec::new(), Vec::new());
    let mut rest = command.iter();
    while let Some(word) = rest.next() {
        let (option, inline) = match word.split_once('=') {
            Some((option, value)) if word.starts_with('-') => (option, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let printable = Printable(option.as_bytes()).to_string();
        if !option.starts_with('-') {
            verbs.push(word.as_str());
            words.push(word.clone());
        } else if FLAGS.contains(&option) && inline.is_none() {
            words.push(word.clone());
        } else if VALUES.contains(&option) || option == "--to" {
            let value = inline
                .or_else(|| rest.next().cloned())
                .ok_or_else(|| format!("{printable} has no value"))?;
            let value = match option {
                "--device" if is_device(&value) => value,
                "--device" => return Err(format!("{printable} is no device of a driver")),
                "--socket" => NO_SOCKET.to_owned(),
                "--to" if value == NO_FILE => value,
                "--to" => return Err("it writes a file".into()),
                _ if is_place(&value) => {
                    return Err(format!("{printable} names a file or a device"));
                }
                _ => value,
            };
            words.extend([option.to_owned(), value]);
        } else {
            return Err(format!("it has {printable}"));
        }
    }
    let hosted = matches!(&verbs[..], [a, b, _] if [*a, *b] == HOSTED);
    let verb = verbs.join(" ");
    let known = hosted || COMMANDS.iter().any(|command| verbs == *command);
    if known { Ok(words) } else { Err(format!("it is {}", Printable(verb.as_bytes()))) }
}

/// Whether a value names a device, whose place the recording takes. A hosted driver's name looks
/// like a device's.
fn is_device(value: &str) -> bool {
    value.parse::<Uri>().is_ok_and(|uri| uri.scheme != "dde")
}

/// Whether a value can name a file or another device. An address with its bits has a slash, too.
fn is_place(value: &str) -> bool {
    let is_address = value.split_once('/').is_some_and(|(host, bits)| {
        host.parse::<std::net::IpAddr>().is_ok() && bits.parse::<u8>().is_ok()
    });
    value.contains('/') && !is_address || is_device(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(command: &str) -> Result<String, String> {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        harmless(&command).map(|words| words.join(" "))
    }

    #[test]
    fn a_command_that_only_uses_its_device_runs_unasked() {
        for command in [
            "blk info --device sim:nvme --json",
            "nvme --device sim:nvme id",
            "blk read --length 4096 --to /dev/null --device sim:ide",
            "net check --driver dde:e1000e --device qtest:e1000e --packets 10",
            "faults lone --device sim:nvme --seed 7 --left 1:2 --wide",
            "dde run e1000e --device qtest:e1000e --lwip 10.0.0.2/24",
        ] {
            assert_eq!(checked(command).as_deref(), Ok(command));
        }
    }

    #[test]
    fn a_command_or_an_option_that_is_not_known_to_be_harmless_does_not() {
        for (command, why) in [
            ("blk read --device sim:nvme --to data", "it writes a file"),
            ("blk write --device sim:nvme", "it is blk write"),
            ("run nvme --device sim:nvme", "it is run nvme"),
            ("bind 0000:01:00.0", "it is bind 0000:01:00.0"),
            (
                "net check --driver dde:e1000e --device sim:e1000 --overlay folder",
                "it has --overlay",
            ),
            ("blk info --device sim:nvme --json=yes", "it has --json"),
            ("blk info --device", "--device has no value"),
            ("blk bench --overwrite --device /dev/sda", "--device is no device of a driver"),
            ("blk info --device sim:nvme --driver sim:nvme", "--driver names a file or a device"),
            (
                "blk bench --device sim:nvme --workload /etc/passwd",
                "--workload names a file or a device",
            ),
            ("blk info --device sim:nvme -o x", "it has -o"),
            ("blk info --device sim:nvme \u{1b}[2J", "it is blk info \\x1b[2J"),
        ] {
            assert_eq!(checked(command), Err(why.to_owned()), "{command}");
        }
    }

    #[test]
    fn a_replayed_driver_has_no_socket_that_the_recording_chooses() {
        let words = checked("dde run nvme --device sim:nvme --socket /run/victim").unwrap();
        assert_eq!(words, format!("dde run nvme --device sim:nvme --socket {NO_SOCKET}"));
    }

    #[test]
    fn a_shown_command_moves_no_cursor_and_can_be_typed() {
        let command = [
            "blk".to_owned(),
            "a b".to_owned(),
            "it's".to_owned(),
            "\u{1b}]0;t\u{7}\n".to_owned(),
            String::new(),
        ];
        assert_eq!(Shown(&command).to_string(), r"blk 'a b' 'it'\''s' '\x1b]0;t\x07\x0a' ''");
    }
}
