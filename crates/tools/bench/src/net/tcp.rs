//! `bench tcp`: bytes of a TCP connection, and the instructions that they cost.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

use strum::Display;

use super::connection::Connection;
use super::measure::{Method, PATIENCE};
use super::streams::{SINK, SOURCE};
use crate::Error;
use crate::cpu::{Cost, Meter, Soaker};
use crate::report::Measurement;

/// Bytes of a call.
const PIECE: usize = 64 << 10;
/// Until windows have grown.
const WARM: Duration = Duration::from_millis(100);
/// How long a call waits.
const SILENCE: Duration = Duration::from_secs(5);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
pub enum Way {
    /// The measured machine sends.
    #[strum(to_string = "tcp-64k-out")]
    Out,
    /// It receives.
    #[strum(to_string = "tcp-64k-in")]
    In,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Out, Self::In];
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|way| way.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no load of TCP: tcp-64k-out or tcp-64k-in"))
    }
}

/// Moves bytes one way in pieces of 64 KiB between this machine and the [far end](super::streams())
/// at `peer`, and fills in what a byte costs.
pub fn measure_stream(
    way: Way,
    peer: Ipv4Addr,
    method: &Method,
    into: Measurement,
) -> Result<Measurement, Error> {
    let failed = |error| Error::os(format!("{way} with {peer}"), error);
    let stream = connect(peer, if way == Way::Out { SINK } else { SOURCE })?;
    stream
        .set_read_timeout(Some(SILENCE))
        .and(stream.set_write_timeout(Some(SILENCE)))
        .map_err(failed)?;
    let mut piece = vec![0; PIECE];
    let mut run = |time: Duration, soaker: Option<&Soaker>| {
        let count = || soaker.map_or(0, Soaker::count);
        let (start, meter, before, held) =
            (Instant::now(), Meter::start(None), count(), unacknowledged(&stream)?);
        // One call at least: a driver of higher priority may keep the processor for longer than a
        // short run, and the time until the first bytes is part of what they cost.
        let mut bytes = 0;
        loop {
            bytes += match way {
                Way::Out => (&stream).write(&piece)?,
                Way::In => (&stream).read(&mut piece)?,
            } as u64;
            if start.elapsed() >= time {
                break;
            }
        }
        let (steps, cost) = (count() - before, meter.read());
        Ok(((bytes + held).saturating_sub(unacknowledged(&stream)?), steps, cost))
    };
    run(WARM, None).map_err(failed)?;
    let soaker = method.soaker_step.map(|step| Soaker::start(method.cpus, step));
    let before = Connection::of(&stream).map_err(failed)?;
    let (bytes, steps, cost) = run(method.time, soaker.as_ref()).map_err(failed)?;
    let into = told(into, way, bytes, &before, &Connection::of(&stream).map_err(failed)?);
    close(way, stream);
    let busy = soaker
        .as_ref()
        .map(|soaker| soaker.busy(cost.elapsed, steps))
        .or(cost.busy(method.cpus))
        .unwrap_or_default();
    Ok(filled(into, method, bytes, &cost, busy))
}

fn filled(
    into: Measurement,
    method: &Method,
    bytes: u64,
    cost: &Cost,
    busy: Duration,
) -> Measurement {
    let seconds = cost.elapsed.as_secs_f64().max(1e-9);
    let into = into.with("mib_s", bytes as f64 / f64::from(1 << 20) / seconds);
    let into = into.with("busy_percent", cost.percent(busy, method.cpus));
    match method.instruction_ns {
        None => into,
        Some(nanos) => into
            .with("bytes_per_instruction", bytes as f64 * nanos / (busy.as_nanos().max(1) as f64)),
    }
}

/// What became of the connection meanwhile, which says how it came to what its bytes cost.
fn told(
    into: Measurement,
    way: Way,
    bytes: u64,
    before: &Connection,
    after: &Connection,
) -> Measurement {
    let answers = match way {
        Way::Out => after.received.wrapping_sub(before.received),
        Way::In => after.sent.wrapping_sub(before.sent),
    };
    let into = into.with("bytes_per_answer", bytes as f64 / f64::from(answers.max(1)));
    let into = into
        .with("retransmitted", f64::from(after.retransmitted.wrapping_sub(before.retransmitted)));
    // Of who sends nothing it says nothing.
    if way == Way::In { into } else { into.with("window_kib", after.window as f64 / 1024.0) }
}

/// Until the link is there nobody can be reached, and a port whose last connection went without a
/// word listens again after some seconds.
pub(super) fn connect(peer: Ipv4Addr, port: u16) -> Result<TcpStream, Error> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(
            &SocketAddrV4::new(peer, port).into(),
            Duration::from_secs(1),
        ) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > PATIENCE => {
                return Err(Error::os(format!("connecting to {peer}:{port}"), error));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Waits until the other end knows that it is over, so that it listens again.
fn close(way: Way, mut stream: TcpStream) {
    // Whoever closes before he has read all says so at once.
    if way == Way::Out && stream.shutdown(Shutdown::Write).is_ok() {
        let _ = stream.read(&mut [0]);
    }
}

/// Bytes that were written and that the other end has not said to have. [tcp(7), SIOCOUTQ]
fn unacknowledged(stream: &TcpStream) -> std::io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes an integer.
    match unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes.max(0) as u64),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_read_as_it_is_printed_and_another_is_refused_with_both_names() {
        Way::ALL.iter().for_each(|way| assert_eq!(way.to_string().parse(), Ok(*way)));
        assert!("tcp-out".parse::<Way>().unwrap_err().contains("tcp-64k-in"));
    }

    #[test]
    fn answers_to_a_sender_are_what_came_and_of_a_receiver_what_went() {
        let before = Connection { window: 1, retransmitted: 1, sent: 100, received: 10 };
        let after = Connection { window: 1 << 20, retransmitted: 3, sent: 120, received: 14 };
        let of =
            |way| told(Measurement::new(1, way, "kernel"), way, 1 << 20, &before, &after).values;
        assert_eq!(
            (of(Way::Out)["bytes_per_answer"], of(Way::In)["bytes_per_answer"]),
            (262_144.0, 52_428.8)
        );
        assert_eq!((of(Way::Out)["window_kib"], of(Way::Out)["retransmitted"]), (1024.0, 2.0));
        assert!(!of(Way::In).contains_key("window_kib"));
    }

    #[test]
    fn a_run_whose_time_is_over_before_its_first_call_still_measures_bytes() {
        let peer = Ipv4Addr::new(127, 0, 83, 1);
        let listener = std::net::TcpListener::bind((peer, SOURCE)).unwrap();
        let source = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            while stream.write_all(&[0; 4096]).is_ok() {}
        });
        let method =
            Method { time: Duration::ZERO, instruction_ns: None, soaker_step: None, cpus: 1 };
        let measured =
            measure_stream(Way::In, peer, &method, Measurement::new(1, Way::In, "kernel")).unwrap();
        assert!(measured.values["mib_s"] > 0.0, "{:?}", measured.values);
        source.join().unwrap();
    }

    #[test]
    fn bytes_per_instruction_are_of_busy_time_alone() {
        let method =
            Method { time: Duration::ZERO, instruction_ns: Some(16.0), soaker_step: None, cpus: 1 };
        let into = Measurement::new(1, Way::In, "kernel");
        let cost = Cost { elapsed: Duration::from_secs(1), ..Cost::default() };
        let into = filled(into, &method, 1 << 20, &cost, Duration::from_millis(16));
        assert_eq!((into.values["mib_s"], into.values["busy_percent"]), (1.0, 1.6));
        assert_eq!(into.values["bytes_per_instruction"], f64::from(1 << 20) / 1e6);
    }
}
