//! `GET /metrics`, and nothing else of HTTP: for a Prometheus on this machine.
//!
//! # Trust
//! Only loopback addresses and sockets in the file system are listened at. Whoever connects has a
//! limited time and a limited head. A few are served at a time; of more, the one that has taken
//! longest goes, so that readers who do not read keep nobody out.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, SocketType, shutdown};

use crate::socket::make_room;

/// Most bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;
/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Connections at a time.
const MOST: usize = 8;
/// How long each has at least, however many come.
const LEAST: Duration = Duration::from_millis(200);
/// How long nobody is let in after one could not be, for want of descriptors or threads.
const FULL: Duration = Duration::from_millis(200);

/// Where it is listened: `127.0.0.1:9123`, `[::1]:9123`, `/run/ring3/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(address) => Err(format!(
                "{address} is no loopback address: metrics are for this machine; put a proxy in \
                front of 127.0.0.1:{}",
                address.port()
            )),
            Err(_) => Err(format!(
                "\"{text}\" is no place to listen at: give an address and a port (127.0.0.1:9123) \
                or a path"
            )),
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Answers at `endpoint`, in threads of its own, with what `metrics` returns; returns where it
/// listens, which says the port if that was 0.
pub fn serve(
    endpoint: &Endpoint,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> io::Result<Endpoint> {
    let listener = match endpoint {
        Endpoint::Tcp(address) => {
            Listener::Tcp(TcpListener::bind(address).map_err(|error| refused(error, address))?)
        }
        Endpoint::Unix(path) => {
            make_room(path, SocketType::STREAM)?;
            Listener::Unix(UnixListener::bind(path)?)
        }
    };
    let place = match &listener {
        Listener::Tcp(listener) => Endpoint::Tcp(listener.local_addr()?),
        Listener::Unix(_) => endpoint.clone(),
    };
    listen(listener, metrics)?;
    Ok(place)
}

/// The same on a TCP socket that whoever started this process has made, and is bound.
pub fn inherited(
    listener: OwnedFd,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = TcpListener::from(listener);
    listener.set_nonblocking(false)?;
    listen(Listener::Tcp(listener), metrics)
}

/// What a refused address means where a service may have no sockets of IP.
fn refused(error: io::Error, address: &SocketAddr) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AFNOSUPPORT) => io::Error::new(
            error.kind(),
            format!(
                "{error}: the service may have no sockets of IP; enable ring3d-metrics.socket \
                 (ListenStream={address}) and take `listen` out of the manifest, or give a path"
            ),
        ),
        _ => error,
    }
}

fn listen(
    listener: Listener,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> io::Result<()> {
    let (served, metrics) = (Served::default(), Arc::new(metrics));
    std::thread::Builder::new().name("ring3d-metrics".into()).spawn(move || {
        loop {
            if let Err(error) =
                listener.accept().and_then(|socket| served.begin(socket, metrics.clone()))
            {
                tracing::debug!("metrics: {error}");
                std::thread::sleep(FULL);
            }
        }
    })?;
    Ok(())
}

impl Listener {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(socket, _)| socket.into()),
            Self::Unix(listener) => listener.accept().map(|(socket, _)| socket.into()),
        }
    }
}

/// The connections that are served, the oldest first, each with when it came.
#[derive(Clone, Default)]
struct Served(Arc<Mutex<VecDeque<Reader>>>);

/// A reader's connection, and since when it is served.
type Reader = (Arc<OwnedFd>, Instant);

impl Served {
    /// Answers at `socket` in a thread of its own, in the place of another one if there are too
    /// many.
    fn begin(
        &self,
        socket: OwnedFd,
        metrics: Arc<impl Fn() -> String + Send + Sync + 'static>,
    ) -> io::Result<()> {
        self.make_room();
        let (all, socket) = (self.clone(), Arc::new(socket));
        let stream = Timed { stream: socket.try_clone()?.into(), end: Instant::now() + LIMIT };
        all.lock().push_back((socket.clone(), Instant::now()));
        let serve = move || {
            let mut stream = stream;
            if let Err(error) = answer(&mut stream, &*metrics) {
                tracing::debug!("metrics: {error}");
            }
            all.lock().retain(|(other, _)| !Arc::ptr_eq(other, &socket));
        };
        let started = std::thread::Builder::new().name("ring3d-metrics".into()).spawn(serve);
        started.map(drop).inspect_err(|_| drop(self.lock().pop_back()))
    }

    /// Ends the connection that has taken longest, if there are too many, once it has had its time.
    fn make_room(&self) {
        let oldest = {
            let served = self.lock();
            served.front().filter(|_| served.len() >= MOST).cloned()
        };
        let Some((socket, came)) = oldest else { return };
        std::thread::sleep(LEAST.saturating_sub(came.elapsed()));
        let _ = shutdown(&*socket, Shutdown::Both);
        // Its thread finds that out, and has ended before long.
        self.lock().retain(|(other, _)| !Arc::ptr_eq(other, &socket));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Arc<OwnedFd>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection with an end.
struct Timed {
    stream: File,
    end: Instant,
}

impl Timed {
    fn limited(&mut self) -> io::Result<&mut File> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        for way in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&self.stream, way, Some(left))?;
        }
        Ok(&mut self.stream)
    }
}

fn answer(stream: &mut Timed, metrics: &impl Fn() -> String) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() <= MAX_HEAD {
        match stream.limited()?.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&piece[..len]),
        }
    }
    let (status, kind, body) = reply(&head, metrics);
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: \
        close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match stream.limited()?.write(rest)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            len => rest = &rest[len..],
        }
    }
    Ok(())
}

/// Status, type and body for a request.
fn reply(head: &[u8], metrics: &impl Fn() -> String) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let line = head
        .split(|&byte| byte == b'\r')
        .next()
        .and_then(|line| std::str::from_utf8(line).ok())
        .unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        _ if head.len() > MAX_HEAD => ("431 Request Header Fields Too Large", PLAIN, String::new()),
        ["GET", path, version] if version.starts_with("HTTP/1.") => match path.split('?').next() {
            Some("/metrics") => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics()),
            _ => ("404 Not Found", PLAIN, "the metrics are at /metrics\n".into()),
        },
        [_, _, version] if version.starts_with("HTTP/1.") => {
            ("405 Method Not Allowed", PLAIN, "GET /metrics\n".into())
        }
        _ => ("400 Bad Request", PLAIN, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn connect(endpoint: &Endpoint) -> Timed {
        let socket: OwnedFd = match endpoint {
            Endpoint::Tcp(address) => TcpStream::connect(address).unwrap().into(),
            Endpoint::Unix(path) => UnixStream::connect(path).unwrap().into(),
        };
        Timed { stream: socket.into(), end: Instant::now() + 10 * LIMIT }
    }

    fn ask(endpoint: &Endpoint, request: &[u8]) -> String {
        let mut stream = connect(endpoint);
        // What is refused early may not be read to its end.
        let _ = stream.limited().unwrap().write_all(request);
        let mut answer = Vec::new();
        let _ = stream.limited().unwrap().read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn readers_who_do_not_read_keep_nobody_out() {
        let place = serve(&"127.0.0.1:0".parse().unwrap(), || "ring3_up 1\n".into()).unwrap();
        let _slow: Vec<_> = (0..3 * MOST).map(|_| connect(&place)).collect();
        let began = Instant::now();
        assert!(ask(&place, b"GET /metrics HTTP/1.1\r\n\r\n").contains("200 OK"));
        // One after the other they would have had their whole time.
        assert!(began.elapsed() < LIMIT * MOST as u32, "{:?}", began.elapsed());
    }

    #[test]
    fn metrics_are_got_at_a_socket_that_was_passed_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Endpoint::Tcp(listener.local_addr().unwrap());
        // As systemd passes it.
        listener.set_nonblocking(true).unwrap();
        inherited(listener.into(), || "ring3_up 1\n".into()).unwrap();
        assert!(ask(&place, b"GET /metrics HTTP/1.1\r\n\r\n").ends_with("ring3_up 1\n"));
    }

    #[test]
    fn where_sockets_of_ip_are_refused_the_error_names_the_unit_that_has_one() {
        let error = io::Error::from(Errno::AFNOSUPPORT);
        let text = refused(error, &"127.0.0.1:9123".parse().unwrap()).to_string();
        assert!(text.contains("ring3d-metrics.socket (ListenStream=127.0.0.1:9123)"), "{text}");
    }

    #[test]
    fn a_file_at_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "content").unwrap();
        assert!(
            serve(&Endpoint::Unix(path.clone()), String::new)
                .unwrap_err()
                .to_string()
                .contains("no socket")
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }

    #[test]
    fn metrics_are_got_over_tcp_and_at_a_path_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        // Somebody has died there.
        drop(UnixListener::bind(&path).unwrap());
        for place in [Endpoint::Unix(path), "127.0.0.1:0".parse().unwrap()] {
            let place = serve(&place, || "ring3_up 1\n".into()).unwrap();
            let good = ask(&place, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(
                good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nring3_up 1\n"),
                "{good}"
            );
            for (request, status) in [
                (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
                (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
                (b"GET /metrics\r\n\r\n", "400"),
                (b"\xff\xfe\r\n\r\n", "400"),
                (&[b'x'; MAX_HEAD + 100], "431"),
            ] {
                let answer = ask(&place, request);
                assert!(
                    answer.is_empty() && status == "431"
                        || answer.starts_with(&format!("HTTP/1.1 {status}")),
                    "{answer}"
                );
            }
            assert!(ask(&place, b"GET /metrics?x HTTP/1.0\r\n\r\n").contains("200 OK"));
        }
    }

    #[test]
    fn what_is_reached_from_other_machines_is_no_place() {
        for text in ["0.0.0.0:9123", "192.0.2.1:9123", "[::]:1", "localhost:1", "9123", ""] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        assert!("[::1]:9123".parse::<Endpoint>().is_ok() && "/run/x".parse::<Endpoint>().is_ok());
    }
}
