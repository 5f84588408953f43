//! The vDPA bus: a device is attached, found, and taken away, by generic netlink. [linux/vdpa.h,
//! linux/genetlink.h]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

use crate::{Error, check_name};

/// Where the bus shows its devices.
const DEVICES: &str = "/sys/bus/vdpa/devices";

/// The number of the controller, who knows all others.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const DEV_NEW: u8 = 3;
const DEV_DEL: u8 = 4;
const MGMTDEV_DEV_NAME: u16 = 2;
const DEV_NAME: u16 = 4;

/// Attaches the device of that name, which is served: its driver asks for its status and for more
/// before this returns. [`Error::NotReady`] of one whose queues are not set up yet.
pub fn attach(name: &str) -> Result<(), Error> {
    check_name(name)?;
    let attributes = [text(MGMTDEV_DEV_NAME, "vduse"), text(DEV_NAME, name)];
    ask(DEV_NEW, &attributes).map_err(|error| match error {
        Asked::NoBus => Error::NoBus,
        Asked::Failed(error) if error.raw_os_error() == Some(libc::ENODEV) => Error::NoManagement,
        Asked::Failed(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Error::NotReady(name.into())
        }
        Asked::Failed(error) => Error::os(format!("attaching {name} to the vDPA bus"), error),
    })
}

/// Takes it away from its driver and from the bus. It is served until this returns. That it is not
/// there is as good.
pub fn detach(name: &str) -> Result<(), Error> {
    check_name(name)?;
    match ask(DEV_DEL, &[text(DEV_NAME, name)]) {
        Ok(()) | Err(Asked::NoBus) => Ok(()),
        Err(Asked::Failed(error)) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        Err(Asked::Failed(error)) => {
            Err(Error::os(format!("taking {name} from the vDPA bus"), error))
        }
    }
}

/// Whether it is on the bus.
pub fn is_attached(name: &str) -> bool {
    check_name(name).is_ok() && fs::exists(Path::new(DEVICES).join(name)).unwrap_or(false)
}

/// Who has made it, by its [`Shape`](crate::Shape); `None` unless it is on the bus and
/// `virtio_vdpa` has taken it.
pub fn vendor(name: &str) -> Option<u32> {
    number(&virtio(name)?.join("vendor"))
}

/// virtio's number of its type; `None` as of [`vendor`].
pub fn kind(name: &str) -> Option<u32> {
    number(&virtio(name)?.join("device"))
}

/// `0x0002` and the like, in a file.
fn number(path: &Path) -> Option<u32> {
    u32::from_str_radix(fs::read_to_string(path).ok()?.trim().strip_prefix("0x")?, 16).ok()
}

fn entries(path: PathBuf) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(path).into_iter().flatten().flatten()
}

/// What `virtio_vdpa` has made of it.
fn virtio(name: &str) -> Option<PathBuf> {
    check_name(name).ok()?;
    Some(
        entries(Path::new(DEVICES).join(name))
            .find(|entry| entry.file_name().to_string_lossy().starts_with("virtio"))?
            .path(),
    )
}

/// What the virtio bus calls it; `None` as of [`vendor`].
pub fn device(name: &str) -> Option<String> {
    virtio(name)?.file_name()?.to_str().map(str::to_owned)
}

/// What the kernel's driver has made of it, in a `class` of sysfs: `block` or `net`. `None` if no
/// driver has taken it (`modprobe virtio_vdpa`, `virtio_blk`, `virtio_net`).
pub fn found_as(name: &str, class: &str) -> Option<String> {
    entries(virtio(name)?.join(class)).next()?.file_name().into_string().ok()
}

enum Asked {
    /// There is no such family.
    NoBus,
    Failed(io::Error),
}

impl From<io::Error> for Asked {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Asks the bus for one thing, and hears whether that was done.
fn ask(command: u8, attributes: &[DefaultNla]) -> Result<(), Asked> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let known =
        exchange(&socket, Generic::new(CONTROLLER, GET_FAMILY, &[text(FAMILY_NAME, "vdpa")]));
    let family = match known {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(Asked::NoBus),
        known => known?.ok_or(Asked::NoBus)?,
    };
    exchange(&socket, Generic::new(family, command, attributes)).map(drop).map_err(Asked::Failed)
}

/// Sends one request and hears its answers up to the last; the number of a family, if they say one.
fn exchange(socket: &Socket, request: Generic) -> io::Result<Option<u16>> {
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (mut answer, mut family) = (vec![0; 16 << 10], None);
    loop {
        let length = match socket.recv(&mut &mut answer[..], 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        let mut rest = &answer[..length];
        while let Some(size) = rest
            .first_chunk()
            .map(|&size| u32::from_ne_bytes(size) as usize)
            .filter(|&size| size >= 16)
        {
            let (one, others) = rest.split_at(size.min(rest.len()));
            rest = &others[others.len().min(size.next_multiple_of(4) - size)..];
            match NetlinkMessage::<Generic>::deserialize(one).map(|message| message.payload) {
                Ok(NetlinkPayload::Error(error)) if error.code.is_none() => return Ok(family),
                Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                Ok(NetlinkPayload::InnerMessage(answer)) => family = answer.family().or(family),
                _ => {}
            }
        }
    }
}

/// A message of generic netlink: a command and attributes.
struct Generic {
    family: u16,
    bytes: Vec<u8>,
}

impl Generic {
    fn new(family: u16, command: u8, attributes: &[DefaultNla]) -> Self {
        // Version 1 of each family that is spoken to.
        let mut bytes = vec![command, 1, 0, 0];
        for attribute in attributes {
            let from = bytes.len();
            bytes.resize(from + attribute.buffer_len(), 0);
            attribute.emit(&mut bytes[from..]);
        }
        Self { family, bytes }
    }

    /// The number of the family that the controller speaks of.
    fn family(&self) -> Option<u16> {
        let attributes = NlasIterator::new(self.bytes.get(4..)?);
        let id = attributes.flatten().find(|attribute| attribute.kind() == FAMILY_ID)?;
        Some(u16::from_ne_bytes(id.value().try_into().ok()?))
    }
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..self.bytes.len()].copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = std::convert::Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Self::Error> {
        Ok(Self { family: header.message_type, bytes: payload.into() })
    }
}

impl From<Generic> for NetlinkPayload<Generic> {
    fn from(message: Generic) -> Self {
        Self::InnerMessage(message)
    }
}

fn text(kind: u16, text: &str) -> DefaultNla {
    DefaultNla::new(kind, [text.as_bytes(), &[0]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_command_and_its_attributes_each_a_multiple_of_four() {
        let request = Generic::new(CONTROLLER, GET_FAMILY, &[text(FAMILY_NAME, "vdpa")]);
        assert_eq!(request.bytes, [3, 1, 0, 0, 9, 0, 2, 0, b'v', b'd', b'p', b'a', 0, 0, 0, 0]);
    }

    #[test]
    fn a_family_is_known_by_the_number_in_its_answer() {
        let answer = Generic::new(
            CONTROLLER,
            1,
            &[text(FAMILY_NAME, "vdpa"), DefaultNla::new(FAMILY_ID, 33u16.to_ne_bytes().into())],
        );
        assert_eq!(answer.family(), Some(33));
        assert_eq!(Generic { family: 0, bytes: vec![1, 1] }.family(), None);
    }

    #[test]
    fn a_name_that_could_be_a_path_goes_nowhere() {
        for name in ["", "..", "a/b", "control", "a b"] {
            assert!(matches!(attach(name), Err(Error::Name(_))) && !is_attached(name), "{name}");
        }
    }
}
