//! Removes serial numbers from a recording, so that it can be given away.
//!
//! # What is removed
//! From the answers of NVMe's Identify command, by their structure: serial number, FRU GUID,
//! subsystem name and all that is the vendor's own of the controller; NGUID, EUI64 and the vendor's
//! own of a namespace; the values of its identification descriptors. From the answers of ATA's
//! IDENTIFY DEVICE: serial number, world wide name, and the drive's own check sum is made right
//! again. And every one of the `secrets` that the caller knows, wherever the device wrote it to
//! memory.
//!
//! # What is not
//! Data of the disk. A caller cleans recordings of commands that read none. Registers, but for an
//! IDE drive's data register: the address of a network card stays.
//!
//! # Replay
//! Bytes are replaced and never moved, and none that a driver acts on, so that the cleaned recording
//! replays as the first one does.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use ring3_device::Error;
use ring3_spec::ata::identify::SERIAL;

use super::{Bytes, End, Event, Header, Recording, Register, Stamped, Writer};

/// What stands in the place of text that was removed.
const FILLER: u8 = b'0';
/// Bytes of an answer of Identify. [NVMe 5.1.13]
const IDENTIFY: u64 = 4096;
/// Registers of the admin submission queue: its size in entries, and its address. [NVMe 3.1.4]
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
/// Bytes of an entry of it, and its opcode Identify. [NVMe 3.3.3.1, 5.1.13]
const ENTRY: u64 = 64;
const OPCODE_IDENTIFY: u8 = 0x06;
/// Bytes of an answer of IDENTIFY DEVICE, its words of the world wide name, and the value of its
/// last word's lower half that announces a check sum. [ACS-3 7.12.7]
const ATA_IDENTIFY: usize = 512;
const WORLD_WIDE_NAME: std::ops::Range<usize> = 108..112;
const CHECKED: u8 = 0xa5;
/// Bytes of a secret, at least: shorter ones are found by accident.
const SHORTEST: usize = 4;
/// Bytes of the parts of memory that are kept apart while a recording is read.
const PAGE: u64 = 4096;

/// Writes `recording` to `file` without serial numbers and without any of `secrets`, as the
/// recording of `command` with `device`. Returns how many events were changed.
pub fn clean(
    mut recording: Recording,
    file: impl Write,
    secrets: &[Vec<u8>],
    (device, command): (String, Vec<String>),
) -> Result<u64, Error> {
    let failed = |error: io::Error| Error::os("writing the cleaned recording", error);
    let header = Header { device, command, ..recording.header.clone() };
    let mut writer = Writer::new(file, &header).map_err(failed)?;
    let (mut cleaner, mut end, mut changed) = (Cleaner::new(secrets), End::default(), 0);
    let mut pending = Vec::new();
    loop {
        let event = recording.next_stamped()?;
        if !event.as_ref().is_some_and(|Stamped(_, event)| goes_on(event, &pending)) {
            changed += cleaner.clean(&mut pending);
            for stamped in pending.drain(..) {
                writer.add(&stamped).map_err(failed)?;
            }
        }
        let Some(stamped) = event else { break };
        end.events += 1;
        pending.push(stamped);
    }
    writer.end(end).map_err(failed)?;
    Ok(changed)
}

/// Events that are cleaned together, at most.
const TOGETHER: usize = 4096;

/// Whether `event` belongs to those before it: reads of one register, which an IDE drive's answer
/// comes by, or what the device has written to memory, of which equal bytes are left out.
fn goes_on(event: &Event, before: &[Stamped]) -> bool {
    let together = match (event, before.last()) {
        (Event::Read(register, _), Some(Stamped(_, Event::Read(last, _)))) => register == last,
        (Event::Device(_), Some(Stamped(_, Event::Device(_)))) => true,
        _ => false,
    };
    together && before.len() < TOGETHER
}

/// What is known of a recording so far.
struct Cleaner<'a> {
    secrets: &'a [Vec<u8>],
    /// Memory as driver and device have written it, cleaned.
    memory: BTreeMap<u64, Vec<u8>>,
    /// Where NVMe's admin submission queue is, and its entries.
    queue: (u64, u64),
    /// Where answers of Identify go, and which each is (CNS).
    answers: BTreeMap<u64, u8>,
    /// Where answers of IDENTIFY DEVICE are.
    drives: BTreeSet<u64>,
}

impl<'a> Cleaner<'a> {
    fn new(secrets: &'a [Vec<u8>]) -> Self {
        let (memory, answers, drives) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { secrets, memory, queue: (0, 0), answers, drives }
    }

    /// Cleans events that belong together; how many had something to remove.
    fn clean(&mut self, events: &mut [Stamped]) -> u64 {
        match events.first() {
            Some(Stamped(_, Event::Read(..))) => return self.clean_reads(events),
            Some(Stamped(_, Event::Write(Register(0, at, width), value))) => {
                self.note_queue(*at, *width, *value);
            }
            _ => {}
        }
        for Stamped(_, event) in &*events {
            if let Event::Driver(bytes) | Event::Device(bytes) = event {
                self.store(bytes);
            }
            if let Event::Driver(bytes) = event {
                self.note_commands(bytes);
            }
        }
        let device = events.iter_mut().filter_map(|Stamped(_, event)| match event {
            Event::Device(bytes) => Some(bytes),
            _ => None,
        });
        device.map(|bytes| u64::from(self.clean_memory(bytes))).sum()
    }

    fn note_queue(&mut self, at: u64, width: u8, value: u64) {
        let (queue, entries) = &mut self.queue;
        match (at, width) {
            (AQA, _) => *entries = (value & 0xfff) + 1,
            (ASQ, 8) => *queue = value,
            (ASQ, _) => *queue = *queue >> 32 << 32 | value & 0xffff_ffff,
            (at, 4) if at == ASQ + 4 => *queue = *queue & 0xffff_ffff | value << 32,
            _ => {}
        }
    }

    /// Notes where the answers of Identify commands in `bytes` will be.
    fn note_commands(&mut self, bytes: &Bytes) {
        let (queue, entries) = self.queue;
        let (end, behind) = (queue.saturating_add(entries * ENTRY), end_of(bytes));
        if queue == 0 || bytes.iova >= end || behind <= queue {
            return;
        }
        let first = (bytes.iova.max(queue) - queue) / ENTRY;
        let last = (behind.min(end) - 1 - queue) / ENTRY;
        for index in first..=last {
            let entry = self.load(queue + index * ENTRY, ENTRY as usize);
            let place = number(&entry[24..32]);
            match entry[0] {
                OPCODE_IDENTIFY => drop(self.answers.insert(place, entry[40])),
                _ => drop(self.answers.remove(&place)),
            }
        }
    }

    /// Removes what `bytes`, just written to memory, has of secrets.
    fn clean_memory(&mut self, bytes: &mut Bytes) -> bool {
        let (start, end) = (bytes.iova, end_of(bytes));
        if end - start < bytes.bytes.len() as u64 {
            return false;
        }
        // What began before these bytes, or ends behind them, is found as well.
        let around = start.saturating_sub(IDENTIFY);
        let mut image = self.load(around, (end - around + IDENTIFY) as usize);
        let before = image.clone();
        for (&place, &which) in &self.answers {
            if place >= around && place + IDENTIFY <= around + image.len() as u64 {
                let at = (place - around) as usize;
                clean_identify(&mut image[at..at + IDENTIFY as usize], which);
            }
        }
        let found = self.clean_bytes(&mut image);
        self.drives.extend(found.into_iter().map(|at| around + at as u64));
        for &place in self.drives.range(around..) {
            let at = (place - around) as usize;
            if let Some(data) = image.get_mut(at..at.saturating_add(ATA_IDENTIFY)) {
                clean_ata(data);
            }
        }
        let own = (start - around) as usize..(end - around) as usize;
        if image[own.clone()] == before[own] {
            return false;
        }
        let at = (start - around) as usize;
        bytes.bytes.copy_from_slice(&image[at..at + (end - start) as usize]);
        self.store(&Bytes { iova: around, bytes: image });
        true
    }

    /// Removes what reads of one register, one after the other, have of secrets: an IDE drive's
    /// answer. Returns how many were changed.
    fn clean_reads(&mut self, reads: &mut [Stamped]) -> u64 {
        let Some(Stamped(_, Event::Read(Register(_, _, width), _))) = reads.first() else {
            return 0;
        };
        let width = usize::from(*width).clamp(1, 8);
        if reads.len() * width < ATA_IDENTIFY {
            return 0;
        }
        let values = reads.iter().filter_map(|Stamped(_, event)| match event {
            Event::Read(_, value) => Some(value.to_le_bytes()),
            _ => None,
        });
        let mut image: Vec<u8> = values.flat_map(|value| value.into_iter().take(width)).collect();
        for at in self.clean_bytes(&mut image) {
            if let Some(data) = image.get_mut(at..at + ATA_IDENTIFY) {
                clean_ata(data);
            }
        }
        let mut changed = 0;
        for (Stamped(_, event), bytes) in reads.iter_mut().zip(image.chunks(width)) {
            let Event::Read(_, value) = event else { continue };
            let new = number(bytes);
            changed += u64::from(*value != new);
            *value = new;
        }
        changed
    }

    /// Removes the secrets as they are, and as ATA writes text: the two bytes of each word
    /// exchanged. Returns where answers of IDENTIFY DEVICE begin.
    fn clean_bytes(&self, image: &mut [u8]) -> Vec<usize> {
        let mut drives = Vec::new();
        for secret in self.secrets.iter().filter(|secret| secret.len() >= SHORTEST) {
            for pad in [&b""[..], b" "] {
                let mut text = [pad, secret].concat();
                text.resize(text.len().next_multiple_of(2), b' ');
                let swapped: Vec<u8> =
                    text.chunks(2).flat_map(|pair| pair.iter().rev().copied()).collect();
                while let Some(at) = find(image, &swapped) {
                    image[at..at + swapped.len()].fill(FILLER);
                    // The text may have spaces before it.
                    let spaces = image[..at].iter().rev().take_while(|&&byte| byte == b' ').count();
                    let before = spaces.min(2 * SERIAL.len()) + 2 * SERIAL.start;
                    drives.extend(at.checked_sub(before));
                }
            }
            while let Some(at) = find(image, secret) {
                image[at..at + secret.len()].fill(FILLER);
            }
        }
        drives
    }

    fn store(&mut self, bytes: &Bytes) {
        for (at, &byte) in (bytes.iova..).zip(&bytes.bytes) {
            let page = self.memory.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(at % PAGE) as usize] = byte;
        }
    }

    fn load(&self, at: u64, len: usize) -> Vec<u8> {
        let byte = |at: u64| {
            self.memory.get(&(at / PAGE)).map_or(0, |page| page[(at % PAGE) as usize])
        };
        (at..).take(len).map(byte).collect()
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| {
        window == wanted && window.iter().any(|&byte| byte != FILLER)
    })
}

/// Removes the world wide name from an answer of IDENTIFY DEVICE, and makes its check sum right
/// again.
fn clean_ata(data: &mut [u8]) {
    data[2 * WORLD_WIDE_NAME.start..2 * WORLD_WIDE_NAME.end].fill(0);
    if data[ATA_IDENTIFY - 2] == CHECKED {
        let sum = data[..ATA_IDENTIFY - 1].iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
        data[ATA_IDENTIFY - 1] = sum.wrapping_neg();
    }
}

/// The first address behind `bytes`, or the highest.
fn end_of(bytes: &Bytes) -> u64 {
    bytes.iova.saturating_add(bytes.bytes.len() as u64).min(u64::MAX - IDENTIFY)
}

/// A number of up to eight bytes, the lowest first.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// Removes what tells one device from another in the answer of Identify `which`. [NVMe 5.1.13.2]
fn clean_identify(data: &mut [u8], which: u8) {
    if data.iter().all(|&byte| byte == 0) {
        return;
    }
    match which {
        // A namespace: NGUID, EUI64, and what is the vendor's own. [NVM 4.1.5.1]
        0x00 => [104..128, 384..4096].into_iter().for_each(|range| data[range].fill(0)),
        // The controller: serial number, FRU GUID, subsystem name, and what is the vendor's own.
        0x01 => {
            data[4..24].fill(FILLER);
            [112..128, 768..1024, 3072..4096].into_iter().for_each(|range| data[range].fill(0));
        }
        // Identification descriptors: type, length, two reserved bytes, value.
        0x03 => {
            let mut at = 0;
            while at + 4 <= data.len() && data[at + 1] > 0 {
                let end = (at + 4 + usize::from(data[at + 1])).min(data.len());
                // The command set is none of a device's own. [NVMe 5.1.13.2.3]
                if data[at] != 0x04 {
                    data[at + 4..end].fill(0);
                }
                at = end;
            }
        }
        _ => {}
    }
}
