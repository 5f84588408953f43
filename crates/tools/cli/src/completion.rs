//! `ring3 completion`: the completion scripts of shells.

use std::process::ExitCode;

use anyhow::Result;
use clap_complete::{Generator, Shell};

/// Options of `ring3 completion`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Name,
}

/// The shells for which `make install` has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Put the script at share/bash-completion/completions/ring3.
    Bash,
    /// Put the script at share/zsh/site-functions/_ring3.
    Zsh,
    /// Put the script at share/fish/vendor_completions.d/ring3.fish.
    Fish,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<ExitCode> {
    crate::output::write(format_args!("{}", script(args.shell)?));
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Name) -> Result<String> {
    let shell = match shell {
        Name::Bash => Shell::Bash,
        Name::Zsh => Shell::Zsh,
        Name::Fish => Shell::Fish,
    };
    let mut command = crate::help::without_hidden(&crate::command_line());
    command.set_bin_name("ring3");
    command.build();
    let mut script = Vec::new();
    shell.try_generate(&command, &mut script)?;
    Ok(String::from_utf8(script)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_script_has_the_commands_and_not_the_hidden_one() {
        for &shell in Name::value_variants() {
            let script = script(shell).unwrap();
            assert!(script.contains("doctor") && script.contains("udp-echo"), "{shell:?}");
            assert!(!script.contains("measurement, for another process"), "{shell:?}");
            assert!(!script.contains("__job") && !script.contains("subcmd__job"), "{shell:?}");
        }
    }

    #[test]
    fn bash_takes_its_script() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ring3");
        std::fs::write(&file, script(Name::Bash).unwrap()).unwrap();
        let output = Command::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
