//! Removes serial numbers from a recording, so that it can be given away.
//!
//! # What is removed
//! From the answers of NVMe's Identify command, by their structure: serial number, FRU GUID,
//! subsystem name and all that is the vendor's own of the controller; NGUID, EUI64 and the vendor's
//! own of a namespace; the values of its identification descriptors. From the answers of ATA's
//! IDENTIFY DEVICE, by AHCI and by IDE: serial number, world wide name with what is reserved for
//! longer ones, the vendor's own, the medium's serial number, and the drive's own check sum is made
//! right again. And every one of the `secrets` that the caller knows, wherever the
//! device wrote it to memory, for devices that are none of these.
//!
//! # What is not
//! Data of the disk. A caller cleans recordings of commands that read none. Registers, but for an
//! IDE drive's data register: the address of a network card stays.
//!
//! # Replay
//! Bytes are replaced and never moved, and none that a driver acts on. A byte that is zero stays
//! so, and no other becomes zero: a driver that clears its memory is seen to write where it was not
//! zero, and so it does in the replay.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use ring3_device::Error;
use ring3_spec::ata::identify::SERIAL;
use ring3_spec::ata::opcode;

use super::{Bytes, End, Event, HIGHEST_ARENA, Header, Recording, Register, Stamped, Writer};

/// What stands in the place of bytes that were removed.
const FILLER: u8 = b'0';
/// Bytes of an answer of Identify. [NVMe 5.1.13]
const IDENTIFY: u64 = 4096;
/// Registers of the admin submission queue: its size in entries, and its address. [NVMe 3.1.4]
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
/// Bytes of an entry of it, and its opcode Identify. [NVMe 3.3.3.1, 5.1.13]
const ENTRY: u64 = 64;
const OPCODE_IDENTIFY: u8 = 0x06;
/// A command table of AHCI: where tables may begin, the frame that carries a command, and where its
/// first piece of memory is. [AHCI 4.2.3]
const TABLE: u64 = 128;
const FRAME_COMMAND: u8 = 0x27;
const FIRST_PIECE: usize = 0x80;
/// Registers of an IDE channel: data, and command. [ATA 5.2]
const DATA: u64 = 0;
const COMMAND: u64 = 7;
/// Bytes of an answer of IDENTIFY DEVICE, its words of the world wide name, and the value of its
/// last word's lower half that announces a check sum. [ACS-3 7.12.7]
const ATA_IDENTIFY: usize = 512;
const WORLD_WIDE_NAME: std::ops::Range<usize> = 108..112;
/// Words that are reserved behind it, those of the vendor, and the medium's serial number. Words
/// 117 and 118 stay: they are the size of a block. [ACS-3 7.12.7]
const LONG_NAME: std::ops::Range<usize> = 112..117;
const VENDORS: std::ops::Range<usize> = 129..160;
const MEDIUM: std::ops::Range<usize> = 176..206;
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
    /// The last command that an IDE channel was given, and its BAR.
    command: Option<(u8, u8)>,
}

impl<'a> Cleaner<'a> {
    fn new(secrets: &'a [Vec<u8>]) -> Self {
        let (memory, answers, drives) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { secrets, memory, queue: (0, 0), answers, drives, command: None }
    }

    /// Cleans events that belong together; how many had something to remove.
    fn clean(&mut self, events: &mut [Stamped]) -> u64 {
        match events.first() {
            Some(Stamped(_, Event::Read(..))) => return self.clean_reads(events),
            Some(Stamped(_, Event::Write(Register(bar, at, width), value))) => match (*bar, *at) {
                (_, COMMAND) if *width == 1 => self.command = Some((*bar, *value as u8)),
                (0, at) => self.note_queue(at, *width, *value),
                _ => {}
            },
            _ => {}
        }
        for Stamped(_, event) in &*events {
            match event {
                Event::Driver(bytes) if is_placed(bytes) => {
                    self.store(bytes);
                    self.note_commands(bytes);
                    self.note_tables(bytes);
                }
                Event::Device(bytes) if is_placed(bytes) => self.store(bytes),
                _ => {}
            }
        }
        let device = events.iter_mut().filter_map(|Stamped(_, event)| match event {
            Event::Device(bytes) if is_placed(bytes) => Some(bytes),
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

    /// Notes where the answers of IDENTIFY DEVICE commands in `bytes` will be.
    fn note_tables(&mut self, bytes: &Bytes) {
        let first = bytes.iova.saturating_sub(FIRST_PIECE as u64) / TABLE * TABLE;
        for at in (first..end_of(bytes)).step_by(TABLE as usize) {
            let table = self.load(at, FIRST_PIECE + 8);
            if table[0] != FRAME_COMMAND || table[1] != 0x80 {
                continue;
            }
            let place = number(&table[FIRST_PIECE..]);
            match table[2] {
                opcode::IDENTIFY | opcode::IDENTIFY_PACKET => drop(self.drives.insert(place)),
                _ => drop(self.drives.remove(&place)),
            }
        }
    }

    /// Removes what `bytes`, just written to memory, has of secrets.
    fn clean_memory(&mut self, bytes: &mut Bytes) -> bool {
        let (start, end) = (bytes.iova, end_of(bytes));
        // What began before these bytes, or ends behind them, is found as well.
        let around = start.saturating_sub(IDENTIFY);
        let mut image = self.load(around, (end - around + IDENTIFY) as usize);
        for (&place, &which) in &self.answers {
            if place >= around && place.saturating_add(IDENTIFY) <= around + image.len() as u64 {
                let at = (place - around) as usize;
                clean_identify(&mut image[at..at + IDENTIFY as usize], which);
            }
        }
        self.clean_bytes(&mut image);
        for &place in self.drives.range(around..) {
            let at = (place - around) as usize;
            if let Some(data) = image.get_mut(at..at.saturating_add(ATA_IDENTIFY)) {
                clean_ata(data);
            }
        }
        let own = (start - around) as usize..(end - around) as usize;
        let changed = image[own.clone()] != bytes.bytes;
        bytes.bytes.copy_from_slice(&image[own]);
        self.store(&Bytes { iova: around, bytes: image });
        changed
    }

    /// Removes what reads of an IDE drive's data register, one after the other, have of its answer
    /// to IDENTIFY DEVICE. Returns how many were changed.
    fn clean_reads(&mut self, reads: &mut [Stamped]) -> u64 {
        let Some(Stamped(_, Event::Read(Register(bar, DATA, width), _))) = reads.first() else {
            return 0;
        };
        let is_answer = [opcode::IDENTIFY, opcode::IDENTIFY_PACKET]
            .iter()
            .any(|&command| self.command == Some((*bar, command)));
        let width = usize::from(*width).clamp(1, 8);
        if !is_answer || reads.len() * width < ATA_IDENTIFY {
            return 0;
        }
        let values = reads.iter().filter_map(|Stamped(_, event)| match event {
            Event::Read(_, value) => Some(value.to_le_bytes()),
            _ => None,
        });
        let mut image: Vec<u8> = values.flat_map(|value| value.into_iter().take(width)).collect();
        clean_ata(&mut image[..ATA_IDENTIFY]);
        let mut changed = 0;
        for (Stamped(_, event), bytes) in reads.iter_mut().zip(image.chunks(width)) {
            let Event::Read(_, value) = event else { continue };
            let new = number(bytes);
            changed += u64::from(*value != new);
            *value = new;
        }
        changed
    }

    /// Removes the secrets.
    fn clean_bytes(&self, image: &mut [u8]) {
        for secret in self.secrets.iter().filter(|secret| secret.len() >= SHORTEST) {
            while let Some(at) = find(image, secret) {
                remove(&mut image[at..at + secret.len()]);
            }
        }
    }

    fn store(&mut self, bytes: &Bytes) {
        for (at, &byte) in (bytes.iova..).zip(&bytes.bytes) {
            let page = self.memory.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[(at % PAGE) as usize] = byte;
        }
    }

    fn load(&self, at: u64, len: usize) -> Vec<u8> {
        let byte =
            |at: u64| self.memory.get(&(at / PAGE)).map_or(0, |page| page[(at % PAGE) as usize]);
        (at..).take(len).map(byte).collect()
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted && window.iter().any(|&byte| byte != FILLER))
}

/// Removes serial numbers, world wide name and the vendor's own from an answer of IDENTIFY DEVICE,
/// and makes its check sum right again.
fn clean_ata(data: &mut [u8]) {
    if data.iter().all(|&byte| byte == 0) {
        return;
    }
    for words in [SERIAL, WORLD_WIDE_NAME, LONG_NAME, VENDORS, MEDIUM] {
        remove(&mut data[2 * words.start..2 * words.end]);
    }
    if data[ATA_IDENTIFY - 2] == CHECKED {
        let sum = data[..ATA_IDENTIFY - 1].iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
        data[ATA_IDENTIFY - 1] = sum.wrapping_neg();
    }
}

/// Removes what is not zero.
fn remove(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != 0).for_each(|byte| *byte = FILLER);
}

/// Whether `bytes` lie where an arena can be; a file may say otherwise.
fn is_placed(bytes: &Bytes) -> bool {
    bytes.iova <= HIGHEST_ARENA
}

/// The first address behind `bytes`.
fn end_of(bytes: &Bytes) -> u64 {
    bytes.iova + bytes.bytes.len() as u64
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
        0x00 => [104..128, 384..4096].into_iter().for_each(|range| remove(&mut data[range])),
        // The controller: serial number, FRU GUID, subsystem name, and what is the vendor's own.
        0x01 => {
            let own = [4..24, 112..128, 768..1024, 3072..4096];
            own.into_iter().for_each(|range| remove(&mut data[range]));
        }
        // Identification descriptors: type, length, two reserved bytes, value.
        0x03 => {
            let mut at = 0;
            while at + 4 <= data.len() && data[at + 1] > 0 {
                let end = (at + 4 + usize::from(data[at + 1])).min(data.len());
                // The command set is none of a device's own. [NVMe 5.1.13.2.3]
                if data[at] != 0x04 {
                    remove(&mut data[at + 4..end]);
                }
                at = end;
            }
        }
        _ => {}
    }
}
