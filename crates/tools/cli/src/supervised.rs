//! What users say to ring3d: `ring3 status`, `logs`, `restart`, `stop`, `upgrade`.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use ring3_bench::table::Table;
use ring3_control::admin::{Command, Reply, SOCKET};
use ring3_control::status::{DeviceStatus, InterfaceStatus, Outage, State};
use serde_json::{Value, json};

use crate::admin::Client;
use crate::sizes::human;

/// Where the supervisor is.
#[derive(clap::Args)]
struct Socket {
    /// The socket of ring3d.
    #[arg(long, default_value = SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

/// Options of `ring3 status`.
#[derive(clap::Args)]
pub struct StatusArgs {
    /// The device, of which everything is shown. Default: all devices, one line each.
    name: Option<String>,
    /// Print a list of JSON objects (docs/json.md); with --watch, one line each time.
    #[arg(long)]
    json: bool,
    /// Show it again every so many seconds, from 0.1 to 3600, until Ctrl-C; every 2 s without a
    /// value.
    #[arg(
        long, value_name = "SECONDS", value_parser = crate::top::seconds,
        num_args = 0..=1, require_equals = true, default_missing_value = "2",
    )]
    watch: Option<Duration>,
    #[command(flatten)]
    socket: Socket,
}

/// Options of `ring3 logs`.
#[derive(clap::Args)]
pub struct LogsArgs {
    /// The device.
    name: String,
    /// Print at most this many lines, the newest ones.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
    /// Go on with each new line, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON object for each line: time, from, text.
    #[arg(long)]
    json: bool,
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
    /// Stop the device even if its disks are in use. Their users see errors.
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
    /// The new program of the driver. Default: the file that is now at the old program's path.
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

/// Prints the state of devices, with `--watch` again and again.
pub fn status(args: StatusArgs) -> Result<ExitCode> {
    let Some(every) = args.watch else {
        let text = status_text(&args, &devices(&args)?)?;
        crate::output::write(format_args!("{text}"));
        return Ok(ExitCode::SUCCESS);
    };
    loop {
        let text = status_text(&args, &devices(&args)?)?;
        if !args.json {
            crate::output::clear();
        }
        crate::output::write(format_args!("{text}"));
        if !crate::output::flush() {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(every);
    }
}

/// The devices that are shown.
fn devices(args: &StatusArgs) -> Result<Vec<DeviceStatus>> {
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
    Ok(devices)
}

fn status_text(args: &StatusArgs, devices: &[DeviceStatus]) -> Result<String> {
    Ok(match (&args.name, args.json) {
        (_, true) if args.watch.is_some() => serde_json::to_string(devices)? + "\n",
        (_, true) => serde_json::to_string_pretty(devices)? + "\n",
        (Some(_), false) => devices.iter().map(describe).collect(),
        (None, false) => {
            let heads = ["STATE", "FOR", "PID", "RESTARTS", "UPGRADES", "DEVICE", "GIVES"];
            let mut table = Table::new("NAME", heads).left(&[1, 6, 7]);
            devices.iter().for_each(|device| table.line(&device.name, cells(device)));
            table.whole()
        }
    })
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

fn describe(device: &DeviceStatus) -> String {
    let text = RefCell::new(String::new());
    let field = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text.borrow_mut(), "{name:12} {value}");
    };
    field("name", &device.name);
    field("state", &format!("{}, for {}", word(device.state), age(device.since)));
    field("device", if device.device.is_empty() { "-" } else { &device.device });
    field(
        "driver",
        &format!("{}, process {}, standby {}", device.driver, device.pid, device.standby),
    );
    field(
        "used",
        &format!("{} ms of a processor, {} of memory", device.cpu_ms, human(device.memory)),
    );
    field("restarts", &format!("{}, and {} upgrades", device.restarts, device.upgrades));
    field("faults", &format!("{} of the IOMMU", device.iommu_faults));
    device.unlimited.iter().for_each(|what| field("unlimited", what));
    device.last_end.iter().for_each(|end| field("last end", end));
    for disk in &device.disks {
        let name = disk.link.as_ref().map(|link| format!("{link} = ")).unwrap_or_default();
        field("disk", &format!("{name}{}, {}", disk.path, human(disk.bytes)));
        let (read, written) = (human(disk.bytes_read), human(disk.bytes_written));
        field(
            "",
            &format!(
                "{} reads ({read}), {} writes ({written}), {} in flight, {} errors",
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
        let (received, sent) = (human(interface.rx_bytes), human(interface.tx_bytes));
        field(
            "",
            &format!(
                "{} packets received ({received}, {} dropped), {} sent ({sent}, {} dropped)",
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
                "the card missed {rx_missed} packets, received {rx_errors} damaged ones, and lost \
                {tx_lost} that were to be sent"
            ),
        );
    }
    device.outages.iter().for_each(|outage| field("outage", &tell(outage)));
    text.into_inner()
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

/// How often `ring3 logs --follow` asks for new lines.
const FOLLOW: Duration = Duration::from_millis(500);

/// Prints the log of a device, and with `--follow` goes on.
pub fn logs(args: LogsArgs) -> Result<ExitCode> {
    let print = |lines: &[String]| {
        lines.iter().for_each(|line| match args.json {
            true => outln!("{}", log_object(line)),
            false => outln!("{line}"),
        });
    };
    if !args.follow {
        print(&log(&args, args.lines)?);
        return Ok(ExitCode::SUCCESS);
    }
    // All lines each time: the last ones alone do not show how many are new.
    let mut known = log(&args, u32::MAX)?;
    print(&known[known.len().saturating_sub(args.lines as usize)..]);
    let mut answers = true;
    while crate::output::flush() {
        std::thread::sleep(FOLLOW);
        // A ring3d that is restarted or replaced answers again soon.
        match log(&args, u32::MAX) {
            Ok(lines) => {
                print(new_lines(&known, &lines));
                (known, answers) = (lines, true);
            }
            Err(error) if answers => {
                errln!("ring3: {error:#}; asking again until it answers");
                answers = false;
            }
            Err(_) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn log(args: &LogsArgs, lines: u32) -> Result<Vec<String>> {
    match ask(&args.socket, &Command::Logs { name: args.name.clone(), lines })? {
        Reply::Logs(lines) => Ok(lines),
        _ => bail!("ring3d did not give the log"),
    }
}

/// The lines of `now` that are not in `before`. A log loses lines at its beginning and gets lines
/// at its end. A log without a line of the one before is new as a whole.
fn new_lines<'a>(before: &[String], now: &'a [String]) -> &'a [String] {
    let kept = (0..before.len()).map(|lost| &before[lost..]).find(|kept| now.starts_with(kept));
    &now[kept.map_or(0, <[String]>::len)..]
}

/// A line `DAY TIME FROM: TEXT` as an object. A line of another form is all text.
fn log_object(line: &str) -> Value {
    let after_day = line.find(' ').map_or(0, |at| at + 1);
    let after_time = line[after_day..].find(' ').map(|at| after_day + at);
    let parts = after_time.and_then(|at| Some((&line[..at], line[at + 1..].split_once(": ")?)));
    match parts {
        Some((time, (from, text))) => json!({ "time": time, "from": from, "text": text }),
        None => json!({ "time": null, "from": null, "text": line }),
    }
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

    fn lines(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    #[test]
    fn a_log_that_is_followed_is_printed_once() {
        for (before, now, new) in [
            ("abc", "abc", ""),
            ("abc", "abcde", "de"),
            ("abc", "cde", "de"),
            ("abc", "xyz", "xyz"),
            ("", "a", "a"),
            ("aa", "aaa", "a"),
        ] {
            assert_eq!(new_lines(&lines(before), &lines(now)), lines(new), "{before} {now}");
        }
    }

    #[test]
    fn a_line_of_a_log_is_an_object_of_its_time_its_source_and_its_text() {
        assert_eq!(
            log_object("2026-11-29 10:00:00.000 ring3d: started: nvme"),
            json!({
                "time": "2026-11-29 10:00:00.000", "from": "ring3d", "text": "started: nvme",
            })
        );
        assert_eq!(log_object("odd")["text"], "odd");
    }

    #[test]
    fn ages_have_a_unit_that_fits() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(
            [age(now - 119), age(now - 600), age(now - 8000), age(now - 200_000)],
            ["119 s", "10 min", "2 h", "2 days"]
        );
    }
}
