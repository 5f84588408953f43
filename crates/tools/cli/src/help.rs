//! The help of all commands: the map that `ring3 --help` shows, and the examples.
//!
//! clap has no groups of subcommands. The map is made of the command's own list, so that a
//! subcommand has its line from its own description.

mod examples;

use std::fmt::Write as _;

use clap::Command;

use examples::EXAMPLES;

/// The groups of the map. A test fails if a command is in none, or in two.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Look at devices; these commands change nothing",
        &["devices", "doctor", "nvme", "ata", "sandbox", "quirks"],
    ),
    ("Use a device", &["bind", "unbind", "run", "blk", "net"]),
    (
        "Serve and supervise devices",
        &[
            "serve", "status", "logs", "top", "restart", "stop", "upgrade", "reload", "sleep",
            "wake", "ublk", "vduse",
        ],
    ),
    ("Linux's drivers outside the kernel", &["dde", "split"]),
    (
        "Measure and test",
        &[
            "demo", "hardware", "bench", "faults", "lab", "model", "record", "replay", "plot",
            "report", "suites",
        ],
    ),
    ("The rest", &["new", "cache", "completion", "man"]),
];

/// `command` with the map as its help, and examples in the help of its subcommands.
pub fn complete(command: Command) -> Command {
    let command = with_examples(command, "");
    let template = template(&command);
    command.help_template(template)
}

/// `command` without hidden subcommands, which have no manual page and no completion.
pub fn without_hidden(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown = Command::new("ring3")
        .version(env!("CARGO_PKG_VERSION"))
        .long_version(crate::version::LONG)
        .propagate_version(true)
        .subcommand_required(true)
        .args(command.get_arguments().cloned())
        .subcommands(visible.cloned());
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        shown = shown.long_about(about.clone());
    }
    match command.get_after_help() {
        Some(after) => shown.after_help(after.clone()),
        None => shown,
    }
}

fn template(command: &Command) -> String {
    let header = *command.get_styles().get_header();
    let name = *command.get_styles().get_literal();
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, members) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{header}{title}:{header:#}");
        for member in members.iter().filter_map(|member| command.find_subcommand(member)) {
            let about = member.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {name}{:10}{name:#}  {about}", member.get_name());
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

/// The examples of the command whose name is `path`, as the end of a help text.
pub fn examples(path: &str) -> Option<String> {
    let (_, examples) = EXAMPLES.iter().find(|(command, _)| *command == path)?;
    Some(format!("Examples:\n  {}", examples.join("\n  ")))
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<_> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |command| with_examples(command, &path))
    });
    let Some(examples) = examples(path) else { return command };
    let after = match command.get_after_help() {
        Some(before) => format!("{before}\n\n{examples}"),
        None => examples,
    };
    command.after_help(after)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::command_line;

    /// The names of all commands below `command` that are not hidden and have no subcommands, as
    /// they are typed.
    fn leaves(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = format!("{path} {}", command.get_name()).trim_start().to_owned();
            if !command.has_subcommands() {
                found.insert(path.clone());
            }
            leaves(command, &path, found);
        }
    }

    #[test]
    fn each_command_that_is_not_hidden_is_in_one_group_of_the_map() {
        let mut grouped: Vec<_> =
            GROUPS.iter().flat_map(|(_, members)| *members).copied().collect();
        grouped.sort_unstable();
        let command = command_line();
        let mut known: Vec<_> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }

    #[test]
    fn the_map_names_the_four_places_and_fits_a_terminal_of_eighty_columns() {
        let map = command_line().render_long_help().to_string();
        let headline = map.lines().next().unwrap();
        for word in ["disks and network cards", "kernel", "native", "hosted", "split"] {
            assert!(headline.contains(word), "{word}: {map}");
        }
        // The description is wrapped by clap, to the terminal's width.
        let lines = map.lines().skip_while(|line| !line.starts_with("Usage:"));
        for line in lines {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(!map.contains("\n  job "), "{map}");
    }

    #[test]
    fn each_command_has_one_to_three_examples_and_each_example_is_its_command() {
        let mut leaves_found = BTreeSet::new();
        leaves(&command_line(), "", &mut leaves_found);
        for leaf in &leaves_found {
            assert!(EXAMPLES.iter().any(|(path, _)| path == leaf), "{leaf} has no example");
        }
        for (path, examples) in EXAMPLES {
            assert!((1..=3).contains(&examples.len()), "{path}");
            for example in examples.iter() {
                // What follows a pipe or a redirection is the shell's.
                let own = example.split(['|', '>']).next().unwrap().trim_end();
                let words = own.strip_prefix("sudo ").unwrap_or(own);
                let words: Vec<_> = words.split_whitespace().collect();
                let expected = std::iter::once("ring3").chain(path.split(' '));
                assert!(expected.zip(&words).all(|(one, other)| one == *other), "{example}");
                if let Err(error) = command_line().try_get_matches_from(&words) {
                    panic!("{example}: {error}");
                }
            }
        }
    }

    #[test]
    fn each_example_is_at_the_end_of_its_commands_help() {
        for (path, examples) in EXAMPLES {
            let mut command = command_line();
            command.build();
            let found = path
                .split(' ')
                .try_fold(&mut command, |command, name| command.find_subcommand_mut(name));
            let help = found.unwrap_or_else(|| panic!("{path}")).render_long_help().to_string();
            let end = help.split_once("Examples:").unwrap_or_else(|| panic!("{path}: {help}")).1;
            assert!(examples.iter().all(|example| end.contains(example)), "{path}: {help}");
        }
    }
}
