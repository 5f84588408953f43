//! What a device's disks or its network card become.

use std::path::PathBuf;

use ring3_export::tap::Engine;
use ring3_export::ublk::Scheduler;
use serde::Deserialize;

use super::{Device, Match, NAME, User, is_name, range};
use crate::policy::RestartPolicy;

/// What is made of what a device offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Of each disk a block device.
    #[default]
    Ublk,
    /// Of a network card an interface.
    Tap,
    /// Clients share the one disk, by whoever has started the supervisor: no manifest says this.
    #[serde(skip)]
    SharedDisk,
    /// The same of a network card.
    #[serde(skip)]
    SharedCard,
}

impl Kind {
    /// Whether it is made of network cards.
    pub fn is_card(self) -> bool {
        matches!(self, Self::Tap | Self::SharedCard)
    }

    /// Whether clients have it in place of the kernel.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::SharedDisk | Self::SharedCard)
    }

    /// What must be offered for it.
    pub fn what(self) -> &'static str {
        match self {
            Self::Ublk | Self::SharedDisk => "disks",
            Self::Tap | Self::SharedCard => "network cards",
        }
    }
}

/// What a device's disks or its network card become.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportConfig {
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
    /// What moves the packets of a card; as the load is if `None`.
    pub engine: Option<Engine>,
    /// Most bytes of the interface's packets without their Ethernet header; what is usual if
    /// `None`.
    pub mtu: Option<u32>,
    /// Where clients may register memory in which their requests need no copy; nowhere if `None`.
    pub share: Option<Share>,
    /// The kernel's I/O scheduler in front of each disk.
    pub scheduler: Scheduler,
    /// Requests come and end by commands for many at once, where the kernel has them.
    pub batch: bool,
    /// Clients share the one disk beside the block device, by whoever has started the supervisor:
    /// no manifest says this.
    #[serde(skip)]
    pub beside: bool,
}

/// Where clients of a disk may register memory, and how much.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The socket.
    pub socket: PathBuf,
    /// Its file's rights, in octal.
    #[serde(default = "private")]
    pub mode: String,
    /// MiB that all clients together may register.
    pub memory_mib: u64,
}

fn private() -> String {
    "600".into()
}

impl Share {
    /// The rights of its file.
    pub fn rights(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok().filter(|mode| *mode <= 0o777)
    }

    /// Bytes that all clients together may register.
    pub fn bytes(&self) -> u64 {
        self.memory_mib << 20
    }

    fn check(&self) -> Result<(), String> {
        range("export.share.socket", self.socket.is_absolute(), "a path that begins with /")?;
        range("export.share.mode", self.rights().is_some(), "three octal digits, such as \"660\"")?;
        range("export.share.memory_mib", (1..=65_536).contains(&self.memory_mib), "1 to 65536")
    }
}

impl Default for ExportConfig {
    fn default() -> Self {
        let (kind, id, link, interface, owner, engine, mtu) =
            (Kind::Ublk, None, None, None, None, None, None);
        Self {
            kind,
            id,
            queues: 1,
            depth: 64,
            max_io_kib: 256,
            poll_us: 10,
            link,
            interface,
            owner,
            engine,
            mtu,
            share: None,
            scheduler: Scheduler::None,
            batch: false,
            beside: false,
        }
    }
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

    /// When its driver is started again.
    pub fn policy(&self) -> RestartPolicy {
        RestartPolicy { lent: self.export.share.is_some(), ..self.restart.policy() }
    }

    /// Bytes of clients' memory that its driver may reach.
    pub fn lent_bytes(&self) -> u64 {
        self.export.share.as_ref().map_or(0, Share::bytes)
    }

    /// Most bytes of a request.
    pub fn max_bytes(&self) -> u32 {
        self.export.max_io_kib << 10
    }

    /// What moves the packets of its card: nothing, of disks.
    pub fn engine(&self) -> Engine {
        match self.export.kind {
            Kind::Tap => self.export.engine.unwrap_or_default(),
            Kind::Ublk | Kind::SharedDisk | Kind::SharedCard => Engine::Tap,
        }
    }

    /// Whether its export makes sense, and says nothing that is another kind's.
    pub(super) fn check_export(&self) -> Result<(), String> {
        let ExportConfig {
            kind,
            id,
            queues,
            depth,
            max_io_kib,
            poll_us,
            link,
            interface,
            owner,
            engine,
            mtu,
            share,
            scheduler,
            batch,
            beside: _,
        } = &self.export;
        range("export.link", is_name(self.link()), NAME)?;
        range(
            "export.id",
            id.is_none_or(|id| id <= ring3_export::ublk::MAX_ID),
            "a number that the kernel has",
        )?;
        range("export.queues", (1..=128).contains(queues), "1 to 128")?;
        range("export.depth", (1..=4096).contains(depth), "1 to 4096")?;
        range("export.max_io_kib", (4..=32768).contains(max_io_kib), "4 to 32768")?;
        range("export.poll_us", *poll_us <= 1000, "0 to 1000")?;
        let given = match kind {
            Kind::Ublk => &[
                ("interface", interface.is_some()),
                ("owner", owner.is_some()),
                ("engine", engine.is_some()),
                ("mtu", mtu.is_some()),
            ][..],
            Kind::Tap => &[
                ("id", id.is_some()),
                ("link", link.is_some()),
                ("share", share.is_some()),
                ("scheduler", *scheduler != Scheduler::None),
                ("batch", *batch),
            ],
            Kind::SharedDisk | Kind::SharedCard => return Ok(()),
        };
        let (mine, other) =
            if *kind == Kind::Ublk { ("\"ublk\"", "\"tap\"") } else { ("\"tap\"", "\"ublk\"") };
        if let Some((word, _)) = given.iter().find(|(_, given)| *given) {
            return Err(format!(
                "export.{word} is of kind = {other}, and this is {mine}: leave it out"
            ));
        }
        if let Some(share) = share {
            range(
                "restart.adopt",
                !self.restart.adopt,
                "false with export.share: a driver of which nobody knows what it does must not \
                reach clients' memory",
            )?;
            return share.check();
        }
        if *kind == Kind::Ublk {
            return Ok(());
        }
        if !ring3_export::tap::is_name(self.interface()) {
            return Err(format!(
                "{:?} is no name of an interface: write export.interface = \"...\", 1 to 15 bytes \
                without '/', ':' and blanks",
                self.interface()
            ));
        }
        match &self.r#match {
            Match::Serial(_) => {
                Err("match.serial is a disk's: match a network card by address or device".into())
            }
            _ => Ok(()),
        }
    }
}
