//! Packets of an application, as requests to a driver's queue.

use anyhow::{Result, bail};
use ring3_class::block::{Completion, Data, Disk, Queue, Request};
use ring3_device::dma::DmaBuffer;
use ring3_faults::{Packet, Verb};

/// Requests in flight.
pub const DEPTH: u16 = 8;

/// What is under way at one queue.
pub struct Work {
    pub queue: Box<dyn Queue>,
    free: Vec<DmaBuffer>,
    bytes: Vec<u8>,
    blocks: u64,
    /// By tag, the block and whether it is written.
    busy: Vec<Option<(u64, bool)>>,
}

impl Work {
    /// A queue of `disk` for `depth` requests, of which packets are [`DEPTH`] at most, with buffers
    /// of a block.
    pub fn new(disk: &dyn Disk, depth: u16) -> Result<Self> {
        Self::over(disk, disk.open_queue(depth)?)
    }

    /// The same over a queue of `disk` that there is already.
    pub fn over(disk: &dyn Disk, queue: Box<dyn Queue>) -> Result<Self> {
        let size = disk.info().block_size as usize;
        let free =
            (0..DEPTH).map(|_| disk.dma().arena().alloc_pages(size)).collect::<Result<_, _>>()?;
        Ok(Self {
            queue,
            free,
            bytes: vec![0; size],
            blocks: disk.info().blocks,
            busy: vec![None; usize::from(DEPTH)],
        })
    }

    /// Bytes.
    pub fn block_size(&self) -> usize {
        self.bytes.len()
    }

    /// Begins what `packet` asks for; it must be rung.
    pub fn start(&mut self, packet: &Packet) -> Result<()> {
        let Some(place) =
            self.busy.get_mut(usize::from(packet.tag)).filter(|place| place.is_none())
        else {
            bail!("the application asks for what is under way");
        };
        let write = packet.verb == Verb::Write;
        if packet.block >= self.blocks || write && packet.data.len() != self.bytes.len() {
            bail!("the application asks for what the disk does not have");
        }
        let Some(buffer) = self.free.pop() else { bail!("more requests than buffers") };
        let (token, block) = (packet.tag.into(), packet.block);
        let request = if write {
            buffer.write(0, &packet.data)?;
            Request::write(token, block, 1, buffer)
        } else {
            Request::read(token, block, 1, buffer)
        };
        *place = Some((block, write));
        match self.queue.submit(request) {
            Ok(()) => Ok(()),
            Err(rejected) => bail!("block {block} is not taken: {:?}", rejected.error),
        }
    }

    /// What the application is told of an end, and its errno.
    pub fn finish(&mut self, done: Completion) -> Result<(Packet, u16)> {
        let Completion { token, result, data } = done;
        let tag = u16::try_from(token).unwrap_or(u16::MAX);
        let Some((block, write)) = self.busy.get_mut(usize::from(tag)).and_then(Option::take)
        else {
            bail!("the driver ends what nobody asked for");
        };
        let mut packet = Packet {
            verb: if write { Verb::Write } else { Verb::Read },
            tag,
            block,
            data: Vec::new(),
        };
        let Data::Buffer(buffer) = data else { bail!("a request came back without its buffer") };
        match result {
            Err(_) => packet.verb = Verb::Failed,
            Ok(()) if !write => {
                buffer.read(0, &mut self.bytes)?;
                packet.data.clone_from(&self.bytes);
            }
            Ok(()) => {}
        }
        self.free.push(buffer);
        Ok((packet, result.err().map_or(0, |error| error.errno() as u16)))
    }
}
