//! PCI functions that come and go while ring3d runs, from the kernel's uevents.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

/// The group to which the kernel sends; udev has another.
const KERNEL: u32 = 1;
/// More than any uevent has. [Linux, `include/linux/kobject.h`, UEVENT_BUFFER_SIZE]
const MAX_LEN: usize = 8192;

/// What has happened to a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is there: `0000:01:00.0`.
    Arrived(String),
    /// It is gone.
    Removed(String),
    /// Some were missed: look at all of them.
    Missed,
}

/// The kernel's uevents.
pub struct Hotplug(OwnedFd);

impl Hotplug {
    /// Listens from now on.
    pub fn listen() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            Some(KOBJECT_UEVENT),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(Self(socket))
    }

    /// Waits for the next event.
    pub fn next(&self) -> io::Result<Event> {
        let mut message = [0; MAX_LEN];
        loop {
            match recvfrom(&self.0, &mut message[..], RecvFlags::empty()) {
                // Whoever is not the kernel has a number.
                Ok((len, _, from)) if from.as_ref().is_some_and(is_kernel) => {
                    if let Some(event) = parse(&message[..len]) {
                        return Ok(event);
                    }
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => return Ok(Event::Missed),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Calls `act` for each event, in a thread of its own, until it returns false.
    pub fn follow(self, mut act: impl FnMut(Event) -> bool + Send + 'static) -> io::Result<()> {
        let follow = move || {
            loop {
                match self.next() {
                    Ok(event) if act(event.clone()) => {}
                    Ok(_) => return,
                    Err(error) => {
                        return tracing::error!(
                            "devices that come and go are not seen any more: {error}"
                        );
                    }
                }
            }
        };
        std::thread::Builder::new().name("ring3d-hotplug".into()).spawn(follow).map(drop)
    }
}

fn is_kernel(from: &rustix::net::SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(from.clone()).is_ok_and(|from| from.pid() == 0)
}

/// What a uevent says of a PCI function: `add@/devices/…`, then `NAME=value`, each with a zero
/// behind it.
fn parse(message: &[u8]) -> Option<Event> {
    let fields =
        || message.split(|&byte| byte == 0).filter_map(|field| std::str::from_utf8(field).ok());
    let value = |name: &str| fields().find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    if value("SUBSYSTEM") != Some("pci") {
        return None;
    }
    let address = value("PCI_SLOT_NAME").or_else(|| value("DEVPATH")?.rsplit('/').next())?;
    let address = address.parse::<ring3_pci::Address>().ok()?.to_string();
    match value("ACTION")? {
        "add" => Some(Event::Arrived(address)),
        "remove" => Some(Event::Removed(address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uevent(fields: &[&str]) -> Vec<u8> {
        fields.iter().flat_map(|field| field.bytes().chain([0])).collect()
    }

    #[test]
    fn a_function_that_comes_or_goes_is_an_event_by_its_address() {
        let path = "/devices/pci0000:00/0000:00:03.0/0000:01:00.0";
        let add = uevent(&[
            &format!("add@{path}"),
            "ACTION=add",
            &format!("DEVPATH={path}"),
            "SUBSYSTEM=pci",
            "PCI_SLOT_NAME=0000:01:00.0",
            "SEQNUM=7",
        ]);
        assert_eq!(parse(&add), Some(Event::Arrived("0000:01:00.0".into())));
        let remove = uevent(&[
            &format!("remove@{path}"),
            "ACTION=remove",
            &format!("DEVPATH={path}"),
            "SUBSYSTEM=pci",
        ]);
        assert_eq!(parse(&remove), Some(Event::Removed("0000:01:00.0".into())));
    }

    #[test]
    fn other_uevents_are_none() {
        for fields in [
            &["ACTION=bind", "SUBSYSTEM=pci", "PCI_SLOT_NAME=0000:01:00.0"][..],
            &["ACTION=add", "SUBSYSTEM=block", "DEVPATH=/devices/pci0000:00/0000:01:00.0"],
            &["ACTION=add", "SUBSYSTEM=pci", "PCI_SLOT_NAME=../../x"],
            &["ACTION=add", "SUBSYSTEM=pci"],
            &[],
        ] {
            assert_eq!(parse(&uevent(fields)), None, "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn no_message_is_worse_than_none(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
