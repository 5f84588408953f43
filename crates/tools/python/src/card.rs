//! Network cards.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ring3::card::opened::{
    CardLink, CardOptions, ring3_card_describe, ring3_card_get_link, ring3_card_name,
    ring3_card_open, ring3_card_set_promiscuous,
};
use ring3::card::packets::{
    CardPacket, ring3_card_queue_alloc, ring3_card_queue_arm, ring3_card_queue_fd,
    ring3_card_queue_open, ring3_card_queue_receive, ring3_card_queue_release,
    ring3_card_queue_send, ring3_card_queue_wait,
};

use crate::outcome::{Exclusive, c_text, opened, result, text, wait_for};

/// A network card that ring3 drives in this process.
#[pyclass(module = "ring3")]
pub struct Card {
    handle: Option<Exclusive<ring3::card::Card>>,
    #[pyo3(get)]
    name: String,
    /// Its maker's name for it.
    #[pyo3(get)]
    model: String,
    mac: [u8; 6],
    /// The least and the largest packet without its Ethernet header, bytes.
    #[pyo3(get)]
    mtu: (u32, u32),
}

#[pymethods]
impl Card {
    #[new]
    #[pyo3(signature = (uri, *, arena=0, polled=false, unprotected=false))]
    fn new(
        py: Python<'_>,
        uri: &str,
        arena: u64,
        polled: bool,
        unprotected: bool,
    ) -> PyResult<Self> {
        let (uri, options) = (c_text(uri)?, CardOptions { arena, polled, unprotected });
        let mut handle = py.detach(|| {
            let mut card = null_mut();
            // SAFETY: a text, options and a place.
            let number = unsafe { ring3_card_open(uri.as_ptr(), &options, &mut card) };
            opened(number, card)
        })?;
        let mut info = std::mem::MaybeUninit::uninit();
        // SAFETY: a place; what is not written is not read.
        let info = unsafe {
            result(ring3_card_describe(handle.get(), info.as_mut_ptr()))?;
            info.assume_init()
        };
        let (name, model) = (text(ring3_card_name(handle.get())), text(info.model));
        let mtu = (info.mtu_min, info.mtu_max);
        Ok(Self { handle: Some(handle), name, model, mac: info.mac, mtu })
    }

    /// Its address: six bytes.
    #[getter]
    fn mac<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.mac)
    }

    /// The wire: whether it is up, megabits per second (0: unknown), and full duplex.
    #[getter]
    fn link(&mut self) -> PyResult<(bool, u32, bool)> {
        let mut link = CardLink::default();
        // SAFETY: a place.
        result(unsafe { ring3_card_get_link(self.open()?, &mut link) })?;
        Ok((link.up, link.mbits, link.full_duplex))
    }

    /// Lets everything through, or only what is for the card's own address and for everybody.
    fn set_promiscuous(&mut self, promiscuous: bool) -> PyResult<()> {
        result(ring3_card_set_promiscuous(self.open()?, promiscuous)).map(drop)
    }

    /// Opens the queue: the card receives from now on.
    #[pyo3(signature = (*, mtu=0, depth=0))]
    fn queue(&mut self, mtu: u32, depth: u16) -> PyResult<CardQueue> {
        let mut queue = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_card_queue_open(self.open()?, mtu, depth, &mut queue) };
        Ok(CardQueue(Some(opened(number, queue)?)))
    }

    /// Gives the card up; its device when its queue is gone, too.
    fn close(&mut self) {
        self.handle = None;
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<ring3.Card {}>", self.name)
    }
}

impl Card {
    fn open(&mut self) -> PyResult<&mut ring3::card::Card> {
        let closed = || PyValueError::new_err("the card is closed");
        Ok(self.handle.as_mut().ok_or_else(closed)?.get())
    }
}

/// The way through a card, for one thread at a time. Frames are copied to and from Python's bytes.
#[pyclass(module = "ring3")]
pub struct CardQueue(Option<Exclusive<ring3::card::packets::CardQueue>>);

/// Frames that move at once.
const BATCH: usize = 64;
const NOTHING: CardPacket =
    CardPacket { data: null_mut(), len: 0, room: 0, buffer: 0, checked: false, more: false };

#[pymethods]
impl CardQueue {
    /// Up to 64 pieces of frames that were received; all but the last of a frame's say that more
    /// follow: (bytes, more).
    fn receive<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, bool)>> {
        let mut packets = [NOTHING; BATCH];
        // SAFETY: so many places.
        let count = unsafe { ring3_card_queue_receive(self.open()?, packets.as_mut_ptr(), BATCH) };
        let packets = &packets[..result(count)? as usize];
        let copy = |packet: &CardPacket| {
            // SAFETY: the packet is this program's until it is released, and nobody writes it.
            let bytes = unsafe {
                std::slice::from_raw_parts(packet.data.cast::<u8>(), packet.len as usize)
            };
            (PyBytes::new(py, bytes), packet.more)
        };
        let frames = packets.iter().map(copy).collect();
        // SAFETY: so many packets.
        unsafe { ring3_card_queue_release(self.open()?, packets.as_ptr(), packets.len()) };
        Ok(frames)
    }

    /// Sends the first of `frames`, up to 64, as many as there is room for; returns how many.
    fn send(&mut self, py: Python<'_>, frames: Vec<PyBuffer<u8>>) -> PyResult<usize> {
        let count = frames.len().min(BATCH);
        let queue = self.open()?;
        let mut packets = [NOTHING; BATCH];
        // SAFETY: so many places.
        let given =
            result(unsafe { ring3_card_queue_alloc(queue, packets.as_mut_ptr(), count) })? as usize;
        let packets = &mut packets[..given];
        let mut wrong = None;
        for (packet, frame) in packets.iter_mut().zip(&frames) {
            if frame.len_bytes() > packet.room as usize {
                let text = format!("a frame of {} bytes, of {}", frame.len_bytes(), packet.room);
                wrong = Some(PyValueError::new_err(text));
                break;
            }
            packet.len = frame.len_bytes() as u32;
            // SAFETY: the packet has room for as many, and is this program's.
            let room = unsafe {
                std::slice::from_raw_parts_mut(packet.data.cast::<u8>(), packet.len as usize)
            };
            if let Err(error) = frame.copy_to_slice(py, room) {
                wrong = Some(error);
                break;
            }
        }
        let sent = match wrong {
            Some(_) => 0,
            // SAFETY: so many packets.
            None => unsafe { ring3_card_queue_send(queue, packets.as_ptr(), given) },
        };
        let kept = &packets[sent.max(0) as usize..];
        // SAFETY: so many packets.
        unsafe { ring3_card_queue_release(queue, kept.as_ptr(), kept.len()) };
        wrong.map_or(Ok(()), Err)?;
        Ok(result(sent)? as usize)
    }

    /// Waits until there is something to receive, at most `timeout` seconds: False at their end.
    #[pyo3(signature = (timeout=None))]
    fn wait(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let queue = self.0.as_mut().ok_or_else(closed)?;
        wait_for(py, timeout, |ms| Ok(result(ring3_card_queue_wait(queue.get(), ms))? == 1))
    }

    /// The descriptor for an event loop; OSError of a queue that is polled.
    fn fileno(&mut self) -> PyResult<c_int> {
        result(ring3_card_queue_fd(self.open()?))
    }

    /// Before a sleep on the descriptor: None if there is something to receive, otherwise how many
    /// seconds the sleep may last; -1 without an end.
    fn arm(&mut self) -> PyResult<Option<f64>> {
        let mut timeout = 0;
        // SAFETY: a number.
        let armed = unsafe { ring3_card_queue_arm(self.open()?, &mut timeout) };
        let seconds = if timeout < 0 { -1.0 } else { f64::from(timeout) / 1000.0 };
        Ok((result(armed)? == 1).then_some(seconds))
    }

    /// Ends the queue.
    fn close(&mut self) {
        self.0 = None;
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the queue is closed")
}

impl CardQueue {
    fn open(&mut self) -> PyResult<&mut ring3::card::packets::CardQueue> {
        Ok(self.0.as_mut().ok_or_else(closed)?.get())
    }
}
