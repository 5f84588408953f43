//! `ring3 record` and `ring3 replay`: another command of this program, with its device recorded or
//! made of a recording.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_decorator::recording::{Event, Recording};
use ring3_spec::text::Printable;

mod recorded;

use recorded::Shown;

/// Options of `ring3 record`.
#[derive(clap::Args)]
pub struct RecordArgs {
    /// The recording to write. The file must not exist yet.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The command of ring3 to record, which drives one device: blk check --device
    /// vfio:0000:01:00.0
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Options of `ring3 replay`.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// The recording.
    file: PathBuf,
    /// Print the recorded events, one per line, and run nothing.
    #[arg(long, conflicts_with = "command")]
    show: bool,
    /// The command to run. Default: the recorded one, if it does nothing but use its device.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl RecordArgs {
    /// The words of the command, with its device recorded.
    pub fn words(&self) -> Result<Vec<String>> {
        let file = text(&self.output)?;
        with_device(&self.command, |device| format!("{device},record={file}"))
    }
}

impl ReplayArgs {
    /// The words of the command, with the recording as its device; `None` if it was only to be
    /// shown.
    pub fn words(&self) -> Result<Option<Vec<String>>> {
        let recording =
            Recording::open(&self.file).with_context(|| self.file.display().to_string())?;
        if self.show {
            return show(recording).map(|()| None);
        }
        let file = text(&self.file)?;
        let command = match &self.command[..] {
            [] => recorded::words(&recording.header.command, file)?,
            given => given.to_vec(),
        };
        with_device(&command, |_| format!("replay:{file}")).map(Some)
    }
}

/// A name that can stand in a device's.
fn text(path: &Path) -> Result<&str> {
    let text = path.to_str().filter(|text| !text.contains(','));
    text.with_context(|| {
        format!("{}: a recording's name has no commas, and is text", path.display())
    })
}

/// `command` with another device.
fn with_device(command: &[String], other: impl Fn(&Uri) -> String) -> Result<Vec<String>> {
    let mut words = vec!["ring3".to_owned()];
    let mut devices = 0;
    for word in command {
        let (option, value) = word
            .split_once('=')
            .filter(|(option, _)| option.starts_with("--"))
            .unwrap_or(("", word));
        // A driver's name looks like a device's.
        let Some(uri) = value.parse::<Uri>().ok().filter(|uri| uri.scheme != "dde") else {
            words.push(word.clone());
            continue;
        };
        devices += 1;
        words.push(if option.is_empty() {
            other(&uri)
        } else {
            format!("{option}={}", other(&uri))
        });
    }
    match devices {
        1 => Ok(words),
        0 => bail!(
            "{:?} names no device: give one by its URI, such as --device vfio:0000:01:00.0",
            command.join(" ")
        ),
        _ => bail!("{:?} names several devices, and one can be recorded", command.join(" ")),
    }
}

fn show(mut recording: Recording) -> Result<()> {
    let (header, events) = (&recording.header, recording.events());
    let device = Printable(header.device.as_bytes());
    outln!(
        "device {device}, class {:06x}, arena {:#x} of {} bytes",
        header.class,
        header.arena.0,
        header.arena.1
    );
    outln!("command {}", Shown(&header.command));
    let class = header.class;
    let mut count = 0;
    while let Some(event) = recording.next_event()? {
        outln!("{count} {}", line(&event, class));
        count += 1;
    }
    match events {
        Some(_) => outln!("{count} events"),
        None => outln!("{count} events; whoever recorded them was killed"),
    }
    Ok(())
}

fn line(event: &Event, class: u32) -> String {
    match event {
        Event::Read(_, value) => format!("{}: {value:#x}", event.text(class)),
        _ => event.text(class),
    }
}

/// Says what a recording or a replay has to say at the end of a command that ended with `code`.
pub fn finish(code: ExitCode) -> ExitCode {
    match ring3_decorator::take_failure() {
        Some(failure) => {
            errln!("ring3: {failure}");
            if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
        }
        None => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str) -> Result<String> {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        with_device(&command, |uri| format!("replay:{}", uri.target)).map(|words| words.join(" "))
    }

    #[test]
    fn the_device_of_a_command_is_found_wherever_it_stands() {
        assert_eq!(
            words("blk info --device sim:nvme,size=1M --json").unwrap(),
            "ring3 blk info --device replay:nvme --json"
        );
        assert_eq!(
            words("nvme id --device=sim:nvme").unwrap(),
            "ring3 nvme id --device=replay:nvme"
        );
    }

    #[test]
    fn a_command_without_a_device_or_with_two_is_refused() {
        assert!(words("blk info").unwrap_err().to_string().contains("names no device"));
        assert!(
            words("blk info sim:nvme sim:ide").unwrap_err().to_string().contains("several devices")
        );
    }
}
