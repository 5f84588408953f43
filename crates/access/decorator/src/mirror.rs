//! The memory that a driver and its device share, in two copies, so that it is seen who wrote what.
//!
//! The driver has an arena of its own. What it has written goes to the device's memory when it
//! makes a call, and what the device has written comes to the driver's when somebody
//! [fetches](Mirror::fetch) it; a third copy says what both had last. Only what buffers have now is
//! looked at.

use std::collections::BTreeMap;

use ring3_device::Error;
use ring3_device::dma::{Dma, DmaBuffer};

use crate::recording::Bytes;

const PAGE: usize = 4096;
static ZEROES: [u8; PAGE] = [0; PAGE];
/// Equal bytes between two differences that are not worth a difference of their own.
const GAP: usize = 16;
/// A page that changes while it is read is read again, so often.
const READS: usize = 8;

/// Both copies.
pub(crate) struct Mirror {
    driver: Dma,
    /// `None` in a replay: nobody is there.
    device: Option<DmaBuffer>,
    iova: u64,
    both: Vec<u8>,
    /// Ranges that are looked at: where each starts, its bytes, and a number of its own.
    taken: Vec<(u64, u64, u64)>,
    /// Those that the driver has named, if it does; else all that its buffers have.
    named: Option<Named>,
}

/// Ranges by where they start: bytes and number.
#[derive(Default)]
struct Named {
    ranges: BTreeMap<u64, (u64, u64)>,
    count: u64,
}

impl Mirror {
    /// The driver has the arena of `driver`, and `device` are as many bytes at the same device
    /// addresses.
    pub(crate) fn new(driver: Dma, device: Option<DmaBuffer>) -> Self {
        let (iova, len) = (driver.arena().iova(), driver.arena().len());
        Self { driver, device, iova, both: vec![0; len], taken: Vec::new(), named: None }
    }

    /// From now on only what is [shared](Self::share) is looked at.
    pub(crate) fn look_at_shared(&mut self) {
        self.named.get_or_insert_default();
    }

    /// `len` bytes at `iova` are looked at, as a new buffer is; nothing happens where they are not
    /// of the arena.
    pub(crate) fn share(&mut self, iova: u64, len: usize) {
        let (Some(named), Some(at)) = (&mut self.named, iova.checked_sub(self.iova)) else {
            return;
        };
        if at.checked_add(len as u64).is_some_and(|end| end <= self.both.len() as u64) {
            named.count += 1;
            named.ranges.insert(at, (len as u64, named.count));
        }
    }

    /// What was shared at `iova` is looked at no more.
    pub(crate) fn unshare(&mut self, iova: u64) {
        if let Some(named) = &mut self.named {
            named.ranges.remove(&iova.wrapping_sub(self.iova));
        }
    }

    /// What the driver has written since the last time, which the device has from now on.
    pub(crate) fn publish(&mut self) -> Result<Vec<Bytes>, Error> {
        self.follow()?;
        let driver = &self.driver;
        let written = differences(&self.taken, &self.both, |at, bytes| {
            driver.read(self.iova + at as u64, bytes)
        })?;
        for (at, bytes) in &written {
            self.both[*at..at + bytes.len()].copy_from_slice(bytes);
            self.device.as_ref().map_or(Ok(()), |device| device.write(*at, bytes))?;
        }
        Ok(self.placed(written))
    }

    /// What the device has written since the last time, which the driver has from now on.
    pub(crate) fn fetch(&mut self) -> Result<Vec<Bytes>, Error> {
        self.follow()?;
        let Some(device) = &self.device else { return Ok(Vec::new()) };
        let written = differences(&self.taken, &self.both, |at, bytes| device.read(at, bytes))?;
        let written = self.placed(written);
        written.iter().try_for_each(|bytes| self.deliver(bytes))?;
        Ok(written)
    }

    /// The device has written `memory`. Fails if that is not in the arena.
    pub(crate) fn deliver(&mut self, memory: &Bytes) -> Result<(), Error> {
        self.follow()?;
        self.driver.write(memory.iova, &memory.bytes)?;
        let at = (memory.iova - self.iova) as usize;
        if let Some(both) = self.both.get_mut(at..at + memory.bytes.len()) {
            both.copy_from_slice(&memory.bytes);
        }
        Ok(())
    }

    /// What the range that `iova` lies in is for, and how far behind its start that is.
    pub(crate) fn place(&self, iova: u64) -> Option<(String, u64)> {
        let at = iova.checked_sub(self.iova)?;
        let saved = self.driver.arena().save();
        let range = saved
            .regions
            .first()?
            .taken
            .iter()
            .find(|range| (range.offset..range.offset + range.len).contains(&at))?;
        Some((range.tag.clone(), at - range.offset))
    }

    /// Ranges that were not taken the last time are zero for both, as a new buffer is.
    fn follow(&mut self) -> Result<(), Error> {
        let taken = match &self.named {
            Some(named) => {
                named.ranges.iter().map(|(&at, &(len, number))| (at, len, number)).collect()
            }
            None => self.driver.arena().taken(),
        };
        for &(at, len, _) in taken.iter().filter(|range| self.taken.binary_search(range).is_err()) {
            let range = at as usize..(at + len) as usize;
            for page in range.clone().step_by(PAGE) {
                let len = PAGE.min(range.end - page);
                self.device.as_ref().map_or(Ok(()), |device| device.write(page, &ZEROES[..len]))?;
            }
            self.both[range].fill(0);
        }
        self.taken = taken;
        Ok(())
    }

    fn placed(&self, written: Vec<(usize, Vec<u8>)>) -> Vec<Bytes> {
        written
            .into_iter()
            .map(|(at, bytes)| Bytes { iova: self.iova + at as u64, bytes })
            .collect()
    }
}

/// Where what `read` finds in the ranges differs from `both`, and what is there; at most a page
/// each.
fn differences(
    ranges: &[(u64, u64, u64)],
    both: &[u8],
    read: impl Fn(usize, &mut [u8]) -> Result<(), Error>,
) -> Result<Vec<(usize, Vec<u8>)>, Error> {
    // Not on the stack: a thread of a kernel in a process has little of that.
    let (mut found, mut page, mut again) = (Vec::new(), vec![0; PAGE], vec![0; PAGE]);
    for &(start, len, _) in ranges {
        let end = (start + len) as usize;
        for at in (start as usize..end).step_by(PAGE) {
            let len = PAGE.min(end - at);
            let (page, again, both) = (&mut page[..len], &mut again[..len], &both[at..at + len]);
            read(at, page)?;
            for _ in 0..READS {
                if page == both {
                    break;
                }
                // An entry that was half there must not be taken for whole.
                read(at, again)?;
                if page == again {
                    break;
                }
                page.copy_from_slice(again);
            }
            if page != both {
                compare(at, page, both, &mut found);
            }
        }
    }
    Ok(found)
}

fn compare(at: usize, page: &[u8], both: &[u8], found: &mut Vec<(usize, Vec<u8>)>) {
    let mut run: Option<(usize, usize)> = None;
    for (index, _) in page.iter().zip(both).enumerate().filter(|(_, (one, other))| one != other) {
        run = match run {
            Some((start, end)) if index - end < GAP => Some((start, index + 1)),
            Some((start, end)) => {
                found.push((at + start, page[start..end].to_vec()));
                Some((index, index + 1))
            }
            None => Some((index, index + 1)),
        };
    }
    found.extend(run.map(|(start, end)| (at + start, page[start..end].to_vec())));
}
