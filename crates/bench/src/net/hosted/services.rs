//! Programs with sockets of the kernel: what comes to one port is echoed, what comes to another is taken, as many packets with a call as are there. [RFC 862, 863]

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::many::{Many, ROOM};
use crate::Error;

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
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

impl Drop for Services {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
