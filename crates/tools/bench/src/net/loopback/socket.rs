//! A card of the kernel's, by a packet socket that goes past the queueing discipline. [packet(7)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::super::many::{BATCH, Many, ROOM};
use super::{KIND, Mark, Port, mark, put};
use crate::Error;

/// Bytes that may wait to be received.
const WAITING: libc::c_int = 4 << 20;

/// The socket, bound to one interface.
pub struct PacketSocket {
    socket: OwnedFd,
    many: Many,
    /// How long the kernel waits.
    limit: Duration,
}

impl PacketSocket {
    /// Sends and receives by the interface called `name`.
    pub fn open(name: &str) -> Result<Self, Error> {
        let failed = |what: &str, error| Error::os(format!("{name}: {what}"), error);
        let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex"));
        let index = index.map_err(|error| failed("looking for the interface", error))?;
        let index = index
            .trim()
            .parse()
            .map_err(|error| Error::format(format!("{name}: its index"), error))?;
        let protocol = KIND.to_be();
        // SAFETY: the call takes numbers.
        let socket = unsafe {
            libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into())
        };
        if socket < 0 {
            return Err(failed(
                "opening a packet socket, which needs CAP_NET_RAW",
                io::Error::last_os_error(),
            ));
        }
        // SAFETY: it was just opened, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: an address of zeroes is one.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        (address.sll_family, address.sll_protocol, address.sll_ifindex) =
            (libc::AF_PACKET as u16, protocol, index);
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address outlives the call, and has so many bytes.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } < 0 {
            return Err(failed("binding a packet socket", io::Error::last_os_error()));
        }
        let opened = Self { socket, many: Many::new(), limit: Duration::ZERO };
        opened.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)?;
        opened.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &WAITING)?;
        Ok(opened)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> Result<(), Error> {
        let bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: the value outlives the call, and has so many bytes.
        let set = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                bytes,
            )
        };
        if set < 0 {
            Err(Error::os("setting an option of a packet socket", io::Error::last_os_error()))
        } else {
            Ok(())
        }
    }
}

impl Port for PacketSocket {
    fn send(
        &mut self,
        frame: &mut [u8],
        count: usize,
        marks: &mut dyn FnMut() -> Mark,
    ) -> Result<usize, Error> {
        let count = count.min(BATCH);
        self.many.prepare(frame.len());
        for number in 0..count {
            put(frame, &marks());
            self.many.place(number)[..frame.len()].copy_from_slice(frame);
        }
        match self.many.send(&self.socket, count) {
            Ok(sent) => Ok(sent as usize),
            // The card's queue is full.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR)
                ) =>
            {
                Ok(0)
            }
            Err(error) => Err(Error::os("sending by a packet socket", error)),
        }
    }

    fn receive(&mut self, limit: Duration, see: &mut dyn FnMut(Mark)) -> Result<(), Error> {
        if limit != self.limit {
            let time = libc::timeval {
                tv_sec: limit.as_secs() as i64,
                tv_usec: limit.subsec_micros().into(),
            };
            self.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time)?;
            self.limit = limit;
            self.many.prepare(ROOM);
        }
        match self.many.receive(&self.socket) {
            Ok(received) => (0..received as usize)
                .filter_map(|number| mark(self.many.place(number)))
                .for_each(see),
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN)
                ) => {}
            Err(error) => return Err(Error::os("receiving by a packet socket", error)),
        }
        Ok(())
    }
}
