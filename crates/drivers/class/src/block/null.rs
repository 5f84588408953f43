//! A disk that completes every request at once without doing anything: it measures the cost of the
//! layers above a driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ring3_device::dma::{Arena, Dma, NoDevice, Region, SegmentRules};
use ring3_device::irq::Irq;
use ring3_device::wait::Source;
use ring3_device::{Deadline, Error};

use super::{Completion, Discard, Disk, Info, Queue, Rejected, Request, reap_ready};

/// Completes every request within the disk when it is rung. Reads leave the data as it is.
pub struct Null {
    info: Info,
    dma: Dma,
}

impl Null {
    /// Of `blocks` blocks of `block_size` bytes, with an arena of `arena` bytes for its users'
    /// buffers.
    pub fn new(block_size: u32, blocks: u64, arena: usize) -> Result<Self, Error> {
        if !block_size.is_power_of_two() || !(512..=4096).contains(&block_size) || blocks == 0 {
            let wrong = format!(
                "a disk of {blocks} blocks of {block_size} bytes: blocks are 512, 1024, 2048 or \
                4096, and one at least"
            );
            return Err(Error::Invalid(wrong));
        }
        let info = Info {
            model: "ring3 null".into(),
            serial: "0".into(),
            firmware: String::new(),
            block_size,
            blocks,
            max_transfer: 1 << 20,
            segments: SegmentRules::PAGES,
            optimal_io: block_size,
            boundary: 0,
            volatile_cache: false,
            fua: false,
            max_write_zeroes_blocks: u16::MAX.into(),
            discard: Some(Discard { max_blocks: u16::MAX.into(), granularity: block_size }),
            read_only: false,
            rotates: false,
        };
        let dma = Dma::new(Arena::new(Region::new(arena)?, 0), Arc::new(NoDevice::default()));
        Ok(Self { info, dma })
    }
}

impl Disk for Null {
    fn name(&self) -> String {
        "null".into()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn max_queues(&self) -> u16 {
        u16::MAX
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let done = VecDeque::with_capacity(depth.into());
        Ok(Box::new(NullQueue { info: self.info.clone(), depth, rung: 0, done }))
    }
}

struct NullQueue {
    info: Info,
    depth: u16,
    /// How many of `done` were published.
    rung: usize,
    done: VecDeque<Completion>,
}

impl Queue for NullQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.depth
    }

    fn in_flight(&self) -> u16 {
        // Never more than the depth.
        self.done.len() as u16
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.done.len() >= self.depth.into() {
            return Err(Rejected { error: None, request });
        }
        if let Err(error) = self.info.check_uncut(&request) {
            return Err(Rejected { error: Some(error), request });
        }
        self.done.push_back(Completion {
            token: request.token,
            result: Ok(()),
            data: request.data,
        });
        Ok(())
    }

    fn ring(&mut self) {
        self.rung = self.done.len();
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let room = self.rung.min(done.len());
        let count = reap_ready(&mut done[..room], &mut self.done);
        self.rung -= count;
        Ok(count)
    }
}

impl Source for NullQueue {
    fn irq(&self) -> Option<&Irq> {
        None
    }

    fn pending(&self) -> bool {
        self.rung > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        Ok(self.rung == 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn tick(&mut self, _: Instant) -> Result<Option<Instant>, Error> {
        Ok(None)
    }

    fn wait(&mut self, _: Deadline) -> Result<bool, Error> {
        Ok(self.rung > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::IoError;
    use super::*;

    fn queue(depth: u16) -> Box<dyn Queue> {
        Null::new(512, 100, 4096).unwrap().open_queue(depth).unwrap()
    }

    #[test]
    fn blocks_that_no_kernel_knows_are_refused_with_those_it_knows() {
        for wrong in [0, 1, 511, 520, 1000, 8192, u32::MAX] {
            let error = Null::new(wrong, 100, 4096).err().unwrap().to_string();
            assert!(error.contains("512, 1024, 2048 or 4096"), "{error}");
        }
        assert!(Null::new(512, 0, 4096).is_err());
        assert!(Null::new(2048, 1, 4096).is_ok());
    }

    #[test]
    fn nothing_completes_before_the_ring() {
        let mut queue = queue(2);
        queue.submit(Request::flush(7)).unwrap();
        assert!(queue.reap_one().unwrap().is_none());
        queue.ring();
        assert_eq!(queue.reap_one().unwrap().unwrap().token, 7);
    }

    #[test]
    fn a_full_queue_gives_the_request_back() {
        let mut queue = queue(1);
        queue.submit(Request::flush(1)).unwrap();
        let rejected = queue.submit(Request::flush(2)).unwrap_err();
        assert_eq!((rejected.error, rejected.request.token), (None, 2));
    }

    #[test]
    fn a_range_beyond_the_end_is_refused() {
        assert_eq!(
            queue(1).submit(Request::discard(0, 99, 2)).unwrap_err().error,
            Some(IoError::OutOfRange)
        );
    }
}
