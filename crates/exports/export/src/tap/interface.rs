//! The TAP itself: its descriptors, and what is set by them.
//!
//! # Rights
//! Making an interface needs CAP_NET_ADMIN. Whoever owns one that root has made attaches to it
//! without, and may set everything here: the kernel asks who has the descriptor.

use std::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use ring3_class::Deadline;
use ring3_class::net::{self, Info, Mac, Offloads};

use super::layout::cuts;
use super::netlink::{Netlink, index};
use super::{Error, ethtool, header};
use crate::vduse::Link;

/// Where the kernel makes them.
const PATH: &str = "/dev/net/tun";
/// The name of one that its user has not named: the kernel puts the first number into it that is
/// free.
pub const ANY: &str = "r3net%d";

/// How long the kernel may keep an interface for a process that was killed: its io_uring is taken
/// apart a moment later.
const FREED: Duration = Duration::from_secs(1);

/// How an interface is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Its name; the kernel chooses one if `None`.
    pub name: Option<String>,
    /// Queues, each with a descriptor of its own.
    pub queues: u16,
    /// The user who may attach to it later, beside root. Of use with `persist`.
    pub owner: Option<u32>,
    /// It stays when its last descriptor is closed.
    pub persist: bool,
}

/// An interface, as long as one of its descriptors is open, or for good.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    pub(super) files: Vec<File>,
    /// It is a virtio card, and no TAP: there are no files.
    pub(super) virtio: Option<Link>,
}

impl Interface {
    /// Makes it, or attaches to one of that name which nobody has.
    pub fn open(shape: &Shape) -> Result<Self, Error> {
        let wanted = shape.name.as_deref().unwrap_or(ANY);
        check_name(wanted)?;
        let (mut name, mut files) = (wanted.to_owned(), Vec::new());
        for _ in 0..shape.queues.max(1) {
            let file = attach(&mut name, shape.queues > 1)?;
            set(&file, libc::TUNSETVNETHDRSZ, &(header::BYTES as libc::c_int), "TUNSETVNETHDRSZ")?;
            files.push(file);
        }
        let index = index(&name).map_err(|error| Error::os(format!("{name}: its index"), error))?;
        let interface = Self { name, index, files, virtio: None };
        if let Some(owner) = shape.owner {
            interface.set_value(libc::TUNSETOWNER, owner.into(), "TUNSETOWNER")?;
        }
        if shape.persist {
            interface.set_value(libc::TUNSETPERSIST, 1, "TUNSETPERSIST")?;
        }
        Ok(interface)
    }

    /// One that another process holds, of which this one has been given descriptors.
    pub fn of(name: String, index: u32, queues: Vec<OwnedFd>) -> Self {
        Self { name, index, files: queues.into_iter().map(File::from).collect(), virtio: None }
    }

    /// One that is a virtio card.
    pub(crate) fn of_virtio(name: String, index: u32, link: Link) -> Self {
        Self { name, index, files: Vec::new(), virtio: Some(link) }
    }

    /// One that another process has held, with all its descriptors. [`Error::Deleted`] if it is
    /// gone.
    pub fn adopt(queues: Vec<OwnedFd>) -> Result<Self, Error> {
        let mut interface = Self::of("an interface".into(), 0, queues);
        interface.name = interface.present()?;
        // In another network namespace it has another number.
        interface.index = index(&interface.name).unwrap_or(0);
        Ok(interface)
    }

    /// What it is called now, wherever it is; [`Error::Deleted`] if somebody has deleted it. Of a
    /// virtio card, what it was called at first.
    pub fn present(&self) -> Result<String, Error> {
        if self.virtio.is_some() {
            return Ok(self.name.clone());
        }
        let Some(file) = self.files.first() else { return Err(Error::Deleted(self.name.clone())) };
        // SAFETY: all zeroes are an `ifreq`, see below.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: the operation writes one `ifreq`, which outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETIFF, &raw mut request) } < 0 {
            let error = io::Error::last_os_error();
            let gone = error.raw_os_error() == Some(libc::EBADFD);
            return Err(if gone {
                Error::Deleted(self.name.clone())
            } else {
                Error::os(format!("{}: TUNGETIFF", self.name), error)
            });
        }
        Ok(named(&request))
    }

    /// The network namespace in which it is.
    pub fn namespace(&self) -> Result<OwnedFd, Error> {
        // SAFETY: the operation takes no argument.
        let namespace = unsafe { libc::ioctl(self.files[0].as_raw_fd(), libc::TUNGETDEVNETNS) };
        if namespace < 0 {
            return Err(Error::os(
                format!("{}: TUNGETDEVNETNS", self.name),
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: the kernel has just opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(namespace) })
    }

    /// Gives it what the card is: address, MTU (its own if the card takes that), offloads. It has
    /// no link yet.
    pub fn set_up(&self, netlink: &Netlink, card: &Info, mtu: Option<u32>) -> Result<(), Error> {
        self.set_carrier(false)?;
        self.set_offloads(&card.offloads)?;
        self.set_address(card.mac)?;
        let failed = |what: &str, error| Error::os(format!("{}: {what}", self.name), error);
        let present = netlink
            .requested_settings(self.index)
            .map_err(|error| failed("asking the kernel for its state", error))?
            .mtu;
        let wanted = mtu.unwrap_or(present.clamp(card.mtu.0, card.mtu.1));
        if wanted != present {
            netlink
                .set_mtu(self.index, wanted)
                .map_err(|error| failed("setting its MTU (CAP_NET_ADMIN)", error))?;
        }
        if cuts(card)
            && card.max_segmented < u16::MAX.into()
            && let Err(error) = netlink.set_longest(self.index, card.max_segmented)
        {
            tracing::warn!(%error, "{}: longer packets than the card cuts are lost", self.name);
        }
        Ok(())
    }

    /// Fails if this process cannot make interfaces at all; makes none.
    pub fn check() -> Result<(), Error> {
        device().map(drop)
    }

    /// `eth0` and the like.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// By which the kernel names it.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Descriptors, one for each queue.
    pub fn queues(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd)
    }

    /// The descriptor of one queue.
    pub fn queue(&self, queue: usize) -> Option<BorrowedFd<'_>> {
        self.files.get(queue).map(AsFd::as_fd)
    }

    /// Whether there is somebody at the other end of the card's wire.
    pub fn set_carrier(&self, up: bool) -> Result<(), Error> {
        if let Some(link) = &self.virtio {
            return Ok(link.set_carrier(up)?);
        }
        set(&self.files[0], libc::TUNSETCARRIER, &libc::c_int::from(up), "TUNSETCARRIER")
    }

    /// What the interface says of its link's speed, to whoever asks, wherever it is. Nothing that
    /// is sent depends on it.
    pub fn set_speed(&self, link: &net::Link) {
        if let Err(error) = self.within(|name| ethtool::set_speed(name, link)) {
            tracing::debug!(%error, "{}: its speed is not told", self.name);
        }
    }

    /// What the kernel leaves to the card when it sends.
    pub fn set_offloads(&self, card: &Offloads) -> Result<(), Error> {
        let all = offloads(card);
        match self.set_value(libc::TUNSETOFFLOAD, all.into(), "TUNSETOFFLOAD") {
            // Before 6.2 nobody cuts UDP for a card.
            Err(_) if all & USO != 0 => {
                self.set_value(libc::TUNSETOFFLOAD, (all & !USO).into(), "TUNSETOFFLOAD")
            }
            done => done,
        }
    }

    /// Its Ethernet address. Nobody else needs to be told, and the interface may be up.
    pub fn set_address(&self, address: Mac) -> Result<(), Error> {
        // SAFETY: all zeroes are an `ifreq`: numbers, and a union of numbers, addresses and a
        // pointer that nobody follows.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let mut hardware = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        hardware
            .sa_data
            .iter_mut()
            .zip(address.0)
            .for_each(|(to, from)| *to = from as libc::c_char);
        request.ifr_ifru.ifru_hwaddr = hardware;
        set(&self.files[0], libc::SIOCSIFHWADDR, &request, "SIOCSIFHWADDR")
    }

    /// An ioctl whose argument is a number and no address.
    fn set_value(&self, operation: libc::Ioctl, value: c_ulong, what: &str) -> Result<(), Error> {
        // SAFETY: these operations take their argument as a number and touch no memory of ours.
        let result = unsafe { libc::ioctl(self.files[0].as_raw_fd(), operation, value) };
        if result < 0 {
            Err(Error::os(format!("{}: {what}", self.name), io::Error::last_os_error()))
        } else {
            Ok(())
        }
    }
}

/// Cutting UDP, over both versions of IP: kernels know both or none.
const USO: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// The words of a TAP for what a card does. Nothing is cut without checksums: they would have to be
/// right before.
fn offloads(card: &Offloads) -> libc::c_uint {
    let each = [(card.tso4, libc::TUN_F_TSO4), (card.tso6, libc::TUN_F_TSO6), (card.uso, USO)];
    let cut = each
        .into_iter()
        .filter(|(has, _)| *has)
        .fold(libc::TUN_F_CSUM, |all, (_, word)| all | word);
    if card.tx_checksum { cut } else { 0 }
}

/// Whether the kernel takes it for the name of an interface, or makes one of it.
pub fn is_name(name: &str) -> bool {
    (1..libc::IFNAMSIZ).contains(&name.len())
        && ![".", ".."].contains(&name)
        && !name.contains(|letter: char| {
            letter == '/' || letter == ':' || letter.is_whitespace() || letter.is_control()
        })
}

fn check_name(name: &str) -> Result<(), Error> {
    if is_name(name) { Ok(()) } else { Err(Error::Name(name.into())) }
}

/// A descriptor more of the interface `name`, which is made if it is not there; its name afterwards
/// is the kernel's word.
fn attach(name: &mut String, several: bool) -> Result<File, Error> {
    let file = device()?;
    rustix::io::ioctl_fionbio(&file, true).map_err(|error| Error::os(PATH, error))?;
    // SAFETY: all zeroes are an `ifreq`, see above.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let several_queues = if several { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP
        | libc::IFF_NO_PI
        | libc::IFF_VNET_HDR
        | several_queues
        | (offered(&file) & BACKPRESSURE);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let deadline = Deadline::after(FREED);
    // SAFETY: the operation reads and writes one `ifreq`, which outlives the call.
    while unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || deadline.expired() {
            return Err(refused(name, several, error));
        }
        std::thread::sleep(FREED / 100);
    }
    *name = named(&request);
    Ok(file)
}

fn named(request: &libc::ifreq) -> String {
    let bytes =
        request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|&byte| byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// The kernel stops the interface's queue while no packet fits into the descriptor's, in place of
/// losing it: what is sent waits in the queueing discipline. Kernels that do not have it lose the
/// packet. [linux/if_tun.h, IFF_BACKPRESSURE]
const BACKPRESSURE: libc::c_int = 0x80;

/// What of an interface the kernel offers; nothing if it does not say.
fn offered(file: &File) -> libc::c_int {
    let mut flags: libc::c_uint = 0;
    // SAFETY: the operation writes one number, which outlives the call.
    let told = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETFEATURES, &raw mut flags) };
    if told < 0 { 0 } else { flags as libc::c_int }
}

/// A descriptor that is no interface's yet.
fn device() -> Result<File, Error> {
    File::options().read(true).write(true).open(PATH).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Error::NoTap,
        Some(libc::EACCES | libc::EPERM) => Error::Closed,
        _ => Error::os(PATH, error),
    })
}

fn refused(name: &str, several: bool, error: io::Error) -> Error {
    let name = || if name == ANY { "the interface".into() } else { name.to_owned() };
    match error.raw_os_error() {
        Some(libc::EPERM) => Error::Permission { name: name(), queues: several },
        Some(libc::EBUSY | libc::E2BIG) => Error::Busy(name()),
        Some(libc::EINVAL | libc::EEXIST) => Error::Taken { name: name(), queues: several },
        _ => Error::os(format!("{}: making the interface", name()), error),
    }
}

/// An ioctl that reads `value`.
fn set<T>(file: &File, operation: libc::Ioctl, value: &T, what: &str) -> Result<(), Error> {
    // SAFETY: each operation that this is called with reads one value of the type that it is called
    // with.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), operation, std::ptr::from_ref(value)) };
    if result < 0 { Err(Error::os(what, io::Error::last_os_error())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_not_take_are_named() {
        for name in ["", ".", "..", "sixteen-letters-", "a/b", "a:b", "a b", "a\n"] {
            assert!(
                matches!(check_name(name), Err(Error::Name(wrong)) if wrong == name),
                "{name:?}"
            );
        }
        for name in ["a", "fifteen-letters", "net%d"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_card_without_checksums_is_left_nothing() {
        let card = Offloads { tso4: true, tso6: true, uso: true, ..Offloads::default() };
        assert_eq!(offloads(&card), 0);
        let card = Offloads { tx_checksum: true, ..card };
        assert_eq!(offloads(&card), libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | USO);
        assert_eq!(
            offloads(&Offloads { tso6: false, uso: false, ..card }),
            libc::TUN_F_CSUM | libc::TUN_F_TSO4
        );
    }
}
