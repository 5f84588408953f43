//! Recordings: `ring3_decorator::recording`, and a replay of what was read.
//!
//! The attacker is whoever hands a recording to a developer, in a report of an error. The input is
//! the content of the blocks of a file, whose check sums are made right on request; or any file.
//!
//! Promises: no panic; memory is bounded whatever a block says of its length; the same file says
//! the same; a replay of it answers, or the device is gone.

use std::io::Cursor;

use crate::{Input, memory};
use ring3_decorator::Replay;
use ring3_decorator::recording::{Event, Recording};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};

/// Bytes of memory: two blocks of 256 KiB, what unpacks them, and the events of one.
const MEMORY: usize = 48 << 20;
const MAGIC: &[u8; 8] = b"R3RECORD";
/// Events that are read of one file.
const MOST: usize = 1 << 18;
/// Bytes of the arena that a replay is made of: a replay maps all of it.
const ARENA: u64 = 1 << 20;

/// The file that `input` describes.
fn file(input: &mut Input<'_>) -> Vec<u8> {
    let how = input.u8();
    if how < 16 {
        return input.rest().to_vec();
    }
    let mut file = MAGIC.to_vec();
    file.extend(if how < 32 { input.u32() } else { 4 }.to_le_bytes());
    for number in 0..16 {
        if input.is_empty() {
            break;
        }
        let (kind, packing) = (input.u8(), input.u8());
        let len = usize::from(input.u16());
        let content = input.bytes(len);
        let packed = if packing < 200 { pack(content) } else { content.to_vec() };
        let kind = match kind {
            0..=239 if number == 0 => 1,
            0..=219 => 2,
            220..=239 => 3,
            kind => kind % 5,
        };
        let sum = crc32fast::hash(&packed);
        file.push(kind);
        file.extend((packed.len() as u32).to_le_bytes());
        file.extend(if packing & 15 == 15 { 0 } else { sum }.to_le_bytes());
        file.extend(packed);
    }
    file
}

/// A frame of zstd with `content` as it is: one raw block. [RFC 8878, 3.1.1]
fn pack(content: &[u8]) -> Vec<u8> {
    let len = content.len() as u32;
    // A single segment, whose size stands in four bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend(len.to_le_bytes());
    // The last block, raw.
    frame.extend(&(len << 3 | 1).to_le_bytes()[..3]);
    frame.extend(content);
    frame
}

/// The events of `file`, up to an error.
fn events(file: &[u8]) -> Result<Vec<Event>, Error> {
    let mut recording = Recording::read(Cursor::new(file.to_vec()))?;
    let mut events = Vec::new();
    while events.len() < MOST
        && let Ok(Some(event)) = recording.next_event()
    {
        events.push(event);
    }
    Ok(events)
}

/// What a driver does that follows the recording as far as it goes.
fn replay(file: &[u8], events: &[Event]) -> Result<(), Error> {
    let recording = Recording::read(Cursor::new(file.to_vec()))?;
    if recording.header.arena.1 > ARENA {
        return Ok(());
    }
    let device = Replay::new(recording)?;
    for event in events.iter().take(64) {
        match event {
            Event::Read(register, _) if register.0 < 6 => {
                let Ok(bar) = device.bar(register.0) else { continue };
                match register.2 {
                    1 => drop(bar.read8(register.1)),
                    2 => drop(bar.read16(register.1)),
                    4 => drop(bar.read32(register.1)),
                    _ => drop(bar.read64(register.1)),
                }
            }
            Event::Read(register, _) => drop(device.config_read(register.1, register.2.into())),
            Event::Write(register, value) if register.0 < 6 => {
                let Ok(bar) = device.bar(register.0) else { continue };
                bar.write32(register.1, *value as u32);
            }
            Event::Irqs(kind, count) => drop(device.irqs(*kind, *count)),
            Event::BusMaster(on) => drop(device.set_bus_master(*on)),
            Event::Reset => drop(device.reset()),
            _ => {}
        }
    }
    let _ = device.irqs(IrqKind::Msi, 1);
    if device.divergence().is_some() {
        assert_eq!(device.config_read(0, 4), u32::MAX, "a device that is gone answers");
    }
    Ok(())
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let file = file(&mut Input::new(data));
    let read = memory::bounded(MEMORY, || events(&file));
    let again = events(&file);
    assert_eq!(format!("{read:?}"), format!("{again:?}"), "the same file says two things");
    if let Ok(events) = read {
        let _ = replay(&file, &events);
        // What a replay says of its end is taken here, so that no other input hears it.
        let _ = ring3_decorator::take_failure();
    }
}
