//! `GET /metrics`, and nothing else of HTTP: for a Prometheus on this machine.
//!
//! # Trust
//! Only loopback addresses and sockets in the file system are listened at. One connection is served at a time, for a limited time and with a limited head; what comes meanwhile waits
//! in the kernel's queue.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Most bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;
/// How long a connection may take.
const LIMIT: Duration = Duration::from_secs(5);

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
                "{address} is no loopback address: metrics are for this machine; put a proxy in front of 127.0.0.1:{}",
                address.port()
            )),
            Err(_) => Err(format!("\"{text}\" is no place to listen at: give an address and a port (127.0.0.1:9123) or a path")),
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Answers at `endpoint`, in a thread of its own, with what `metrics` returns; returns where it listens, which says the port if that was 0.
pub fn serve(endpoint: &Endpoint, metrics: impl Fn() -> String + Send + 'static) -> io::Result<Endpoint> {
    let listener = match endpoint {
        Endpoint::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
        Endpoint::Unix(path) => {
            // One that a ring3d has left which is gone: nobody answers there.
            if UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                std::fs::remove_file(path)?;
            }
            Listener::Unix(UnixListener::bind(path)?)
        }
    };
    let place = match &listener {
        Listener::Tcp(listener) => Endpoint::Tcp(listener.local_addr()?),
        Listener::Unix(_) => endpoint.clone(),
    };
    std::thread::Builder::new().name("ring3d-metrics".into()).spawn(move || {
        loop {
            if let Err(error) = listener.serve_one(&metrics) {
                tracing::debug!("metrics: {error}");
                // A reader that fails is its own business; one that cannot be accepted for want of descriptors comes again.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    })?;
    Ok(place)
}

impl Listener {
    fn serve_one(&self, metrics: &impl Fn() -> String) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => answer(&mut Timed { stream: listener.accept()?.0, end: Instant::now() + LIMIT }, metrics),
            Self::Unix(listener) => answer(&mut Timed { stream: listener.accept()?.0, end: Instant::now() + LIMIT }, metrics),
        }
    }
}

/// A connection with an end.
struct Timed<S> {
    stream: S,
    end: Instant,
}

trait Stream: Read + Write {
    fn limit(&self, left: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl Stream for UnixStream {
    fn limit(&self, left: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(left)).and_then(|()| self.set_write_timeout(Some(left)))
    }
}

impl<S: Stream> Timed<S> {
    fn limited(&mut self) -> io::Result<&mut S> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.limit(left)?;
        Ok(&mut self.stream)
    }
}

fn answer(stream: &mut Timed<impl Stream>, metrics: &impl Fn() -> String) -> io::Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() <= MAX_HEAD {
        match stream.limited()?.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => head.extend_from_slice(&piece[..len]),
        }
    }
    let (status, kind, body) = reply(&head, metrics);
    let text =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
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
    let line = head.split(|&byte| byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        _ if head.len() > MAX_HEAD => ("431 Request Header Fields Too Large", PLAIN, String::new()),
        ["GET", path, version] if version.starts_with("HTTP/1.") => match path.split('?').next() {
            Some("/metrics") => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics()),
            _ => ("404 Not Found", PLAIN, "the metrics are at /metrics\n".into()),
        },
        [_, _, version] if version.starts_with("HTTP/1.") => ("405 Method Not Allowed", PLAIN, "GET /metrics\n".into()),
        _ => ("400 Bad Request", PLAIN, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(endpoint: &Endpoint, request: &[u8]) -> String {
        fn talk(mut stream: impl Stream, request: &[u8]) -> String {
            stream.limit(LIMIT * 2).unwrap();
            // What is refused early may not be read to its end.
            let _ = stream.write_all(request);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        }
        match endpoint {
            Endpoint::Tcp(address) => talk(TcpStream::connect(address).unwrap(), request),
            Endpoint::Unix(path) => talk(UnixStream::connect(path).unwrap(), request),
        }
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
            assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nring3_up 1\n"), "{good}");
            for (request, status) in [
                (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
                (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
                (b"GET /metrics\r\n\r\n", "400"),
                (b"\xff\xfe\r\n\r\n", "400"),
                (&[b'x'; MAX_HEAD + 100], "431"),
            ] {
                let answer = ask(&place, request);
                assert!(answer.is_empty() && status == "431" || answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
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
