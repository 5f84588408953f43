//! The devices that a user wants to be supervised, as TOML.
//!
//! A manifest is a file, or a folder of files called `*.toml`. What nobody knows in it is an error: a word that is passed over would be a limit that nobody keeps.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ring3_device::Uri;
use ring3_pci::Address;
use serde::Deserialize;

use crate::policy::Terms;
use crate::scrape::Endpoint;

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("reading {path}: {source}; name another file or folder with --config", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It says what makes no sense.
    #[error("{path}: {reason}", path = path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// What, and what to do.
        reason: String,
    },
    /// It asks for nothing.
    #[error("{path} names no device: write [device.NAME] with match = {{ address = \"0000:01:00.0\" }} (ring3 devices lists addresses)", path = path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
}

/// A device that is to be supervised.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What its user calls it.
    #[serde(skip)]
    pub name: String,
    /// Which one it is.
    pub r#match: Match,
    /// The family of drivers; the one for the device's class if `None`.
    pub driver: Option<String>,
    /// The one namespace or drive that is wanted; all if `None`.
    pub part: Option<u32>,
    /// It may be taken from the kernel's driver.
    #[serde(default)]
    pub bind: bool,
    /// How it signals.
    #[serde(default = "auto")]
    pub interrupts: String,
    /// What its disks become.
    #[serde(default)]
    pub export: Export,
    /// When its driver is started again.
    #[serde(default)]
    pub restart: Restart,
    /// What its driver may use up.
    #[serde(default)]
    pub limits: Limits,
    /// Whose its driver is; of one who owns nothing if `None`.
    pub user: Option<User>,
}

/// A user of this machine, with his group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct User {
    /// His number.
    pub user: u32,
    /// His group's.
    pub group: u32,
}

impl FromStr for User {
    type Err = String;

    /// By name or number. Root is none who could drive a device: he would need no sandbox.
    fn from_str(word: &str) -> Result<Self, String> {
        let failed = |error| format!("user {word:?} cannot be looked up: {error}");
        let found = match word.parse() {
            Ok(number) => nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(number)),
            Err(_) => nix::unistd::User::from_name(word),
        };
        let found = found.map_err(failed)?.ok_or_else(|| format!("there is no user {word:?}: adduser --system {word}"))?;
        let (user, group) = (found.uid.as_raw(), found.gid.as_raw());
        if user == 0 || group == 0 {
            return Err(format!("{word:?} is root, or of root's group, and a driver is not: name another user"));
        }
        Ok(Self { user, group })
    }
}

impl TryFrom<String> for User {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        word.parse()
    }
}

fn auto() -> String {
    "auto".into()
}

/// By what a device is known.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Match {
    /// Where it sits.
    Address(String),
    /// A disk of it has this serial number.
    Serial(String),
    /// `nvme`, `ahci`, `ide`, `ethernet`, or a class code such as `0x010802`: the first that no other device is.
    Class(String),
    /// A name of a backend, such as `vfio-user:/path`.
    Device(String),
}

/// What is made of what a device offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Of each disk a block device.
    #[default]
    Ublk,
    /// Of a network card an interface.
    Tap,
}

impl Kind {
    /// What must be offered for it.
    pub fn what(self) -> &'static str {
        match self {
            Self::Ublk => "disks",
            Self::Tap => "network cards",
        }
    }
}

/// What a device's disks or its network card become.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Export {
    /// `ublk` or `tap`.
    pub kind: Kind,
    /// N in `/dev/ublkbN` of the first disk; the kernel chooses if `None`.
    pub id: Option<u32>,
    /// Queues of each disk.
    pub queues: u16,
    /// Requests of each queue.
    pub depth: u16,
    /// Most KiB of a request.
    pub max_io_kib: u32,
    /// Microseconds for which a queue polls before it sleeps.
    pub poll_us: u64,
    /// The name under `/dev/ring3`; the device's if `None`.
    pub link: Option<String>,
    /// The name of a card's interface; the device's if `None`.
    pub interface: Option<String>,
    /// Who may use the interface beside root.
    pub owner: Option<User>,
    /// Most bytes of the interface's packets without their Ethernet header; what is usual if `None`.
    pub mtu: Option<u32>,
}

impl Default for Export {
    fn default() -> Self {
        let (kind, id, link, interface, owner, mtu) = (Kind::Ublk, None, None, None, None, None);
        Self { kind, id, queues: 1, depth: 64, max_io_kib: 256, poll_us: 10, link, interface, owner, mtu }
    }
}

/// When a driver is started again, and when it is taken for dead.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// Deaths within the window that are followed by another start.
    pub burst: u32,
    /// Seconds for which a death counts.
    pub window_s: u64,
    /// Milliseconds before the third start in a row that fails; doubled with each further one.
    pub backoff_ms: u64,
    /// Most milliseconds between two starts.
    pub backoff_max_ms: u64,
    /// Seconds for which I/O waits for a driver.
    pub deadline_s: u64,
    /// Milliseconds after which a thread that works and does not beat is taken for dead.
    pub heartbeat_ms: u64,
    /// The same of one that looks after its device, which may be a reset.
    pub recovery_ms: u64,
    /// From a driver that was killed the next one adopts the device, without a reset, if its driver can do that.
    pub adopt: bool,
    /// The kernel's RCU is expedited as long as the disks have users, on all processors: shorter outages for a noisier machine.
    pub expedited_rcu: bool,
}

impl Default for Restart {
    fn default() -> Self {
        let (heartbeat_ms, recovery_ms) = (5000, 120_000);
        let (burst, window_s, backoff_ms, backoff_max_ms, deadline_s) = (5, 60, 100, 10_000, 60);
        Self {
            burst,
            window_s,
            backoff_ms,
            backoff_max_ms,
            deadline_s,
            heartbeat_ms,
            recovery_ms,
            adopt: false,
            expedited_rcu: false,
        }
    }
}

impl Restart {
    /// The same as the policy has it.
    pub fn terms(&self) -> Terms {
        Terms {
            burst: self.burst,
            window: Duration::from_secs(self.window_s),
            pause: Duration::from_millis(self.backoff_ms),
            longest_pause: Duration::from_millis(self.backoff_max_ms),
            patience: Duration::from_secs(self.deadline_s),
            recovery: Duration::from_millis(self.recovery_ms),
        }
    }
}

/// What a driver may use up.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// MiB of memory.
    pub memory_mib: u64,
    /// Percent of one processor.
    pub cpu_percent: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Interrupts a second.
    pub irqs_per_s: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_mib: 256, cpu_percent: 200, pids: 64, irqs_per_s: 200_000 }
    }
}

/// Where Prometheus finds the metrics of all devices, if `path` says so: `[metrics] listen = "127.0.0.1:9123"`.
pub fn metrics(path: &Path) -> Result<Option<Endpoint>, Error> {
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
        let wrong = |reason: String| Error::Wrong { path: file.clone(), reason };
        if let Some(Metrics { listen }) = document(&text).map_err(wrong)?.metrics {
            return listen.parse().map(Some).map_err(|reason: String| wrong(format!("[metrics]: {reason}")));
        }
    }
    Ok(None)
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Read { path, source }
}

/// The files of a manifest, in their order.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).map_err(unreadable(path))?.flatten().map(|entry| entry.path());
        files = entries.filter(|file| file.extension().is_some_and(|extension| extension == "toml")).collect();
        files.sort();
    }
    Ok(files)
}

/// All devices of `path`, a file or a folder, by name.
pub fn read(path: &Path) -> Result<Vec<Device>, Error> {
    let mut devices: BTreeMap<String, (Device, PathBuf)> = BTreeMap::new();
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
        for device in parse(&text).map_err(|reason| Error::Wrong { path: file.clone(), reason })? {
            if let Some((_, other)) = devices.get(&device.name) {
                let reason = format!("[device.{}] is in {}, too: name one of them otherwise", device.name, other.display());
                return Err(Error::Wrong { path: file, reason });
            }
            devices.insert(device.name.clone(), (device, file.clone()));
        }
    }
    let devices: Vec<_> = devices.into_values().map(|(device, _)| device).collect();
    twice(&devices).map_or(Ok(()), |reason| Err(Error::Wrong { path: path.to_owned(), reason }))?;
    if devices.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(devices)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: BTreeMap<String, Device>,
    metrics: Option<Metrics>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metrics {
    listen: String,
}

fn document(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The devices of one document.
pub fn parse(text: &str) -> Result<Vec<Device>, String> {
    let file = document(text)?;
    let named = |(name, device)| {
        let device = Device { name, ..device };
        device.check().map_err(|reason| format!("[device.{}]: {reason}", device.name)).map(|()| device)
    };
    file.device.into_iter().map(named).collect()
}

/// Why two devices cannot be had at the same time.
fn twice(devices: &[Device]) -> Option<String> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for device in devices {
        let matched = (!matches!(device.r#match, Match::Class(_))).then(|| format!("{:?}", device.r#match));
        let name = match device.export.kind {
            Kind::Ublk => format!("the link {}", device.link()),
            Kind::Tap => format!("the interface {}", device.interface()),
        };
        let keys = [matched, Some(name), device.export.id.map(|id| format!("id = {id}"))];
        for key in keys.into_iter().flatten() {
            if let Some(other) = seen.insert(key.clone(), &device.name) {
                return Some(format!("[device.{}] and [device.{other}] are the same or want the same: {key}", device.name));
            }
        }
    }
    None
}

impl Device {
    /// The name of its first disk under `/dev/ring3`.
    pub fn link(&self) -> &str {
        self.export.link.as_deref().unwrap_or(&self.name)
    }

    /// The name of its card's interface.
    pub fn interface(&self) -> &str {
        self.export.interface.as_deref().unwrap_or(&self.name)
    }

    /// Most bytes of a request.
    pub fn max_bytes(&self) -> u32 {
        self.export.max_io_kib << 10
    }

    fn check(&self) -> Result<(), String> {
        let Export { queues, depth, max_io_kib, poll_us, id, .. } = &self.export;
        let range = |what: &str, fits: bool, wanted: &str| if fits { Ok(()) } else { Err(format!("{what} must be {wanted}")) };
        range("its name", is_name(&self.name), NAME)?;
        range("export.link", is_name(self.link()), NAME)?;
        self.check_kind()?;
        range("export.id", id.is_none_or(|id| id <= ring3_export::ublk::MAX_ID), "a number that the kernel has")?;
        range("export.queues", (1..=128).contains(queues), "1 to 128")?;
        range("export.depth", (1..=4096).contains(depth), "1 to 4096")?;
        range("export.max_io_kib", (4..=32768).contains(max_io_kib), "4 to 32768")?;
        range("export.poll_us", *poll_us <= 1000, "0 to 1000")?;
        range("restart.window_s", (1..=86_400).contains(&self.restart.window_s), "1 to 86400")?;
        range("restart.deadline_s", (1..=86_400).contains(&self.restart.deadline_s), "1 to 86400")?;
        range("restart.backoff_ms", (1..=3_600_000).contains(&self.restart.backoff_ms), "1 to 3600000")?;
        range("restart.backoff_max_ms", (1..=3_600_000).contains(&self.restart.backoff_max_ms), "1 to 3600000")?;
        range("restart.heartbeat_ms", (1000..=3_600_000).contains(&self.restart.heartbeat_ms), "1000 to 3600000")?;
        range("restart.recovery_ms", (1000..=3_600_000).contains(&self.restart.recovery_ms), "1000 to 3600000")?;
        range("limits.memory_mib", (16..=1 << 20).contains(&self.limits.memory_mib), "16 to 1048576")?;
        range("limits.cpu_percent", (1..=100_000).contains(&self.limits.cpu_percent), "1 to 100000")?;
        range("limits.pids", (8..=4096).contains(&self.limits.pids), "8 to 4096")?;
        range("limits.irqs_per_s", self.limits.irqs_per_s >= 100, "at least 100")?;
        let interrupts = ["auto", "msix", "msi", "intx", "poll"];
        range("interrupts", interrupts.contains(&&*self.interrupts), "auto, msix, msi, intx or poll")?;
        match &self.r#match {
            Match::Address(address) => address.parse::<Address>().map(drop).map_err(|error| error.to_string()),
            Match::Device(uri) => uri.parse::<Uri>().map(drop).map_err(|error| error.to_string()),
            Match::Class(class) => class_code(class).map(drop).ok_or_else(|| {
                format!("match.class = {class:?}: write nvme, ahci, ide, ethernet, or a class code such as 0x010802")
            }),
            Match::Serial(serial) => range("match.serial", !serial.trim().is_empty(), "the serial number of a disk"),
        }
    }
}

impl Device {
    /// Whether it says nothing that is the other kind's.
    fn check_kind(&self) -> Result<(), String> {
        let Export { kind, id, link, interface, owner, mtu, .. } = &self.export;
        let given = match kind {
            Kind::Ublk => [("interface", interface.is_some()), ("owner", owner.is_some()), ("mtu", mtu.is_some())],
            Kind::Tap => [("id", id.is_some()), ("link", link.is_some()), ("link", false)],
        };
        let (mine, other) = if *kind == Kind::Ublk { ("\"ublk\"", "\"tap\"") } else { ("\"tap\"", "\"ublk\"") };
        if let Some((word, _)) = given.iter().find(|(_, given)| *given) {
            return Err(format!("export.{word} is of kind = {other}, and this is {mine}: leave it out"));
        }
        if *kind == Kind::Ublk {
            return Ok(());
        }
        if !ring3_export::tap::is_name(self.interface()) {
            return Err(format!(
                "{:?} is no name of an interface: write export.interface = \"...\", 1 to 15 bytes without '/', ':' and blanks",
                self.interface()
            ));
        }
        match &self.r#match {
            Match::Serial(_) => Err("match.serial is a disk's: match a network card by address or device".into()),
            _ => Ok(()),
        }
    }
}

const NAME: &str = "1 to 64 letters, digits, `-`, `_` or `.`, and not begin with a dot";

fn is_name(text: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(known)
}

/// A class code with the bits of it that count.
pub(crate) fn class_code(word: &str) -> Option<(u32, u32)> {
    match word {
        "nvme" => Some((0x01_08_02, 0xff_ff_ff)),
        "ahci" => Some((0x01_06_01, 0xff_ff_ff)),
        // The interface says in which modes its channels are.
        "ide" => Some((0x01_01_00, 0xff_ff_00)),
        "ethernet" => Some((0x02_00_00, 0xff_ff_00)),
        code => u32::from_str_radix(code.strip_prefix("0x")?, 16)
            .ok()
            .filter(|&code| code <= 0xff_ff_ff)
            .map(|code| (code, 0xff_ff_ff)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRATCH: &str = r#"
        [device.scratch]
        match = { address = "0000:01:00.0" }
        driver = "nvme"
        bind = true
        [device.scratch.export]
        kind = "ublk"
        id = 0
        queues = 2
        [device.scratch.restart]
        burst = 9
        deadline_s = 30
    "#;

    #[test]
    fn what_is_not_said_has_a_default() {
        let devices = parse(SCRATCH).unwrap();
        let [device] = &devices[..] else { panic!("{devices:?}") };
        assert_eq!((&*device.name, device.link(), device.bind, device.export.queues), ("scratch", "scratch", true, 2));
        assert_eq!((device.export.depth, device.max_bytes(), device.limits.pids), (64, 256 << 10, 64));
        assert_eq!((device.restart.burst, device.restart.terms().patience), (9, Duration::from_secs(30)));
    }

    #[test]
    fn a_word_that_nobody_knows_is_an_error_that_names_it_and_the_place() {
        for (from, to, named) in [
            ("burst", "bursts", "bursts"),
            ("bind", "bound", "bound"),
            ("device.scratch", "devices.scratch", "devices"),
            ("address", "adress", "adress"),
        ] {
            let error = parse(&SCRATCH.replace(from, to)).unwrap_err();
            assert!(error.contains(named) && error.contains("line"), "{error}");
        }
    }

    #[test]
    fn a_value_that_makes_no_sense_is_an_error_that_says_what_would() {
        for (from, to, wanted) in [
            ("queues = 2", "queues = 0", "1 to 128"),
            ("0000:01:00.0", "01:00", "0000:01:00.0"),
            ("kind = \"ublk\"", "kind = \"nbd\"", "`ublk` or `tap`"),
            ("id = 0", "mtu = 1500", "export.mtu is of kind"),
            ("deadline_s = 30", "deadline_s = 0", "1 to 86400"),
            ("device.scratch", "device.\"../etc\"", "letters"),
            ("address = \"0000:01:00.0\"", "class = \"toaster\"", "nvme"),
        ] {
            let error = parse(&SCRATCH.replace(from, to)).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_card_becomes_an_interface_of_its_name_or_of_another() {
        const CARD: &str = "[device.net0]\nmatch = { address = \"0000:01:00.0\" }\n[device.net0.export]\nkind = \"tap\"\n";
        let device = |more: &str| parse(&format!("{CARD}{more}")).map(|devices| devices[0].clone());
        let plain = device("").unwrap();
        assert_eq!((plain.export.kind, plain.interface()), (Kind::Tap, "net0"));
        let named = device("interface = \"lan\"\nmtu = 9000\nowner = \"nobody\"").unwrap();
        assert_eq!(
            (named.interface(), named.export.mtu, named.export.owner.map(|user| user.user)),
            ("lan", Some(9000), Some(65534))
        );
        for (more, wanted) in [
            ("id = 1", "export.id is of kind"),
            ("link = \"x\"", "export.link is of kind"),
            ("interface = \"sixteen-letters-\"", "no name of an interface"),
            ("interface = \"a/b\"", "no name of an interface"),
        ] {
            assert!(device(more).unwrap_err().contains(wanted), "{more}");
        }
        let serial = CARD.replace("address = \"0000:01:00.0\"", "serial = \"7\"");
        assert!(parse(&serial).unwrap_err().contains("match.serial"));
    }

    #[test]
    fn a_device_that_is_matched_by_two_things_or_by_none_is_an_error() {
        let two = SCRATCH.replace("\"0000:01:00.0\"", "\"0000:01:00.0\", serial = \"7\"");
        assert!(parse(&two).is_err());
        assert!(parse(&SCRATCH.replace("match = { address = \"0000:01:00.0\" }", "")).is_err());
    }

    #[test]
    fn a_name_an_id_or_a_device_that_is_there_twice_is_an_error_that_names_both() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.toml"), SCRATCH).unwrap();
        fs::write(folder.path().join("b.toml"), SCRATCH).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("scratch") && error.contains("a.toml") && error.contains("b.toml"), "{error}");
        for (address, id) in [("01", "1"), ("02", "0")] {
            let other = SCRATCH.replace("scratch", "other").replace("0000:01", &format!("0000:{address}"));
            fs::write(folder.path().join("b.toml"), other.replace("id = 0", &format!("id = {id}"))).unwrap();
            let error = read(folder.path()).unwrap_err().to_string();
            assert!(error.contains("scratch") && error.contains("other"), "{error}");
        }
    }

    #[test]
    fn a_driver_is_of_a_user_who_is_there_and_not_roots() {
        let with = |user: &str| {
            parse(&format!("[device.a]\nmatch = {{ class = \"nvme\" }}\nuser = \"{user}\"")).map(|devices| devices[0].user)
        };
        assert_eq!(with("nobody"), Ok(Some(User { user: 65534, group: 65534 })));
        assert_eq!(with("65534"), with("nobody"));
        for (user, why) in [("root", "is root"), ("0", "is root"), ("nobody-at-all", "there is no user")] {
            assert!(with(user).unwrap_err().contains(why), "{user}");
        }
    }

    #[test]
    fn a_folder_has_several_files_and_an_empty_one_says_what_to_write() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("[device.NAME]"));
        fs::write(folder.path().join("a.toml"), SCRATCH).unwrap();
        let other = SCRATCH.replace("scratch", "other").replace("01:00", "02:00").replace("id = 0", "id = 1");
        fs::write(folder.path().join("b.toml"), other).unwrap();
        fs::write(folder.path().join("note.txt"), "no TOML").unwrap();
        let names: Vec<_> = read(folder.path()).unwrap().into_iter().map(|device| device.name).collect();
        assert_eq!(names, ["other", "scratch"]);
        let error = read(&folder.path().join("none.toml")).unwrap_err().to_string();
        assert!(error.contains("none.toml") && error.contains("--config"), "{error}");
    }
}
