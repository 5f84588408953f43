//! What users say to ring3d: `ring3 status`, `logs`, `restart`, `stop`, `upgrade`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use ring3_bench::table::Table;
use ring3_control::admin::{Command, Reply, SOCKET};
use ring3_control::status::{DeviceStatus, InterfaceStatus, Outage, State};

use crate::admin::Client;

/// Where the supervisor is.
#[derive(clap::Args)]
struct Socket {
    /// Where ring3d listens.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

/// Options of `ring3 status`.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// The device, with all that is known of it; all devices, a line each, if it is not given.
    name: Option<String>,
    /// Print a list of JSON objects: docs/json.md.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 logs`.
#[derive(clap::Args)]
pub struct LogsArgs {
    /// The device.
    name: String,
    /// So many lines at most, the last ones.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 restart`.
#[derive(clap::Args)]
pub struct RestartArgs {
    /// The device.
    name: String,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 stop`.
#[derive(clap::Args)]
pub struct StopArgs {
    /// The device.
    name: String,
    /// Take its disks away from their users, who see errors.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 upgrade`.
#[derive(clap::Args)]
pub struct UpgradeArgs {
    /// The device.
    name: String,
    /// The new program of its driver; what lies at the old one's path now, if it is not given.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 reload`.
#[derive(clap::Args)]
pub struct ReloadArgs {
    #[command(flatten)]
    socket: Socket,
}

fn ask(socket: &Socket, command: &Command) -> Result<Reply> {
    match Client::connect(&socket.socket)?.ask(command)? {
        Reply::Refused(why) => bail!("{why}"),
        reply => Ok(reply),
    }
}

/// How devices are.
pub fn status(args: StatusArgs) -> Result<ExitCode> {
    let Reply::Status(mut devices) = ask(&args.socket, &Command::Status)? else {
        bail!("ring3d did not say how its devices are")
    };
    if let Some(name) = &args.name {
        let known: Vec<_> = devices.iter().map(|device| device.name.clone()).collect();
        devices.retain(|device| device.name == *name);
        if devices.is_empty() {
            bail!("there is no device {name}; there are: {}", known.join(", "));
        }
    }
    match (&args.name, args.json) {
        (_, true) => outln!("{}", serde_json::to_string_pretty(&devices)?),
        (Some(_), false) => devices.iter().for_each(describe),
        (None, false) => {
            let heads = ["STATE", "FOR", "PID", "RESTARTS", "UPGRADES", "DEVICE", "GIVES"];
            let mut table = Table::new("NAME", heads).left(&[1, 6, 7]);
            devices.iter().for_each(|device| table.line(&device.name, cells(device)));
            crate::output::write(format_args!("{}", table.whole()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn word(state: State) -> &'static str {
    match state {
        State::Absent => "absent",
        State::Starting => "starting",
        State::Running => "running",
        State::Recovering => "recovering",
        State::BackingOff => "backing-off",
        State::Upgrading => "upgrading",
        State::Failed => "failed",
        State::Stopping => "stopping",
        State::Stopped => "stopped",
        State::Sleeping => "sleeping",
    }
}

fn cells(device: &DeviceStatus) -> [String; 7] {
    let disks = device.disks.iter().map(|disk| disk.link.as_deref().unwrap_or(&disk.path));
    let gives: Vec<_> =
        disks.chain(device.interfaces.iter().map(|interface| &*interface.name)).collect();
    let pid = if device.pid == 0 { "-".into() } else { device.pid.to_string() };
    [
        word(device.state).into(),
        age(device.since),
        pid,
        device.restarts.to_string(),
        device.upgrades.to_string(),
        device.device.clone(),
        gives.join(" "),
    ]
}

fn describe(device: &DeviceStatus) {
    let field = |name: &str, value: &str| outln!("{name:12} {value}");
    field("name", &device.name);
    field("state", &format!("{}, for {}", word(device.state), age(device.since)));
    field("device", if device.device.is_empty() { "-" } else { &device.device });
    field(
        "driver",
        &format!("{}, process {}, standby {}", device.driver, device.pid, device.standby),
    );
    field(
        "used",
        &format!("{} ms of a processor, {} KiB of memory", device.cpu_ms, device.memory >> 10),
    );
    field("restarts", &format!("{}, and {} upgrades", device.restarts, device.upgrades));
    field("faults", &format!("{} of the IOMMU", device.iommu_faults));
    device.unlimited.iter().for_each(|what| field("unlimited", what));
    device.last_end.iter().for_each(|end| field("last end", end));
    for disk in &device.disks {
        let name = disk.link.as_ref().map(|link| format!("{link} = ")).unwrap_or_default();
        field("disk", &format!("{name}{}, {} MiB", disk.path, disk.bytes >> 20));
        let (read, written) = (disk.bytes_read >> 20, disk.bytes_written >> 20);
        field(
            "",
            &format!(
                "{} reads ({read} MiB), {} writes ({written} MiB), {} in flight, {} errors",
                disk.reads, disk.writes, disk.in_flight, disk.errors
            ),
        );
        if !disk.partitions.is_empty() {
            field("", &format!("partitions {}", disk.partitions.join(" ")));
        }
        disk.table
            .iter()
            .for_each(|why| field("", &format!("its partition table is not used: {why}")));
    }
    for interface in &device.interfaces {
        let is = |so: bool, yes: &'static str, no: &'static str| if so { yes } else { no };
        let InterfaceStatus { name, mac, mtu, queues, up, carrier, .. } = interface;
        let (up, carrier) = (is(*up, "up", "down"), is(*carrier, "carrier", "no carrier"));
        field("interface", &format!("{name}, {mac}, MTU {mtu}, {queues} queues, {up}, {carrier}"));
        let (received, sent) = (interface.rx_bytes >> 20, interface.tx_bytes >> 20);
        field(
            "",
            &format!(
                "{} packets received ({received} MiB, {} without a place), {} sent ({sent} MiB, {} \
                in vain)",
                interface.rx_packets,
                interface.rx_dropped,
                interface.tx_packets,
                interface.tx_dropped
            ),
        );
        let InterfaceStatus { rx_missed, rx_errors, tx_lost, .. } = interface;
        field(
            "",
            &format!(
                "its card has missed {rx_missed}, received {rx_errors} damaged, and lost {tx_lost} \
                to be sent"
            ),
        );
    }
    device.outages.iter().for_each(|outage| field("outage", &tell(outage)));
}

fn tell(outage: &Outage) -> String {
    let total = outage.total_ms.map_or("users got errors".into(), |ms| format!("{ms:.1} ms"));
    let Outage { fence_ms, driver_ms, export_ms, cause, .. } = outage;
    let stopped = match outage {
        Outage { adopted: true, .. } => "adopted".into(),
        Outage { reset: true, .. } => format!("fence {fence_ms:.1} by a function reset"),
        _ => format!("fence {fence_ms:.1}"),
    };
    format!(
        "{} ago: {total} ({stopped}, driver {driver_ms:.1}, kernel {export_ms:.1}): {cause}",
        age(outage.at)
    )
}

/// How long ago a second since 1970 was.
fn age(at: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seconds = Duration::from_secs(now.saturating_sub(at)).as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// What was written about a device.
pub fn logs(args: LogsArgs) -> Result<ExitCode> {
    let command = Command::Logs { name: args.name, lines: args.lines };
    let Reply::Logs(lines) = ask(&args.socket, &command)? else {
        bail!("ring3d did not give the log")
    };
    lines.iter().for_each(|line| outln!("{line}"));
    Ok(ExitCode::SUCCESS)
}

/// Another process, or another try.
pub fn restart(args: RestartArgs) -> Result<ExitCode> {
    ask(&args.socket, &Command::Restart { name: args.name }).map(|_| ExitCode::SUCCESS)
}

/// Stops a device.
pub fn stop(args: StopArgs) -> Result<ExitCode> {
    ask(&args.socket, &Command::Stop { name: args.name, force: args.force })
        .map(|_| ExitCode::SUCCESS)
}

/// The manifests anew.
pub fn reload(args: ReloadArgs) -> Result<ExitCode> {
    if let Reply::Text(goes_on) = ask(&args.socket, &Command::Reload)? {
        outln!("{}", goes_on.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Another program.
pub fn upgrade(args: UpgradeArgs) -> Result<ExitCode> {
    let name = args.name.clone();
    match ask(&args.socket, &Command::Upgrade { name: args.name, program: args.program })? {
        Reply::Upgraded { stall_ms } => {
            outln!("{name} is driven by the new program; its users waited {stall_ms:.1} ms")
        }
        other => bail!("ring3d answered {other:?}"),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_a_unit_that_fits() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(
            [age(now - 119), age(now - 600), age(now - 8000), age(now - 200_000)],
            ["119 s", "10 min", "2 h", "2 days"]
        );
    }
}
