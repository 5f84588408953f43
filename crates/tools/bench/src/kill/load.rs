//! The load of one life, which checks itself.

use ring3_class::block::{Completion, Data, Disk, Operation, Queue, Request, detach, next};
use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;

use super::{BLOCKS, DEPTH, Entry, Journal, Left, PATIENCE, Word, now};
use crate::Error;
use crate::load::stamp;

/// One life's work.
pub(super) struct Load<'a> {
    journal: &'a Journal,
    name: String,
    block_size: u32,
    entries: Vec<Entry>,
    /// What is done to each block now.
    busy: Vec<Option<Operation>>,
    pub(super) free: Vec<DmaBuffer>,
    bytes: Vec<u8>,
    life: u32,
    /// Nothing is written: the journal has what each block was found to hold.
    reading: bool,
    /// Requests of this life so far.
    count: u64,
    writes: u64,
    reads: u64,
    started: bool,
    /// When a request was last seen to end.
    ended: u64,
}

impl<'a> Load<'a> {
    /// The work of life number `life`, with requests for `busy` blocks in flight.
    pub(super) fn new(
        disk: &dyn Disk,
        queue: &dyn Queue,
        journal: &'a Journal,
        life: u32,
        busy: &[(u64, Operation)],
    ) -> Result<Self, Error> {
        let failed = |source| Error::Device { name: disk.name(), source };
        let block_size = disk.info().block_size;
        let blocks = BLOCKS.min(disk.info().blocks);
        let buffer = |_| disk.dma().arena().alloc_pages(block_size as usize).map_err(failed);
        let depth = u64::from(queue.depth().min(DEPTH)).min(blocks);
        let mut operations = vec![None; blocks as usize];
        for &(block, operation) in busy {
            let operation_of = operations.get_mut(block as usize);
            *operation_of.ok_or_else(|| {
                Error::Invalid(format!(
                    "{}: block {block} was left, and there is none",
                    disk.name()
                ))
            })? = Some(operation);
        }
        Ok(Self {
            journal,
            name: disk.name(),
            block_size,
            entries: (0..blocks).map(|block| journal.entry(block)).collect::<Result<_, _>>()?,
            busy: operations,
            // Never more than there are blocks: each is used by one request at a time.
            free: (busy.len() as u64..depth).map(buffer).collect::<Result<_, _>>()?,
            bytes: vec![0; block_size as usize],
            life,
            reading: false,
            count: 0,
            writes: journal.get(Word::Writes)?,
            reads: journal.get(Word::Reads)?,
            started: false,
            ended: 0,
        })
    }

    /// The same work without writes.
    pub(super) fn reading(self) -> Self {
        Self { reading: true, ..self }
    }

    /// Reads every block.
    pub(super) fn check_all(&mut self, queue: &mut dyn Queue) -> Result<(), Error> {
        for block in 0..self.entries.len() as u64 {
            if self.free.is_empty() {
                self.finish_one(queue)?;
            }
            self.start(queue, block, Operation::Read)?;
            queue.ring();
        }
        while queue.in_flight() > 0 {
            self.finish_one(queue)?;
        }
        Ok(())
    }

    /// A block that nothing is done to, and what to do: two writes for each read, or a read.
    pub(super) fn draw(&mut self) -> (u64, Operation) {
        let mut random = stamp::mix(u64::from(self.life) << 40 ^ self.count);
        while self.busy[(random % self.busy.len() as u64) as usize].is_some() {
            random = stamp::mix(random.wrapping_add(1));
        }
        let reads = self.reading || (random >> 40).is_multiple_of(3);
        let operation = if reads { Operation::Read } else { Operation::Write };
        (random % self.busy.len() as u64, operation)
    }

    pub(super) fn start(
        &mut self,
        queue: &mut dyn Queue,
        block: u64,
        operation: Operation,
    ) -> Result<(), Error> {
        let Some(buffer) = self.free.pop() else {
            return Err(Error::Invalid("more requests than buffers".into()));
        };
        let index = block as usize;
        self.count += 1;
        let request = if operation == Operation::Write {
            // Never the same twice, in whatever life.
            let number = u64::from(self.life) << 32 | self.count;
            self.entries[index].submitted = number;
            self.journal.note(block, self.entries[index])?;
            stamp::fill(&mut self.bytes, block * u64::from(self.block_size), number);
            buffer.write(0, &self.bytes).map_err(|source| self.failed(source))?;
            Request::write(block, block, 1, buffer)
        } else {
            Request::read(block, block, 1, buffer)
        };
        self.busy[index] = Some(operation);
        queue.submit(request).map_err(|rejected| {
            let why = rejected
                .error
                .map_or_else(|| "its queue is full".into(), |error| error.to_string());
            Error::Invalid(format!("{}: block {block} is not taken: {why}", self.name))
        })
    }

    pub(super) fn finish_one(&mut self, queue: &mut dyn Queue) -> Result<(), Error> {
        let done = next(queue, Deadline::after(PATIENCE)).map_err(|source| self.failed(source))?;
        self.finish(done)
    }

    pub(super) fn finish(&mut self, done: Completion) -> Result<(), Error> {
        let Completion { token: block, result, data: Data::Buffer(buffer) } = done else {
            return Err(Error::Invalid(format!(
                "{}: a request came back without its buffer",
                self.name
            )));
        };
        let operation = self.busy.get_mut(block as usize).and_then(Option::take);
        result.map_err(|error| Error::Invalid(format!("{}: block {block}: {error}", self.name)))?;
        self.ended = now();
        if !std::mem::replace(&mut self.started, true) {
            self.journal.set(Word::FirstEnd, self.ended)?;
            self.journal.set(Word::Alive, self.life.into())?;
        }
        if operation == Some(Operation::Write) {
            let entry = &mut self.entries[block as usize];
            entry.acknowledged = entry.submitted;
            self.journal.note(block, *entry)?;
            self.writes += 1;
            self.journal.set(Word::Writes, self.writes)?;
        } else {
            buffer.read(0, &mut self.bytes).map_err(|source| self.failed(source))?;
            self.check(block)?;
        }
        self.free.push(buffer);
        Ok(())
    }

    /// Detaches from the queue, with the requests in flight, for the next driver process.
    pub(super) fn detach(mut self, queue: &mut dyn Queue) -> Result<Left, Error> {
        let mut ended = Vec::new();
        let saved = detach(queue, &mut ended, Deadline::after(PATIENCE))
            .map_err(|source| self.failed(source))?;
        ended.into_iter().try_for_each(|done| self.finish(done))?;
        self.journal.set(Word::LastEnd, self.ended)?;
        let busy = (0..)
            .zip(&self.busy)
            .filter_map(|(block, operation)| Some((block, (*operation)?)))
            .collect();
        Ok(Left { queue: saved, busy })
    }

    /// Compares what was read of `block` with what it may hold.
    fn check(&mut self, block: u64) -> Result<(), Error> {
        if self.reading {
            return self.check_same(block);
        }
        let Entry { submitted, acknowledged } = self.entries[block as usize];
        let holds = |number: &u64| match number {
            0 => self.bytes.iter().all(|&byte| byte == 0),
            &number => stamp::check(&self.bytes, block * u64::from(self.block_size), number),
        };
        let Some(found) = [acknowledged, submitted].into_iter().find(holds) else {
            return self.journal.set(Word::Mismatches, self.journal.get(Word::Mismatches)? + 1);
        };
        self.reads += 1;
        self.journal.set(Word::Reads, self.reads)?;
        if submitted != acknowledged {
            self.entries[block as usize] = Entry { submitted: found, acknowledged: found };
            self.journal.note(block, self.entries[block as usize])?;
        }
        Ok(())
    }

    /// Compares what was read of `block` with what was read of it first, in whatever life.
    fn check_same(&mut self, block: u64) -> Result<(), Error> {
        // Never 0, which is a block that nobody has read.
        let found = self
            .bytes
            .as_chunks::<8>()
            .0
            .iter()
            .fold(1, |sum, word| stamp::mix(sum ^ u64::from_le_bytes(*word)))
            | 1;
        let known = &mut self.entries[block as usize];
        if known.acknowledged == 0 {
            *known = Entry { submitted: found, acknowledged: found };
            self.journal.note(block, *known)?;
        }
        if known.acknowledged != found {
            return self.journal.set(Word::Mismatches, self.journal.get(Word::Mismatches)? + 1);
        }
        self.reads += 1;
        self.journal.set(Word::Reads, self.reads)
    }

    fn failed(&self, source: ring3_device::Error) -> Error {
        Error::Device { name: self.name.clone(), source }
    }
}
