//! A network card that ring3 drives for this program.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Arc, Mutex};

use ring3_backend::{Uri, UriError};
use ring3_class::Error;
use ring3_class::net::{Filter, Nic};
use ring3_driver::Interrupts;
use ring3_driver::registry::Settings;
use ring3_host::open::{Claim, Requirements};

use super::{Card, CardInfo, Side};
use crate::dma::Held;
use crate::error::{done, fail, failed, hand_out, not_open};
use crate::log;

/// What a program asks for when it opens a card. Zeroes are the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CardOptions {
    /// Bytes of memory, beside what the driver needs, for the buffers of its queue; 0 for 8 MiB.
    pub arena: u64,
    /// The card raises no interrupts: its queue is polled.
    pub polled: bool,
    /// The user has said that no IOMMU need stand between the device and memory.
    pub unprotected: bool,
}

/// The state of the wire.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CardLink {
    /// Megabits per second; 0 if the card does not know.
    pub mbits: u32,
    /// There is somebody at the other end.
    pub up: bool,
    /// Both ends may send at once; false if the card does not know.
    pub full_duplex: bool,
}

/// A card, and what it is a part of.
pub(crate) struct OpenedCard {
    pub(crate) nic: Arc<dyn Nic>,
    /// Behind the card, which is dropped first.
    pub(crate) device: Held,
    name: CString,
    model: CString,
}

/// Bytes for buffers if the program does not say how many.
const ARENA: u64 = 8 << 20;
/// Bytes that a driver needs for its rings, and for what it copies.
const RINGS: usize = 8 << 20;

/// Opens the card that `uri` names, starts its driver, and claims the device exclusively:
/// `vfio:0000:01:00.0`, `qtest:e1000e`, `qtest:virtio-net-pci`, `vfio-user:PATH`, `sim:e1000`; or
/// `remote:PATH`, which another process drives and shares. `options` may be NULL.
///
/// # Safety
/// `uri` is a text, and `card` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_open(
    uri: *const c_char,
    options: *const CardOptions,
    card: *mut *mut Card,
) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let (uri, options) =
        unsafe { (CStr::from_ptr(uri), options.as_ref().copied().unwrap_or_default()) };
    let Ok(uri) = uri.to_str() else {
        return fail(libc::EINVAL, "the device's name is not UTF-8".into());
    };
    match OpenedCard::open(uri, options) {
        // SAFETY: the caller's.
        Ok(opened) => unsafe { hand_out(Ok(Card(Side::Ring3(opened))), card) },
        Err(error) => not_open(&error),
    }
}

/// The name of an opened card, for messages. NULL of one that this program drives. Valid until it
/// is closed.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_name(card: &Card) -> *const c_char {
    card.opened().map_or(std::ptr::null(), |opened| opened.name.as_ptr())
}

/// What an opened card is and can.
///
/// # Safety
/// `info` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_describe(card: &Card, info: *mut CardInfo) -> c_int {
    let Some(opened) = card.opened() else { return not_opened() };
    let said = opened.nic.info();
    let segmented = said.offloads.tso4 && said.offloads.tso6;
    let made = CardInfo {
        model: opened.model.as_ptr(),
        mac: said.mac.0,
        mtu_min: said.mtu.0,
        mtu_max: said.mtu.1,
        checksums: said.offloads.tx_checksum && said.offloads.rx_checksum,
        segmented_max: if segmented { said.max_segmented } else { 0 },
    };
    // SAFETY: the caller's.
    unsafe { info.write(made) };
    0
}

/// How the wire of an opened card is now.
///
/// # Safety
/// `link` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_card_get_link(card: &Card, link: *mut CardLink) -> c_int {
    let Some(opened) = card.opened() else { return not_opened() };
    match opened.nic.link() {
        Ok(now) => {
            let said = CardLink {
                mbits: now.speed.unwrap_or(0),
                up: now.up,
                full_duplex: now.full_duplex.unwrap_or(false),
            };
            // SAFETY: the caller's.
            unsafe { link.write(said) };
            0
        }
        Err(error) => failed(&error),
    }
}

/// Has an opened card let everything through, whoever it is for, or again only what is for its own
/// address and for everybody, as it does when it was opened.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_card_set_promiscuous(card: &Card, promiscuous: bool) -> c_int {
    let Some(opened) = card.opened() else { return not_opened() };
    let filter = Filter { promiscuous, ..Filter::own(opened.nic.info().mac) };
    done(opened.nic.set_filter(&filter))
}

/// The error for a function of opened cards.
pub(super) fn not_opened() -> c_int {
    fail(libc::EINVAL, "this program drives the card: ring3_card_open opens others".into())
}

impl Card {
    pub(super) fn opened(&self) -> Option<&OpenedCard> {
        match &self.0 {
            Side::Ring3(opened) => Some(opened),
            Side::Program(_) => None,
        }
    }
}

impl OpenedCard {
    fn open(uri: &str, options: CardOptions) -> Result<Self, ring3_host::Error> {
        let failed = |source| ring3_host::Error::Device { device: uri.to_owned(), source };
        let device: Uri = uri.parse().map_err(|error: UriError| failed(error.into()))?;
        let buffers = if options.arena == 0 { ARENA } else { options.arena };
        let arena = usize::try_from(buffers)
            .ok()
            .and_then(|bytes| bytes.checked_add(RINGS))
            .ok_or_else(|| failed(Error::Invalid(format!("an arena of {buffers} bytes"))))?;
        let interrupts = if options.polled { Interrupts::Polled } else { Interrupts::Auto };
        let settings = Settings { interrupts, ..Settings::default() };
        let claim = Claim { unprotected: options.unprotected, settings, ..Claim::new(device) };
        let needs = Requirements { queues: 1, arena, max_transfer: None, poll: None };
        let attached = claim.open(&needs)?;
        let [nic] = &attached.nics[..] else {
            return Err(ring3_host::Error::NoNic { device: uri.to_owned() });
        };
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let (name, model) = (text(&nic.name()), text(&nic.info().model));
        Ok(Self { nic: nic.clone(), device: Arc::new(Mutex::new(attached)), name, model })
    }
}
