//! `ring3 quirks`: what drivers know of devices that are otherwise than their specification.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ring3_driver::registry;
use ring3_quirks::{Class, linux, page};

/// What `ring3 quirks` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show the quirks that drivers know, and what they do about each.
    Show {
        /// Print the page docs/quirks.md, with all devices.
        #[arg(long)]
        markdown: bool,
    },
    /// Compare the tables with those of a kernel's source.
    ///
    /// Says what the kernel has and ring3 has not, and the other way round. The order of entries
    /// is not compared, by which one of several that match a drive is chosen. The exit code is 1
    /// if there is any difference.
    Compare {
        /// The root of the kernel's source.
        tree: PathBuf,
    },
}

/// Does it.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Show { markdown: true } => {
            crate::output::write(format_args!("{}", page(registry::quirks())));
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { markdown: false } => {
            show();
            Ok(ExitCode::SUCCESS)
        }
        Command::Compare { tree } => compare(&tree),
    }
}

fn show() {
    for (driver, table) in registry::quirks() {
        outln!("{driver}, after Linux {}", table.linux.version);
        let known = table.flags.iter().filter(|(_, flag)| flag.class != Class::Unconcerned);
        for (name, flag) in known {
            outln!("  {name:22} the device {}", flag.device);
            outln!("  {:22} ring3 {}", "", flag.answer());
        }
    }
}

fn compare(tree: &Path) -> anyhow::Result<ExitCode> {
    let mut same = true;
    for (driver, table) in registry::quirks() {
        let theirs = linux::read(tree, &table.linux).map_err(anyhow::Error::msg)?;
        for line in linux::differences(&linux::facts_of(table), &theirs) {
            outln!("{driver}: {line}");
            same = false;
        }
    }
    if same {
        outln!("The tables have what the kernel's have.");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
