//! Programs with sockets of the kernel: what comes to one port is echoed, what comes to another is
//! taken, as many packets with a call as are there. By TCP, one takes and one sends, 64 KiB with a
//! call. [RFC 862 to 864]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::many::{Many, ROOM};
use crate::Error;

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
const CHARGEN: u16 = 19;
/// Bytes of a call by TCP.
const PIECE: usize = 64 << 10;
/// How often it is looked whether they shall end.
const LOOK: Duration = Duration::from_millis(100);

/// The programs, in threads, until this is dropped.
pub struct Services {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Services {
    /// Starts them for all addresses of this machine.
    pub fn start() -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut services = Self { stop: stop.clone(), threads: Vec::new() };
        for port in [ECHO, DISCARD] {
            let failed = |error| Error::os(format!("opening UDP's port {port}"), error);
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?;
            socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
            let stop = stop.clone();
            services.threads.push(std::thread::spawn(move || serve(&socket, port == ECHO, &stop)));
        }
        for port in [DISCARD, CHARGEN] {
            let failed = |error| Error::os(format!("opening TCP's port {port}"), error);
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let stop = stop.clone();
            services
                .threads
                .push(std::thread::spawn(move || accept(&listener, port == CHARGEN, &stop)));
        }
        Ok(services)
    }
}

fn serve(socket: &UdpSocket, echo: bool, stop: &AtomicBool) {
    let mut many = Many::with_addresses();
    while !stop.load(Ordering::Relaxed) {
        many.prepare(ROOM);
        let Ok(count) = many.receive(socket) else { continue };
        if echo {
            many.keep_lengths(count as usize);
            // What the interface has no room for is lost, as any packet may be.
            let _ = many.send(socket, count as usize);
        }
    }
}

/// Serves one connection after the other.
fn accept(listener: &TcpListener, sends: bool, stop: &AtomicBool) {
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    while !stop.load(Ordering::Relaxed) {
        // Who connects is not to wait for a look: what he measures has begun.
        let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit));
        if let Ok((stream, _)) = listener.accept() {
            converse(stream, sends, stop);
        }
    }
}

/// Until whoever has connected goes, however he does.
fn converse(mut stream: TcpStream, sends: bool, stop: &AtomicBool) {
    let waits = stream
        .set_nonblocking(false)
        .and(stream.set_read_timeout(Some(LOOK)))
        .and(stream.set_write_timeout(Some(LOOK)));
    let mut piece = vec![b' '; PIECE];
    while waits.is_ok() && !stop.load(Ordering::Relaxed) {
        match if sends { stream.write(&piece) } else { stream.read(&mut piece) } {
            Ok(1..) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
