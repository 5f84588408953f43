//! `ring3 vduse list|delete`: the kernel's VDUSE devices, ring3's and others'.

use std::process::ExitCode;

use ring3_bench::table::Table;
use ring3_export::vduse::devices::{self, Identity, Kind, State};
use serde_json::json;

use crate::ublk::{owner, said};

/// What `ring3 vduse` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List all VDUSE devices: their owners, servers and orphans.
    List {
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Delete orphans of dead ring3 processes, or the given devices.
    ///
    /// Never deletes a device that a process serves.
    Delete {
        /// Names of devices, NAME in /dev/vduse/NAME. Default: all unused orphans of ring3.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
        /// Also delete a device that is in use. Its users see errors.
        #[arg(long)]
        force: bool,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

/// Lists or deletes.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    let text = match command {
        Command::List { json: true } => serde_json::to_string_pretty(&devices::list()?)?,
        Command::List { json: false } => table(&devices::list()?),
        Command::Delete { names, force, json } => {
            let deleted = devices::delete(&names, force)?;
            match json {
                true => json!({ "deleted": deleted }).to_string(),
                false => {
                    let why = "ring3 has left no device behind that nobody uses";
                    said("/dev/vduse/", &deleted, why)
                }
            }
        }
    };
    outln!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn table(devices: &[Identity]) -> String {
    if devices.is_empty() {
        return "there is no VDUSE device".into();
    }
    let heads = ["STATE", "MADE BY", "PROCESS", "KIND", "NODE"];
    let mut table = Table::new("NAME", heads).left(&[1, 2, 4, 5]);
    for device in devices {
        let state = match device.state {
            State::Served => "served",
            State::Orphan => "orphan",
            State::Idle => "idle",
        };
        let kind = match device.kind {
            Some(Kind::Disk) => "disk",
            Some(Kind::Card) => "card",
            None => "-",
        };
        let [maker, pid] = owner(device.ring3, device.pid);
        let node = device.node.as_deref().unwrap_or("-");
        table.line(&device.name, [state, &maker, &pid, kind, node]);
    }
    let mut text = table.text();
    if devices.iter().any(|device| device.state == State::Orphan) {
        text += "\nwho uses an orphan waits: ring3 run ... --export vduse --name NAME goes on with \
            it, ring3 vduse delete deletes it\n";
    }
    text.trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(state: State, pid: Option<u32>) -> Identity {
        Identity {
            name: "data".into(),
            state,
            ring3: true,
            pid,
            kind: Some(Kind::Disk),
            node: Some("vda".into()),
        }
    }

    #[test]
    fn an_orphan_is_listed_with_what_goes_on_with_it_and_what_removes_it() {
        let text = table(&[device(State::Orphan, None)]);
        assert!(text.contains("data  orphan  ring3          -  disk  vda"), "{text}");
        assert!(text.contains("--name NAME") && text.contains("ring3 vduse delete"), "{text}");
    }

    #[test]
    fn a_served_device_is_listed_with_its_process() {
        let served = device(State::Served, Some(812));
        let text = table(std::slice::from_ref(&served));
        assert!(text.contains("812") && !text.contains("delete"), "{text}");
        let object = serde_json::to_value(&served).unwrap();
        assert_eq!(
            (object["state"].as_str(), object["kind"].as_str(), object["pid"].as_u64()),
            (Some("served"), Some("disk"), Some(812))
        );
    }
}
