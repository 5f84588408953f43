//! The far end of the wire of a card of QEMU's, which is a datagram socket.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_backend::Uri;
use ring3_class::{Deadline, Error};
use ring3_conformance::net::{Quirks, Wire};

use crate::leave::Kept;

/// How long a frame waits for room in the socket: QEMU leaves frames there while its card takes
/// none.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The same once a frame was lost so, until one was taken.
const IMPATIENCE: Duration = Duration::from_millis(20);
/// The longest datagram.
const LONGEST: usize = 65536;

/// A wire of this program's own.
pub struct Socket {
    socket: UnixDatagram,
    card: PathBuf,
    stalled: bool,
    frame: Vec<u8>,
    quirks: Quirks,
    _folder: Kept<tempfile::TempDir>,
}

impl Socket {
    /// A wire for `device`, and the device with it.
    pub fn new(device: &Uri) -> Result<(Self, Uri)> {
        if device.scheme != "qtest" || device.options.contains_key("wire") {
            bail!(
                "{device}: which card is at the other end of its cable? --peer names it; only a \
                card of QEMU's without wire= is given one here"
            );
        }
        let folder = tempfile::tempdir().context("creating a folder for a wire")?;
        let path = folder.path().join("wire");
        let socket =
            UnixDatagram::bind(&path).with_context(|| format!("binding {}", path.display()))?;
        let mut device = device.clone();
        device.options.insert("wire".into(), path.display().to_string());
        let card = folder.path().join("wire.card");
        let quirks = Quirks::of_qemu(&device.target);
        let wire = Self {
            socket,
            card,
            stalled: false,
            frame: vec![0; LONGEST],
            quirks,
            _folder: Kept::new(folder),
        };
        Ok((wire, device))
    }
}

impl Wire for Socket {
    fn quirks(&self) -> Quirks {
        self.quirks
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        let failed = |error| Error::os("sending to QEMU's card", error);
        self.socket
            .set_write_timeout(Some(if self.stalled { IMPATIENCE } else { PATIENCE }))
            .map_err(failed)?;
        loop {
            match self.socket.send_to(frame, &self.card) {
                // A call with a time limit ends so when the process was stopped for a moment.
                // [signal(7)]
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(failed(error)),
                sent => {
                    self.stalled = sent.is_err();
                    return Ok(());
                }
            }
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Option<Vec<u8>>, Error> {
        let failed = |error| Error::os("receiving from QEMU's card", error);
        loop {
            let left = deadline.remaining().max(Duration::from_millis(1));
            self.socket.set_read_timeout(Some(left)).map_err(failed)?;
            match self.socket.recv(&mut self.frame) {
                Ok(len) => return Ok(Some(self.frame[..len].to_vec())),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
