//! `ring3 ublk list|delete`: the kernel's ublk devices, ring3's and others'.

use std::fmt::Display;
use std::process::ExitCode;

use ring3_bench::table::Table;
use ring3_export::ublk::identities::{self, Identity, State};
use serde_json::{Value, json};

/// What `ring3 ublk` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List all ublk devices: their owners, servers and orphans.
    List {
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Delete orphans of dead ring3 processes, or the given devices.
    ///
    /// Never deletes a device that a process serves.
    Delete {
        /// Numbers of devices, N in /dev/ublkcN. Default: all orphans of ring3.
        #[arg(value_name = "N")]
        ids: Vec<u32>,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Lists or deletes.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let text = match command {
        Command::List { json: true } => serde_json::to_string_pretty(
            &identities::list()?.iter().map(object).collect::<Vec<_>>(),
        )?,
        Command::List { json: false } => table(&identities::list()?),
        Command::Delete { ids, json } => {
            let deleted = identities::delete(&ids)?;
            match json {
                true => json!({ "deleted": deleted }).to_string(),
                false => said("/dev/ublkc", &deleted, "ring3 has left no device behind"),
            }
        }
    };
    outln!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// What was deleted, of devices called `folder` and their name, or why nothing was.
pub fn said(folder: &str, deleted: &[impl Display], why: &str) -> String {
    if deleted.is_empty() {
        return format!("nothing to delete: {why}");
    }
    let lines: Vec<_> = deleted.iter().map(|name| format!("deleted {folder}{name}")).collect();
    lines.join("\n")
}

/// Who made a device, and the process that serves it.
pub fn owner(ring3: bool, pid: Option<impl Display>) -> [String; 2] {
    let maker = if ring3 { "ring3" } else { "others" };
    [maker.into(), pid.map_or_else(|| "-".into(), |pid| pid.to_string())]
}

fn word(state: State) -> &'static str {
    match state {
        State::Served => "served",
        State::Held => "held",
        State::Orphan => "orphan",
        State::Idle => "idle",
        State::Recovering => "recovering",
    }
}

fn object(device: &Identity) -> Value {
    json!({
        "id": device.id, "state": word(device.state), "ring3": device.ring3, "pid": device.pid,
        "queues": device.queues,
        "depth": device.depth,
    })
}

fn table(devices: &[Identity]) -> String {
    if devices.is_empty() {
        return "there is no ublk device".into();
    }
    let mut table = Table::new("ID", ["STATE", "MADE BY", "PROCESS", "QUEUES"]).left(&[1, 2, 4]);
    for device in devices {
        let [maker, pid] = owner(device.ring3, device.pid);
        let queues = format!("{} of {}", device.queues, device.depth);
        table.line(device.id, [word(device.state), &maker, &pid, &queues]);
    }
    let mut text = table.text();
    if devices.iter().any(|device| device.state == State::Orphan) {
        text +=
            "\norphans do nothing; ring3 ublk delete, or the next start of a disk, deletes them\n";
    }
    text.trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(state: State, ring3: bool, pid: Option<i32>) -> Identity {
        Identity { id: 7, state, ring3, pid, queues: 2, depth: 64 }
    }

    #[test]
    fn an_orphan_is_listed_with_what_removes_it() {
        let text = table(&[device(State::Orphan, true, None)]);
        assert!(text.contains("7   orphan  ring3          -  2 of 64"), "{text}");
        assert!(text.contains("ring3 ublk delete"), "{text}");
    }

    #[test]
    fn a_served_device_is_listed_with_its_process() {
        assert_eq!(object(&device(State::Served, false, Some(812)))["pid"], 812);
        assert!(!table(&[device(State::Served, false, Some(812))]).contains("delete"));
    }
}
