//! What can go wrong between a card and its interface.

use std::io;

/// An interface that failed. Each message names what it is about and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no TAP, or not yet.
    #[error("this kernel offers no TAP (/dev/net/tun is missing): load it with `modprobe tun`")]
    NoTap,
    /// The device file cannot be opened.
    #[error(
        "/dev/net/tun: permission denied: it is open to everybody as a rule (`ls -l \
        /dev/net/tun`); run as root, or `chmod 666 /dev/net/tun`"
    )]
    Closed,
    /// The caller may not make interfaces, nor use this one.
    #[error(
        "{name}: making an interface needs CAP_NET_ADMIN: run as root, or let root make it once \
         for you: \
         ip tuntap add dev NAME mode tap user $USER vnet_hdr{}",
        if *queues { " multi_queue" } else { "" }
    )]
    Permission {
        /// The interface.
        name: String,
        /// Whether it has several queues.
        queues: bool,
    },
    /// The kernel has no vhost-net, or not yet.
    #[error(
        "this kernel offers no vhost-net (/dev/vhost-net is missing, or older than this needs): \
        load it with `modprobe vhost_net`; read and write (--engine tap) need none"
    )]
    NoVhost,
    /// Its device file cannot be opened.
    #[error(
        "/dev/vhost-net: permission denied: run as root, or give this user the right (`setfacl -m \
        u:$USER:rw /dev/vhost-net`); read and write (--engine tap) need none"
    )]
    VhostClosed,
    /// All that were opened before the process gave up the right to open others are in use.
    #[error(
        "no worker of vhost-net is left of those that were opened before the sandbox: serve fewer \
        queues"
    )]
    NoWorker,
    /// No name of an interface.
    #[error("'{0}' is no name of an interface: 1 to 15 bytes without '/', ':' and blanks")]
    Name(String),
    /// Another process has the interface.
    #[error(
        "{0}: another process has this interface: choose another --name, or none to let the kernel \
        choose"
    )]
    Busy(String),
    /// The name is that of an interface of another kind.
    #[error(
        "{name}: there is an interface of this name that is no TAP, or one made otherwise (it \
         needs vnet_hdr, and {} multi_queue): \
         choose another --name, or delete it with `ip link delete {name}`",
        if *queues { "" } else { "no" }
    )]
    Taken {
        /// The interface.
        name: String,
        /// Whether the card has several queues.
        queues: bool,
    },
    /// Somebody has deleted it while it was served.
    #[error("{0}: the interface was deleted: run it again to have it again")]
    Deleted(String),
    /// What was asked for is not the card's.
    #[error("{card}: {reason}")]
    Card {
        /// The card.
        card: String,
        /// Why not.
        reason: String,
    },
    /// The driver below failed.
    #[error("{card}: {cause}")]
    Driver {
        /// The card.
        card: String,
        /// Why.
        cause: ring3_class::Error,
    },
    /// A thread has ended in a way that nobody foresaw.
    #[error("{0}: a thread of this interface panicked: a defect of ring3")]
    Panicked(String),
    /// VDUSE, in place of a TAP.
    #[error(transparent)]
    Vduse(#[from] ring3_vduse::Error),
    /// The kernel has no driver for such a device.
    #[error(
        "the kernel has made no interface of {0}: load its drivers with `modprobe -a virtio_vdpa \
        virtio_net`"
    )]
    NoVirtio(String),
    /// The operating system refused something else.
    #[error("{what}: {cause}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        cause: io::Error,
    },
}

impl Error {
    /// An [`Error::Os`].
    pub(crate) fn os(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), cause: cause.into() }
    }

    /// Whether the card has failed for good, so that only a new start can help.
    pub fn is_loss(&self) -> bool {
        use ring3_class::Error::{Fatal, Gone};
        matches!(
            self,
            Self::Driver { cause: Gone | Fatal(_), .. } | Self::Deleted(_) | Self::Panicked(_)
        )
    }
}

/// Why a turn has ended the queue.
#[derive(Debug)]
pub enum QueueError {
    /// The card.
    Card(ring3_class::Error),
    /// The interface was deleted.
    Deleted,
    /// vhost-net.
    Vhost(ring3_class::Error),
}

impl QueueError {
    /// For the user, who knows the two by names.
    pub fn error(self, interface: &str, card: &str) -> Error {
        match self {
            Self::Card(cause) => Error::Driver { card: card.into(), cause },
            Self::Deleted => Error::Deleted(interface.into()),
            Self::Vhost(cause) => Error::Driver { card: "/dev/vhost-net".into(), cause },
        }
    }
}
