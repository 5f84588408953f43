//! Network cards: one that ring3 drives for this program, and one that this program drives for
//! others.
//!
//! # A card that is opened
//! [`opened`] is the card, and [`packets`] its queue: the program receives and sends in batches,
//! in buffers of the card's memory. A packet costs no copy, no allocation and no lock.
//!
//! # A card that this program drives
//! Served on a socket, it is `remote:PATH` in other programs. [`nic`] is the card as the server of
//! `ring3_broker` has it, [`queue`] its one queue, [`state`] what lies between them and the
//! program, which calls what is here. The server has no thread: it takes turns in the program's own
//! loop, so that nobody is woken between a frame and the driver. A card that is lent to ring3d is
//! used by a thread of the library's.
//!
//! # Copies
//! What is sent is copied once: from the client's memory to wherever the program wants it, but for
//! the first bytes, which the server has looked at. What is received is copied once to the server's
//! memory, because nobody knows before whose it is, and by the server to its client's.
//!
//! # Waking
//! A card that is served has its clients' descriptor. Of one that is lent, the program's is raised
//! once until the program has said that it has heard; one that polls says nothing, and no system
//! call is made for it.
//!
//! # Trust
//! The program is trusted, as whoever loads a library is; other programs are not, and the server
//! does not trust them.

mod nic;
pub mod opened;
pub mod packets;
mod queue;
mod state;
#[cfg(test)]
mod tests;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use ring3_broker::server::card::{Access, CardServer, EmbeddedCardServer, Options};
use ring3_class::Error;
use ring3_class::net::{Checksum, Kind, Link, Mac, Multicast};
use ring3_driver::registry::Offer;

use crate::device::Device;
use crate::error::{done, fail, failed, hand_out, take_back};
use crate::log;
use nic::{Description, HostedNic};
use opened::OpenedCard;
use state::CardShared;

/// A network card: one that this program drives (ring3_card_new), or one that ring3 drives for it
/// (ring3_card_open).
pub struct Card(Side);

/// Who drives it.
enum Side {
    /// This program.
    Program(Box<DrivenCard>),
    /// A driver of ring3's, or the server of `remote:PATH`.
    Ring3(OpenedCard),
}

/// A card that this program drives.
struct DrivenCard {
    shared: Arc<CardShared>,
    nic: Arc<HostedNic>,
    server: Option<EmbeddedCardServer>,
    filter: Kept,
}

/// What a program says of its card, or ring3 of one that was opened (ring3_card_describe), whose
/// text is valid until it is closed.
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
    /// It makes checksums of TCP and UDP for what is sent, and says which it has found right of
    /// what it receives.
    pub checksums: bool,
    /// Most bytes of a packet of TCP that it cuts into frames, headers included; 0 if it cuts none.
    /// Only with checksums.
    pub segmented_max: u32,
}

/// A frame that is to be sent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CardFrame {
    /// Its bytes.
    pub len: u32,
    /// The card puts in the checksum that begins at this byte; 0 if there is none to make.
    pub checksum_start: u16,
    /// Where that belongs, from its first byte on. The sum of what is not in the frame stands
    /// there.
    pub checksum_offset: u16,
    /// The card cuts it into frames with so many bytes of payload each; 0 if not.
    pub segment: u16,
    /// Bytes of the headers of each of these frames.
    pub headers: u16,
    /// They are of IPv6.
    pub ipv6: bool,
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
    let description = Description {
        model,
        mac: Mac(info.mac),
        mtu: (info.mtu_min, info.mtu_max),
        checksums: info.checksums,
        segmented: if info.checksums { info.segmented_max } else { 0 },
    };
    // SAFETY: the caller's.
    unsafe { hand_out(DrivenCard::new(description).map(Card::of), card) }
}

/// Serves the card to other programs at the socket `access`: a path, and behind it terms,
/// `PATH,mac=52:54:00:12:34:56,memory=32M`, as `ring3 serve net` takes them. From now on the
/// program calls ring3_card_turn: when ring3_card_fd is readable, when it has received or sent
/// frames, and after it has said anything of the card.
///
/// # Safety
/// `access` is a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_serve(card: &mut Card, access: *const c_char) -> c_int {
    let Some(card) = card.driven_mut() else { return not_driven() };
    // SAFETY: the caller's.
    match unsafe { CStr::from_ptr(access) }.to_string_lossy().parse::<Access>() {
        Ok(access) => done(card.serve(access)),
        Err(text) => fail(libc::EINVAL, text),
    }
}

/// Gives the card to ring3d, which has leased `device` to this program, the card's, and makes an
/// interface of it. When ring3d wants the driver to end, ring3_card_take says -ESHUTDOWN: the
/// program closes the card, then the device, and ends.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_lend(card: &Card, device: &Device) -> c_int {
    let Some(card) = card.driven() else { return not_driven() };
    let Some(leased) = &device.leased else {
        return fail(
            libc::EINVAL,
            "the device is this program's own: ring3_card_serve shares its card".into(),
        );
    };
    let shared = card.shared.clone();
    done(leased.hand_to_supervisor(Offer::Nic(card.nic.clone()), Box::new(move || shared.stop())))
}

/// Ends the handle. A card that this program drives is taken from whoever uses it; a device that
/// was opened is given up when its queue is closed, too.
///
/// # Safety
/// `card` was made or opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_close(card: *mut Card) {
    // SAFETY: the caller's.
    unsafe { take_back(card) };
}

/// Says how the link is; a speed of 0 Mbit/s is one that is not known.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_set_link(card: &Card, up: bool, mbits: u32, full_duplex: bool) {
    let Some(card) = card.driven() else { return };
    card.shared.set_link(Link {
        up,
        speed: (mbits != 0).then_some(mbits),
        full_duplex: Some(full_duplex),
    });
}

/// Says how many frames the device has lost since it was opened for want of room: they are counted
/// with those for which the card's users had none.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_set_missed(card: &Card, frames: u64) {
    let Some(card) = card.driven() else { return };
    card.shared.set_missed(frames);
}

/// A frame has come from the wire, without its check sequence: copies it to whoever uses the card.
/// `checked` says that the card has found its checksum right. 0, or -ENOBUFS if it was lost, for
/// want of a buffer or because nobody wants it; that is counted.
///
/// # Safety
/// `frame` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_receive(
    card: &Card,
    frame: *const c_void,
    len: usize,
    checked: bool,
) -> c_int {
    let Some(card) = card.driven() else { return not_driven() };
    // SAFETY: the caller's.
    let frame = unsafe { std::slice::from_raw_parts(frame.cast::<u8>(), len) };
    if card.shared.receive(frame, checked) { 0 } else { -libc::ENOBUFS }
}

/// What is readable, for poll and epoll, when there are frames to send or another filter to set: of
/// a card that is served or lent. A sleep on it may also end with EINTR then. Reading it is
/// ring3_card_heard's, or ring3_card_turn's.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_fd(card: &Card) -> c_int {
    let Some(card) = card.driven() else { return not_driven() };
    match &card.server {
        Some(server) => server.descriptor().as_raw_fd(),
        None => card.shared.wanted().as_fd().as_raw_fd(),
    }
}

/// Of a card that is served: hears its users, gives them what was received, and takes what they
/// send. Then look, by ring3_card_take and ring3_card_filter, until there is nothing. 1 if there is
/// more to do at once, 0 if the program may sleep until the descriptor is readable or it has
/// something for the card's users; or what has ended the server, which ring3_error() says. Of a
/// card that is lent it does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_turn(card: &mut Card) -> c_int {
    let Some(card) = card.driven_mut() else { return not_driven() };
    match card.server.as_mut().map(EmbeddedCardServer::run_once) {
        Some(Ok(more)) => more.into(),
        Some(Err(error)) => failed(&error),
        None => 0,
    }
}

/// Of a card that is lent: ends the readability of the descriptor. Then look, by ring3_card_take
/// and ring3_card_filter, until there is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_heard(card: &Card) {
    let Some(card) = card.driven() else { return };
    card.shared.heard();
}

/// What is to be sent next, which stays where it is: 1 and `frame`, 0 if there is nothing, or
/// -ESHUTDOWN as ring3_card_take.
///
/// # Safety
/// `frame` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_next(card: &Card, frame: *mut CardFrame) -> c_int {
    let Some(card) = card.driven() else { return not_driven() };
    if card.shared.is_stopped() {
        return fail(libc::ESHUTDOWN, "the driver is asked to end".into());
    }
    let Some((len, meta)) = card.shared.next() else { return 0 };
    let mut next = CardFrame { len, ..CardFrame::default() };
    if let Checksum::Partial { start, offset } = meta.checksum() {
        (next.checksum_start, next.checksum_offset) = (start, offset);
    }
    if let Some(cut) = meta.segmentation() {
        (next.segment, next.headers, next.ipv6) = (cut.size, cut.headers, cut.kind == Kind::Tcp6);
    }
    // SAFETY: the caller's.
    unsafe { frame.write(next) };
    1
}

/// The next frame is not sent, for want of a link for example: it is counted as lost.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_lose(card: &Card) {
    let Some(card) = card.driven() else { return };
    card.shared.lose();
}

/// Copies the next frame to be sent to `room` bytes at `frame`, and counts it as sent. Its bytes, 0
/// if there is none, -EMSGSIZE if it is longer than `room`: it is lost then; or -ESHUTDOWN if the
/// program is to end.
///
/// # Safety
/// `frame` points to `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_take(card: &Card, frame: *mut c_void, room: usize) -> c_int {
    let Some(card) = card.driven() else { return not_driven() };
    if card.shared.is_stopped() {
        return fail(libc::ESHUTDOWN, "the driver is asked to end".into());
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

/// What the card shall let through: 1 and `filter` if that has changed since the last call, 0 if
/// not. Who uses the card waits until ring3_card_filtered says that it is set.
///
/// # Safety
/// `filter` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_filter(card: &mut Card, filter: *mut CardFilter) -> c_int {
    let Some(card) = card.driven_mut() else { return not_driven() };
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
    let Some(card) = card.driven() else { return };
    card.shared.filter_set();
}

/// The error for a function of driven cards.
fn not_driven() -> c_int {
    fail(
        libc::EINVAL,
        "the card was opened by ring3_card_open: this program does not drive it".into(),
    )
}

impl Card {
    fn of(driven: DrivenCard) -> Self {
        Self(Side::Program(Box::new(driven)))
    }

    fn driven(&self) -> Option<&DrivenCard> {
        match &self.0 {
            Side::Program(driven) => Some(driven),
            Side::Ring3(_) => None,
        }
    }

    fn driven_mut(&mut self) -> Option<&mut DrivenCard> {
        match &mut self.0 {
            Side::Program(driven) => Some(driven),
            Side::Ring3(_) => None,
        }
    }
}

impl DrivenCard {
    fn new(description: Description) -> Result<Self, Error> {
        let shared = Arc::new(CardShared::new(description.mac)?);
        let nic = Arc::new(HostedNic::new(description, shared.clone())?);
        Ok(Self { shared, nic, server: None, filter: Kept::default() })
    }

    fn serve(&mut self, access: Access) -> Result<(), Error> {
        if self.server.is_some() {
            return Err(Error::Busy("the card is served already".into()));
        }
        self.server =
            Some(CardServer::bind(self.nic.clone(), vec![access], Options::default())?.nested()?);
        // Only now: to be bound, the server has set no filter.
        self.shared.nest();
        Ok(())
    }
}

impl Drop for DrivenCard {
    fn drop(&mut self) {
        self.shared.close();
    }
}
