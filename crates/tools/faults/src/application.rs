//! Who has the disk: it knows what each block may hold, and lives in another process than the
//! driver.

use std::collections::BTreeSet;

use ring3_bench::load::stamp;

use crate::spec::random;
use crate::wire::{Packet, Verb};

/// Blocks that are written and read; as many behind them are written once.
pub const BLOCKS: u64 = 512;
/// Of every so many blocks that were not written in the last life, one is read.
const SAMPLE: u64 = 32;
/// All blocks are read in every so many lives.
const ALL: u64 = 64;
/// The first block that is written once, and how many.
const CANARIES: std::ops::Range<u64> = BLOCKS..BLOCKS + 16;
/// What these hold.
const CANARY: u64 = 1 << 62;

/// The write that a block must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The last that was submitted; 0 for none.
    submitted: u64,
    /// The last that was acknowledged; 0 for none.
    acknowledged: u64,
    /// It was wrong, and is not known until it is written again.
    unknown: bool,
    /// The life in which a write of it was last acknowledged, or it was read and right.
    known: u64,
}

/// What the end of a request has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is as it must be.
    Right,
    /// The block holds neither what was acknowledged nor what was submitted last.
    Wrong,
    /// The same, of a block of which no write was acknowledged, and which was not read and right,
    /// since a driver or a device was [wrong itself](Application::doubt): that one may have written
    /// there.
    Stale,
    /// The driver says that it has failed.
    Failed,
    /// It is the end of nothing that was asked for.
    Stray,
}

/// One disk's application.
pub struct Application {
    seed: u64,
    entries: Vec<Entry>,
    /// By tag, the block and whether it is written.
    busy: Vec<Option<(u64, bool)>>,
    /// Written since they were last read and right.
    dirty: BTreeSet<u64>,
    /// Still to be read in this life.
    unchecked: Vec<u64>,
    life: u64,
    /// The last life whose driver or device was wrong itself.
    doubted: Option<u64>,
    count: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Blocks that were read and right.
    pub reads: u64,
    /// What was in the last wrong block, and what should have been, in words.
    pub evidence: String,
}

impl Application {
    /// Of an empty disk, with `depth` requests at a time.
    pub fn new(seed: u64, depth: usize) -> Self {
        let count = CANARIES.end as usize;
        Self {
            seed,
            entries: vec![Entry::default(); count],
            busy: vec![None; depth],
            dirty: BTreeSet::new(),
            unchecked: Vec::new(),
            life: 0,
            doubted: None,
            count: 0,
            writes: 0,
            reads: 0,
            evidence: String::new(),
        }
    }

    /// A new driver is there: nothing is under way, and what must be read before anything is
    /// written is chosen.
    pub fn begin(&mut self) {
        self.life += 1;
        self.count = 0;
        self.busy.fill(None);
        let all = self.life % ALL == 1;
        let chosen = |block: &u64| {
            all || self.dirty.contains(block)
                || random(self.seed ^ self.life, *block).is_multiple_of(SAMPLE)
        };
        self.unchecked = (0..CANARIES.end).filter(chosen).collect();
    }

    /// The driver of this life, or its device, may have written anywhere.
    pub fn doubt(&mut self) {
        self.doubted = Some(self.life);
    }

    /// Whether all that was to be read of this life was.
    pub fn is_checked(&self) -> bool {
        self.unchecked.is_empty() && self.is_idle()
    }

    /// Whether requests of its load have begun.
    pub fn is_loaded(&self) -> bool {
        self.count > 0
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.busy.iter().all(Option::is_none)
    }

    /// The next request for a disk with blocks of `size` bytes, if there can be one more: a read
    /// that is owed, or else work.
    pub fn next(&mut self, size: usize) -> Option<Packet> {
        let tag = self.busy.iter().position(Option::is_none)?;
        if let Some(block) = self.unchecked.pop() {
            self.busy[tag] = Some((block, false));
            return Some(Packet { verb: Verb::Read, tag: tag as u16, block, data: Vec::new() });
        }
        // Of a life, reads come before writes, so that these find what the last one left.
        if self.busy.iter().flatten().any(|(_, write)| !write) && self.count == 0 {
            return None;
        }
        self.count += 1;
        let word = random(self.seed ^ self.life << 32, self.count);
        let block = self.choose(word)?;
        // Two writes for each read.
        let write =
            !word.is_multiple_of(3) || self.entries[block as usize].unknown || block >= BLOCKS;
        self.busy[tag] = Some((block, write));
        if !write {
            return Some(Packet { verb: Verb::Read, tag: tag as u16, block, data: Vec::new() });
        }
        let number = if block < BLOCKS { self.life << 32 | self.count } else { CANARY };
        self.entries[block as usize].submitted = number;
        self.dirty.insert(block);
        let mut data = vec![0; size];
        stamp::fill(&mut data, block * size as u64, number);
        Some(Packet { verb: Verb::Write, tag: tag as u16, block, data })
    }

    /// A block that nothing is done to.
    fn choose(&self, word: u64) -> Option<u64> {
        let is_busy = |block: u64| self.busy.iter().flatten().any(|(busy, _)| *busy == block);
        let mut canaries = CANARIES;
        let canary = canaries
            .find(|block| self.entries[*block as usize].acknowledged == 0 && !is_busy(*block));
        canary.or_else(|| {
            (0..BLOCKS).map(|step| (word / 3 + step) % BLOCKS).find(|block| !is_busy(*block))
        })
    }

    /// A request has ended.
    pub fn end(&mut self, packet: &Packet) -> Found {
        let Some((block, write)) =
            self.busy.get_mut(usize::from(packet.tag)).and_then(Option::take)
        else {
            return Found::Stray;
        };
        let entry = &mut self.entries[block as usize];
        match packet.verb {
            Verb::Write if write => {
                *entry = Entry {
                    acknowledged: entry.submitted,
                    unknown: false,
                    known: self.life,
                    ..*entry
                };
                self.writes += 1;
                Found::Right
            }
            Verb::Read if !write => self.check(block, &packet.data),
            Verb::Failed => Found::Failed,
            _ => Found::Stray,
        }
    }

    fn check(&mut self, block: u64, data: &[u8]) -> Found {
        let entry = &mut self.entries[block as usize];
        let holds = |number: &u64| match number {
            0 => data.iter().all(|&byte| byte == 0) && !data.is_empty(),
            &number => stamp::check(data, block * data.len() as u64, number) && !data.is_empty(),
        };
        if entry.unknown {
            return Found::Right;
        }
        let Some(found) = [entry.acknowledged, entry.submitted].into_iter().find(holds) else {
            let was = *entry;
            entry.unknown = true;
            if self.doubted.is_some_and(|life| was.known <= life) {
                return Found::Stale;
            }
            // Looked for only where a promise was broken: it takes a while.
            self.evidence = self.tell(block, was, data);
            return Found::Wrong;
        };
        // Once it was seen, it stays.
        *entry = Entry { submitted: found, acknowledged: found, unknown: false, known: self.life };
        self.dirty.remove(&block);
        self.reads += 1;
        Found::Right
    }
}

/// Lives whose writes are looked for in a wrong block, and the most writes of each.
const LIVES: u64 = 200;
const WRITES: u64 = 200;

impl Application {
    /// What `block` holds and what it should.
    fn tell(&self, block: u64, entry: Entry, data: &[u8]) -> String {
        let write = |number: u64| match number {
            0 => "nothing".into(),
            CANARY => "what is written once".into(),
            number => format!("write {} of life {}", number & u64::from(u32::MAX), number >> 32),
        };
        let Entry { submitted, acknowledged, known, .. } = entry;
        let (first, rest) = data.split_at(data.len().min(stamp::SECTOR));
        let len = data.len() as u64;
        let numbers = (self.life.saturating_sub(LIVES)..=self.life)
            .flat_map(|life| (1..=WRITES).map(move |count| life << 32 | count));
        let mut all =
            numbers.flat_map(|number| (0..CANARIES.end).map(move |block| (number, block)));
        let found = match data.iter().all(|&byte| byte == 0) {
            true => "zeros".into(),
            false => match all.find(|&(number, block)| stamp::check(first, block * len, number)) {
                Some((number, of))
                    if stamp::check(rest, of * len + stamp::SECTOR as u64, number) =>
                {
                    format!("{} to block {of}", write(number))
                }
                Some((number, of)) => format!("a part of {} to block {of}", write(number)),
                None => format!("{:02x?}...", &data[..data.len().min(16)]),
            },
        };
        let doubted = self
            .doubted
            .map_or(String::new(), |life| format!(", the last that was wrong itself was {life}"));
        format!(
            "in life {} block {block} holds {found}; {} was acknowledged last, {} submitted, and \
            life {known} knew it{doubted}",
            self.life,
            write(acknowledged),
            write(submitted)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 512;

    /// A disk that does what it is told.
    #[derive(Default)]
    struct Disk(std::collections::HashMap<u64, Vec<u8>>);

    impl Disk {
        fn serve(&mut self, packet: Packet) -> Packet {
            if packet.verb == Verb::Write {
                self.0.insert(packet.block, packet.data.clone());
            }
            Packet {
                data: self.0.get(&packet.block).cloned().unwrap_or_else(|| vec![0; SIZE]),
                ..packet
            }
        }
    }

    /// One life of `requests`; what was found that was not right, and what was still under way.
    fn live(
        application: &mut Application,
        disk: &mut Disk,
        requests: usize,
    ) -> (usize, Vec<Packet>) {
        application.begin();
        let (mut wrong, mut left) = (0, Vec::new());
        for number in 0..requests {
            let packet = application.next(SIZE).unwrap();
            if number + 4 > requests {
                left.push(packet);
                continue;
            }
            wrong += usize::from(application.end(&disk.serve(packet)) != Found::Right);
        }
        (wrong, left)
    }

    #[test]
    fn a_driver_that_dies_with_requests_under_way_loses_nothing_whether_they_are_done_or_not() {
        let (mut application, mut disk) = (Application::new(1, 8), Disk::default());
        for life in 0..20 {
            let (wrong, left) = live(&mut application, &mut disk, 700);
            assert_eq!(wrong, 0, "life {life}");
            left.into_iter().step_by(2).for_each(|packet| drop(disk.serve(packet)));
        }
        assert!(application.writes > 1000 && application.reads > 1000);
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_found_once_in_the_next_life() {
        let (mut application, mut disk) = (Application::new(1, 8), Disk::default());
        live(&mut application, &mut disk, 700);
        let block = application
            .dirty
            .iter()
            .copied()
            .find(|block| application.entries[*block as usize].acknowledged > 0)
            .unwrap();
        disk.0.get_mut(&block).unwrap()[5] ^= 1;
        assert_eq!(live(&mut application, &mut disk, 700).0, 1);
        assert_eq!(live(&mut application, &mut disk, 700).0, 0);
    }

    #[test]
    fn a_wrong_block_that_nobody_has_touched_since_a_driver_was_wrong_is_not_of_those_that_came_after()
     {
        let (mut application, mut disk) = (Application::new(1, 8), Disk::default());
        live(&mut application, &mut disk, 700);
        application.doubt();
        application.begin();
        let held = |entry: &Entry| entry.acknowledged > 0 && entry.submitted == entry.acknowledged;
        let blocks: Vec<_> = (0..BLOCKS)
            .filter(|block| held(&application.entries[*block as usize]))
            .take(2)
            .collect();
        let read =
            |application: &mut Application, block: u64| application.check(block, &[0xff; SIZE]);
        assert_eq!(read(&mut application, blocks[0]), Found::Stale);
        let right = disk.0[&blocks[1]].clone();
        assert_eq!(application.check(blocks[1], &right), Found::Right);
        assert_eq!(read(&mut application, blocks[1]), Found::Wrong);
        let (block, evidence) = (blocks[1], &application.evidence);
        assert!(
            evidence.contains(&format!("block {block} holds [ff, ff"))
                && evidence.contains("knew it"),
            "{evidence}"
        );
    }

    #[test]
    fn a_write_that_was_not_acknowledged_says_nothing_of_what_the_block_held_before() {
        let (mut application, mut disk) = (Application::new(1, 8), Disk::default());
        live(&mut application, &mut disk, 700);
        application.doubt();
        application.begin();
        let begun = loop {
            // As if nothing had been read since the doubt.
            application.entries.iter_mut().for_each(|entry| entry.known = 1);
            let packet = application.next(SIZE).unwrap();
            match packet.verb {
                Verb::Write => break packet.block,
                _ => drop(application.end(&disk.serve(packet))),
            }
        };
        application.begin();
        assert_eq!(application.check(begun, &[0xff; SIZE]), Found::Stale);
    }

    #[test]
    fn an_end_of_nothing_is_a_stray_and_no_acknowledgement() {
        let mut application = Application::new(1, 8);
        application.begin();
        let stray = Packet { verb: Verb::Write, tag: 3, block: 0, data: vec![] };
        assert_eq!(application.end(&stray), Found::Stray);
        assert_eq!(application.end(&Packet { tag: 900, ..stray }), Found::Stray);
        assert_eq!(application.writes, 0);
    }
}
