//! A network card whose driver is this program, for other programs: served on a socket, it is `remote:PATH` there.
//!
//! # Shape
//! [`nic`] is the card as the server of `ring3_broker` has it, [`queue`] its one queue, [`state`] what lies between them and the program, which calls what is here.
//! The server has a thread of its own, so that the program's loop stays the program's.
//!
//! # Copies
//! A frame is copied once each way between the program's memory and the server's, and by the server to and from its clients'.
//!
//! # Trust
//! The program is trusted, as whoever loads a library is; other programs are not, and the server does not trust them.

mod nic;
mod queue;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use ring3_broker::server::card::{Access, Options, Server};
use ring3_class::Error;
use ring3_class::net::{Link, Mac, Multicast};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{done, fail, failed, hand_out, take_back};
use crate::log;
use nic::{Description, HostedNic};
use state::Shared;

/// A network card that this program drives.
pub struct Card {
    shared: Arc<Shared>,
    nic: Arc<HostedNic>,
    server: Option<Serving>,
    filter: Kept,
}

struct Serving {
    stop: OwnedFd,
    thread: JoinHandle<Result<(), Error>>,
}

/// What a program says of its card.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CardInfo {
    /// Its maker's name for it; text.
    pub model: *const c_char,
    /// Its address.
    pub mac: [u8; 6],
    /// The least and the largest packet without its Ethernet header, bytes.
    pub mtu_min: u32,
    /// See mtu_min.
    pub mtu_max: u32,
}

/// What a card shall let through: what is for its own address and for everybody, and this.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CardFilter {
    /// Everything, whoever it is for.
    pub promiscuous: bool,
    /// Every group; `groups` is empty then.
    pub all_groups: bool,
    /// Further addresses, `unicast_count` of them. Valid until the next call of ring3_card_filter.
    pub unicast: *const [u8; 6],
    /// Groups, `group_count` of them. Valid as long.
    pub groups: *const [u8; 6],
    /// How many.
    pub unicast_count: usize,
    /// How many.
    pub group_count: usize,
}

/// What the last filter's pointers point to.
#[derive(Default)]
struct Kept {
    unicast: Vec<[u8; 6]>,
    groups: Vec<[u8; 6]>,
}

/// Makes a card that nobody uses yet, whose link is down.
///
/// # Safety
/// `info` and its model are valid, and `card` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_new(info: &CardInfo, card: *mut *mut Card) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let model = unsafe { CStr::from_ptr(info.model) }.to_string_lossy().into_owned();
    let description = Description { model, mac: Mac(info.mac), mtu: (info.mtu_min, info.mtu_max) };
    // SAFETY: the caller's.
    unsafe { hand_out(Card::new(description), card) }
}

/// Serves the card to other programs at the socket `access`: a path, and behind it terms, `PATH,mac=52:54:00:12:34:56,memory=32M`, as `ring3 serve net` takes them. From now on
/// a thread of the library calls nothing of the program's, but takes and gives frames through the card.
///
/// # Safety
/// `access` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_serve(card: &mut Card, access: *const c_char) -> c_int {
    // SAFETY: the caller's.
    match unsafe { CStr::from_ptr(access) }.to_string_lossy().parse::<Access>() {
        Ok(access) => done(card.serve(access)),
        Err(text) => fail(libc::EINVAL, text),
    }
}

/// Takes the card from whoever uses it, and ends the handle.
///
/// # Safety
/// `card` was made and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_close(card: *mut Card) {
    // SAFETY: the caller's.
    unsafe { take_back(card) };
}

/// Says how the link is; a speed of 0 Mbit/s is one that is not known.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_set_link(card: &Card, up: bool, mbits: u32, full_duplex: bool) {
    card.shared.set_link(Link { up, speed: (mbits != 0).then_some(mbits), full_duplex: Some(full_duplex) });
}

/// A frame has come from the wire, without its check sequence: copies it to whoever uses the card. 0, or -ENOBUFS if it was lost, for want of a buffer or because nobody wants it; that is counted.
///
/// # Safety
/// `frame` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_receive(card: &Card, frame: *const c_void, len: usize) -> c_int {
    // SAFETY: the caller's.
    let frame = unsafe { std::slice::from_raw_parts(frame.cast::<u8>(), len) };
    if card.shared.receive(frame) { 0 } else { -libc::ENOBUFS }
}

/// What is readable, for poll and epoll, when there are frames to send or another filter to set. Reading it is ring3_card_heard's.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_fd(card: &Card) -> c_int {
    card.shared.wanted().as_fd().as_raw_fd()
}

/// Ends the readability of the descriptor. Then look, by ring3_card_take and ring3_card_filter, until there is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_heard(card: &Card) {
    card.shared.heard();
}

/// Copies the next frame to be sent to `room` bytes at `frame`, and counts it as sent. Its bytes, 0 if there is none, -EMSGSIZE if it is longer than `room`: it is lost then; or -EPIPE if
/// the card is not served any more, for the reason that ring3_error() says.
///
/// # Safety
/// `frame` points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_take(card: &Card, frame: *mut c_void, room: usize) -> c_int {
    if let Some(why) = card.shared.ended() {
        return fail(libc::EPIPE, why.into());
    }
    // SAFETY: the caller's.
    let frame = unsafe { std::slice::from_raw_parts_mut(frame.cast::<u8>(), room) };
    match card.shared.take(frame) {
        Ok(len) => len.min(c_int::MAX as usize) as c_int,
        Err(error) => {
            failed(&error);
            -libc::EMSGSIZE
        }
    }
}

/// What the card shall let through: 1 and `filter` if that has changed since the last call, 0 if not, -EPIPE as ring3_card_take. Who uses the card waits until ring3_card_filtered says that it is set.
///
/// # Safety
/// `filter` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_filter(card: &mut Card, filter: *mut CardFilter) -> c_int {
    if let Some(why) = card.shared.ended() {
        return fail(libc::EPIPE, why.into());
    }
    let Some(wish) = card.shared.filter() else { return 0 };
    let bytes = |addresses: &[Mac]| addresses.iter().map(|mac| mac.0).collect();
    let groups: &[Mac] = match &wish.multicast {
        Multicast::Of(groups) => groups,
        Multicast::All => &[],
    };
    card.filter = Kept { unicast: bytes(&wish.unicast), groups: bytes(groups) };
    let Kept { unicast, groups } = &card.filter;
    let answer = CardFilter {
        promiscuous: wish.promiscuous,
        all_groups: wish.multicast == Multicast::All,
        unicast: unicast.as_ptr(),
        groups: groups.as_ptr(),
        unicast_count: unicast.len(),
        group_count: groups.len(),
    };
    // SAFETY: the caller's.
    unsafe { filter.write(answer) };
    1
}

/// The filter that was taken last is set.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_filtered(card: &Card) {
    card.shared.filter_set();
}

impl Card {
    fn new(description: Description) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(description.mac)?);
        let nic = Arc::new(HostedNic::new(description, shared.clone())?);
        Ok(Self { shared, nic, server: None, filter: Kept::default() })
    }

    fn serve(&mut self, access: Access) -> Result<(), Error> {
        if self.server.is_some() {
            return Err(Error::Busy("the card is served already".into()));
        }
        let server = Server::bind(self.nic.clone(), vec![access], Options::default())?;
        let failed = |error| Error::os("creating an eventfd", error);
        let stop = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(failed)?;
        let call = stop.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("ring3-serve".into());
        let thread = thread
            .spawn(move || {
                let ended = server.run(&[call.as_fd()], || true);
                if let Err(error) = &ended {
                    tracing::error!(%error, "the card is not served any more");
                    shared.end(error);
                }
                ended
            })
            .map_err(|error| Error::os("starting the server's thread", error))?;
        self.server = Some(Serving { stop, thread });
        Ok(())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let Some(Serving { stop, thread }) = self.server.take() else { return };
        self.shared.close();
        let _ = rustix::io::write(&stop, &1u64.to_ne_bytes());
        let _ = thread.join();
    }
}
