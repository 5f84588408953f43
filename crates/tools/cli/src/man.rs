//! `ring3 man`: manual pages, one for each command that is not hidden.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// Options of `ring3 man`.
#[derive(clap::Args)]
pub struct Args {
    /// Folder for the pages: ring3.1, ring3-blk.1, ring3-blk-info.1 and so on. Created if it is
    /// missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> Result<ExitCode> {
    write(&args.out)
        .with_context(|| format!("writing manual pages into {}", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    Ok(clap_mangen::generate_to(crate::help::without_hidden(&crate::command_line()), folder)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The pages of `command`, whose own is `name`.
    fn pages(command: &clap::Command, name: &str, all: &mut BTreeSet<String>) {
        all.insert(format!("{name}.1"));
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            pages(command, &format!("{name}-{}", command.get_name()), all);
        }
    }

    #[test]
    fn each_command_that_is_not_hidden_has_a_page_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("man1");
        write(&out).unwrap();
        let mut expected = BTreeSet::new();
        pages(&crate::command_line(), "ring3", &mut expected);
        let found: BTreeSet<_> = fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(found, expected);
        assert!(found.contains("ring3-blk-info.1") && !found.contains("ring3-job.1"));
    }

    #[test]
    fn a_page_has_the_options_and_the_examples_of_its_command() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let page = fs::read_to_string(folder.path().join("ring3-blk-info.1")).unwrap();
        assert!(page.contains("device") && page.contains("ring3 blk info"), "{page}");
    }
}
