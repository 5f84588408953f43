//! Why a driver process could not start or go on.

/// An error for the user; it names the device and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device or its driver.
    #[error("{}", named(device, source))]
    Device {
        /// As the user named it.
        device: String,
        /// Why.
        source: ring3_device::Error,
    },
    /// The export.
    #[error(transparent)]
    Export(#[from] ring3_export::ublk::Error),
    /// The export of a network card.
    #[error(transparent)]
    Interface(#[from] ring3_export::tap::Error),
    /// The device is no network card.
    #[error(
        "{device}: it is no network card that ring3 drives; ring3 devices lists what there is, \
        ring3 run --help what is run how"
    )]
    NoNic {
        /// As the user named it.
        device: String,
    },
    /// The device has no disk that can be shared, or several.
    #[error(
        "{device} has {count} disks, and one is served: choose it with --namespace or --drive; \
        ring3 blk info --device {device} lists them"
    )]
    OneDisk {
        /// As the user named it.
        device: String,
        /// How many it has.
        count: usize,
    },
    /// The one queue of the disk is its block device's.
    #[error(
        "{device}: --socket needs a queue beside that of the block device, and the disk has one: \
        ring3 serve disk has no block device"
    )]
    NoSpareQueue {
        /// As the user named it.
        device: String,
    },
    /// The device has nothing to export.
    #[error(
        "{device} has no disk that can be used; ring3 nvme id or ring3 ata id --device {device} \
        says what it has, and why not"
    )]
    NoDisk {
        /// As the user named it.
        device: String,
    },
    /// The bus has reported an error of the device.
    #[error(
        "{device}: the bus reports an error of the device that it cannot correct (dmesg says \
         which); its disks were taken away, because what it transferred may be lost or wrong; \
         check card and slot, then run it again"
    )]
    Bus {
        /// As the user named it.
        device: String,
    },
    /// The process is not confined, and runs no driver.
    #[error(transparent)]
    Sandbox(#[from] ring3_sandbox::Error),
    /// What a supervisor and its driver process say to each other makes no sense.
    #[error(
        "the supervisor and this driver process do not understand each other: {reason}; restart \
        ring3d, so that both are of one release"
    )]
    Protocol {
        /// What was wrong.
        reason: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried, and what to do about it where that is known.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// The error with its device's name, once: backends name the device themselves where they know it.
fn named(device: &str, source: &ring3_device::Error) -> String {
    match source.to_string() {
        text if text.contains(device) => text,
        text => format!("{device}: {text}"),
    }
}

impl From<ring3_process::Error> for Error {
    fn from(ring3_process::Error { what, source }: ring3_process::Error) -> Self {
        Self::Os { what, source }
    }
}

impl Error {
    /// Whether a disk or a card that was served is lost: its driver cannot get the device back, and
    /// only a new start can.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Export(error) => matches!(error, ring3_export::ublk::Error::Queue { .. }),
            Self::Interface(error) => error.is_loss(),
            _ => false,
        }
    }

    /// Whether the device is gone, so that another start does not help.
    pub(crate) fn is_gone(&self) -> bool {
        use ring3_device::Error::Gone;
        use ring3_export::tap::Error as Interface;
        use ring3_export::ublk::Error as Export;
        matches!(
            self,
            Self::Bus { .. }
                | Self::Interface(Interface::Driver { cause: Gone, .. })
                | Self::Device { source: Gone, .. }
                | Self::Export(
                    Export::Driver { cause: Gone, .. } | Export::Queue { gone: true, .. }
                )
        )
    }

    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol { reason: reason.into() }
    }

    pub(crate) fn os(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }
}
