//! `ring3 job`: what this program does when another process of it has started it, in a guest or
//! beside itself. One hidden command takes it as JSON; no public command has an option for it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::bench::{self, cards};
use crate::faults::{self, life};
use crate::hardware::look::{self, Look};
use crate::run::net::Engine;

/// The command's name.
pub const COMMAND: &str = "job";

/// What is done.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Job {
    /// In a guest: measures disks.
    Disk(bench::disk::Turns),
    /// In a guest: measures datagrams through a card.
    UdpEcho(cards::Task),
    /// In a guest: measures TCP through a card.
    Tcp(cards::Task),
    /// In a guest: measures pings beside a load.
    Ping(cards::Task),
    /// In a guest: measures cards that are cabled together.
    Loopback(cards::Task),
    /// In a guest: measures so many interrupts.
    IrqDelay { runs: u32, task: cards::Task },
    /// In a guest: measures a hosted card, by so many echo requests.
    Hosted { samples: u32, task: cards::Task },
    /// In a guest: kills drivers of a supervised card.
    Outage(bench::outage::Task),
    /// In a guest: does the faults that lie in the file `plan`.
    GuestFaults { plan: PathBuf },
    /// Is an interface that answers itself, until it is killed.
    Null { name: String, engine: Engine },
    /// Is a driver that `ring3 bench kill` kills, with the lease that is standard input. It goes on
    /// with what the last one has left beside the journal.
    Killed { journal: PathBuf, life: u32, read_only: bool },
    /// Is a driver to which these faults happen.
    Faulty(life::Orders),
    /// Is a driver of ring3d's, to which happens what lies in the file `orders`.
    Kept { orders: PathBuf },
    /// Puts `batch` reads or packets at a time through the driver `subject`: what runs under
    /// callgrind.
    Drive { subject: String, batch: u16 },
    /// Looks at a device for a test of hardware.
    Look(Look),
}

/// Options of `ring3 job`.
#[derive(clap::Args)]
pub struct Args {
    /// The job.
    #[arg(value_name = "JSON", value_parser = parse)]
    job: Job,
}

fn parse(text: &str) -> Result<Job, serde_json::Error> {
    serde_json::from_str(text)
}

impl Job {
    /// This program's arguments for it.
    pub fn words(&self) -> Result<[String; 2]> {
        let json = serde_json::to_string(self).context("writing a job")?;
        Ok([COMMAND.into(), json])
    }

    /// The command of a guest's shell, which puts the values of its variables in: `$CARD`. Of all
    /// else that a shell would do with a `$`, it does nothing.
    pub fn command(&self) -> Result<String> {
        let [command, json] = self.words()?;
        let mut quoted = String::new();
        for (at, letter) in json.char_indices() {
            let next = json[at + letter.len_utf8()..].chars().next();
            let is_variable =
                letter == '$' && next.is_some_and(|next| next.is_ascii_alphabetic() || next == '_');
            if matches!(letter, '"' | '\\' | '`' | '$') && !is_variable {
                quoted.push('\\');
            }
            quoted.push(letter);
        }
        Ok(format!("ring3 {command} \"{quoted}\""))
    }
}

/// Does it.
pub fn run(args: Args) -> Result<ExitCode> {
    let done = match args.job {
        Job::Disk(turns) => turns.run(),
        Job::UdpEcho(task) => bench::udp_echo::here(&task),
        Job::Tcp(task) => bench::tcp::here(&task),
        Job::Ping(task) => bench::ping::here(&task),
        Job::Loopback(task) => bench::loopback::here(&task),
        Job::IrqDelay { runs, task } => bench::irq_delay::here(runs, &task),
        Job::Hosted { samples, task } => bench::dde::here(samples, &task),
        Job::Outage(task) => bench::outage::here(&task),
        Job::GuestFaults { plan } => faults::in_guest(&plan),
        Job::Null { name, engine } => cards::null::run(&name, engine),
        Job::Killed { journal, life, read_only } => bench::kill::live(&journal, life, read_only),
        Job::Faulty(orders) => life::live(orders),
        Job::Kept { orders } => {
            // SAFETY: descriptor 3 is what a keeper has started this process with; the log and the
            // panic hook open nothing, and this is the only call.
            let control = unsafe { ring3_host::drive::inherited() }?;
            life::live_kept(control, &orders)
        }
        Job::Look(task) => look::here(&task),
        Job::Drive { subject, batch } => bench::instructions::drive_one(&subject, batch),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_job_passes_a_shell_which_puts_its_variables_in_and_takes_nothing_else() {
        let odd = r#"a "b" \c `d` 'e' $DEVICE $(f) ${DEVICE} $$ $1"#;
        let job = Job::Drive { subject: odd.into(), batch: 8 };
        let command = job.command().unwrap().replacen("ring3 job", "printf %s", 1);
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &command]).env("DEVICE", "0000:01:00.0").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let Job::Drive { subject, batch } = parse(&text).unwrap() else { panic!("{text}") };
        assert_eq!((subject, batch), (odd.replace("$DEVICE", "0000:01:00.0"), 8));
    }

    #[test]
    fn a_job_that_nobody_knows_is_refused() {
        assert!(parse(r#"{"juggle": {}}"#).is_err() && parse("disk").is_err());
    }
}
