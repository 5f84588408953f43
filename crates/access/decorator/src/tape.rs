//! The way of events to their file.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring3_device::{Deadline, Error, poll_until};

use crate::recording::{End, Event, Header, Stamped, Writer};
use crate::verdict;

/// Events that wait to be written, and their bytes.
const WAITING: usize = 1 << 14;
const WAITING_BYTES: usize = 32 << 20;
/// How long a driver waits for a file that takes nothing; after that the recording ends, and the
/// driver goes on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at a file that is behind.
const LOOK: Duration = Duration::from_micros(100);
/// What has come is written after this time without more, so that a process that is killed leaves
/// almost all.
const IDLE: Duration = Duration::from_millis(1);

/// Takes events, and has a thread that writes them.
pub(crate) struct Tape {
    device: String,
    start: Instant,
    /// When the last event was, in nanoseconds since the start.
    last: Mutex<u64>,
    shared: Arc<TapeShared>,
    sender: Option<SyncSender<Stamped>>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct TapeShared {
    /// Bytes that wait.
    bytes: AtomicUsize,
    /// Events that were written.
    written: AtomicU64,
    lost: AtomicU64,
    /// Nothing is taken any more.
    ended: AtomicBool,
}

impl Tape {
    pub(crate) fn start(header: Header, file: impl Write + Send + 'static) -> Result<Self, Error> {
        let (sender, receiver) = sync_channel(WAITING);
        let shared = Arc::new(TapeShared::default());
        let (device, for_writer) = (header.device.clone(), Arc::clone(&shared));
        let writer = std::thread::Builder::new().name("ring3-record".into()).spawn(move || {
            let written = write(&header, &receiver, &for_writer, file);
            for_writer.ended.store(true, Ordering::Release);
            written
        });
        let writer = writer
            .map_err(|error| Error::os("starting the thread that writes the recording", error))?;
        Ok(Self {
            device,
            start: Instant::now(),
            last: Mutex::default(),
            shared,
            sender: Some(sender),
            writer: Some(writer),
        })
    }

    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Waits while too much waits to be written, but not for long: a file that stands still costs
    /// the recording, and not the driver.
    pub(crate) fn record(&self, event: Event) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, bytes) = (self.start.elapsed().as_nanos() as u64, event.bytes());
        let mut stamped = Stamped(now - *last, event);
        *last = now;
        let (mut written, mut waited) = (0, Duration::ZERO);
        let Some(sender) = &self.sender else { return };
        while !self.shared.ended.load(Ordering::Acquire) {
            if self.shared.bytes.load(Ordering::Acquire) <= WAITING_BYTES {
                self.shared.bytes.fetch_add(bytes, Ordering::AcqRel);
                match sender.try_send(stamped) {
                    Ok(()) => return,
                    Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => {
                        stamped = back
                    }
                }
                self.shared.bytes.fetch_sub(bytes, Ordering::AcqRel);
            }
            if std::mem::replace(&mut written, self.shared.written.load(Ordering::Acquire))
                != written
            {
                waited = Duration::ZERO;
            }
            if waited >= PATIENCE {
                // What comes later would make no sense without this one.
                self.shared.ended.store(true, Ordering::Release);
            } else {
                std::thread::sleep(LOOK);
                waited += LOOK;
            }
        }
        self.shared.lost.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Tape {
    /// Waits for the last block, but not for a file that does not take it.
    fn drop(&mut self) {
        drop(self.sender.take());
        let Some(writer) = self.writer.take() else { return };
        let ended = poll_until(Deadline::after(PATIENCE), "the recording's last block", || {
            Ok(writer.is_finished().then_some(()))
        });
        let whole = match ended {
            Ok(()) => {
                writer.join().unwrap_or_else(|_| Err(io::Error::other("its writer has failed")))
            }
            Err(_) => Err(io::Error::other("its file takes nothing")),
        };
        let lost = self.lost();
        let why = match whole {
            Err(error) => error.to_string(),
            Ok(()) if lost > 0 => "its file is too slow".into(),
            Ok(()) => return,
        };
        verdict::record(format!(
            "the recording of {} is not whole: {why}; {lost} events are missing. The device was \
            driven to the end; record it again, to a file with more room",
            self.device
        ));
    }
}

/// Writes what comes until nobody can send any more.
fn write(
    header: &Header,
    events: &Receiver<Stamped>,
    shared: &TapeShared,
    file: impl Write,
) -> io::Result<()> {
    let mut writer = Writer::new(file, header)?;
    loop {
        let event = match events.recv_timeout(IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                writer.flush()?;
                // Asleep until there is more: an idle driver costs nothing.
                events.recv().ok()
            }
            other => other.ok(),
        };
        let Some(event) = event else { break };
        shared.bytes.fetch_sub(event.1.bytes(), Ordering::AcqRel);
        writer.add(&event)?;
        shared.written.fetch_add(1, Ordering::AcqRel);
    }
    let (events, lost) =
        (shared.written.load(Ordering::Acquire), shared.lost.load(Ordering::Relaxed));
    writer.end(End { events, lost })
}
