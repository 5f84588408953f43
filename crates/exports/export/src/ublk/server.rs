//! One queue's thread: requests from the kernel to the class queue, and their ends back.
//!
//! # Failure
//! The kernel removes a device only when this thread has completed every request that it was given.
//! - No successor ([`OnFailure::Refuse`](super::OnFailure::Refuse)): after a forced removal, or
//!   when the driver has failed, the thread keeps running and completes every request with an
//!   error.
//! - A successor is to come ([`OnFailure::Keep`](super::OnFailure::Keep)): the thread ends and
//!   leaves its requests incomplete. The kernel re-issues them to the next server.
//!
//! # Quiescing
//! A queue that is given to another server while its disk is used begins nothing any more: what the
//! kernel has handed over and this thread has not ended, the kernel hands to the next server. What
//! the device has is waited for and ended, or it would be done twice.
//!
//! The kernel's own command for it (QUIESCE_DEV, from 6.16 on) is not used: it cancels what waits
//! for requests while this thread commits others. A commit that it meets half done stays in the
//! ring's list of commands after its end, and the kernel follows that pointer when the ring is
//! closed (seen on 7.2: an oops in `io_uring_try_cancel_uring_cmd`, and a disk that no server can
//! be given any more).

mod ends;
mod shared;

use std::io;
use std::time::Duration;

use ring3_class::block::{Completion, Data, IoError, Request};
use ring3_class::dma::DmaBuffer;
use ring3_reactor::{Event, LoopStats, Reactor};
use ring3_stats::Phase;

use super::descriptors::Descriptors;
use super::idle::{self, IdlePoll};
use super::regions::View;
use super::ring::Ring;
use super::scrap::ScratchBuffer;
use super::translate::Geometry;
use super::uapi;
use crate::serving::{ClassQueue, QueueServer, State};

/// What belongs to a tag for the life of the queue.
struct UblkSlot {
    /// Here, or with the class queue.
    buffer: Option<DmaBuffer>,
    /// Its address, which the kernel is told anew each time.
    addr: u64,
    /// What the present request moves.
    bytes: u32,
    /// Bytes of the buffer whose pages this process has mapped.
    mapped: u32,
    /// Whether the request is ours: fetched and not committed.
    busy: bool,
    /// The memory that the present request lies in, if it is a client's.
    region: Option<u16>,
}

/// Serves one hardware queue.
pub struct UblkQueueServer<'a> {
    // Dropped before the buffers: the kernel has them by it.
    ring: Ring,
    class: ClassQueue<'a>,
    descriptors: Descriptors,
    geometry: Geometry,
    slots: Vec<UblkSlot>,
    /// Clients' memory that requests may lie in.
    view: Option<View>,
    /// Requests whose ends are no news of the disk if the driver is about to fail: the next server
    /// gets them then. They wait for the check of the device, which is in the same turn.
    retry_list: Vec<(u16, IoError)>,
    scrap: Option<ScratchBuffer>,
    idle: IdlePoll,
    /// Tags that the kernel has not aborted.
    live: usize,
}

impl<'a> UblkQueueServer<'a> {
    /// Serves `class`, with the kernel's descriptors and one buffer per tag.
    pub fn new(
        ring: Ring,
        class: ClassQueue<'a>,
        (descriptors, buffers): (Descriptors, Vec<DmaBuffer>),
        idle: IdlePoll,
    ) -> Self {
        let buffer_bytes = buffers.iter().map(DmaBuffer::len).min().unwrap_or(0) as u32;
        let geometry = Geometry::new(class.info().block_size, buffer_bytes);
        let slot = |buffer: DmaBuffer| UblkSlot {
            addr: buffer.as_ptr() as u64,
            buffer: Some(buffer),
            bytes: 0,
            mapped: 0,
            busy: false,
            region: None,
        };
        let slots: Vec<_> = buffers.into_iter().map(slot).collect();
        Self {
            ring,
            class,
            descriptors,
            geometry,
            retry_list: Vec::with_capacity(slots.len()),
            live: slots.len(),
            slots,
            view: None,
            scrap: None,
            idle,
        }
    }

    /// Lends every buffer to the kernel. The device can be started when all queues have done it.
    pub fn offer(&mut self) -> io::Result<()> {
        for tag in 0..self.slots.len() {
            // SAFETY: the buffer has the length that the device was created with. It stays in its
            // slot, or with the class queue, until this value is dropped, and the kernel only
            // touches it from calls that this thread makes.
            unsafe { self.ring.fetch(tag as u16, self.slots[tag].addr)? };
        }
        self.ring.push_gathered()?;
        self.ring.reactor.step(Some(Duration::ZERO)).map(drop)
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.ring.reactor.next_event() {
            match event {
                Event::Command { name, result, flags } if self.ring.is_batched() => {
                    self.handle_batch(name, result, flags)?
                }
                Event::Command { name, result: uapi::RES_OK, .. } => self.dispatch(name as u16)?,
                Event::Command { result: uapi::RES_ABORT, .. } => self.live -= 1,
                Event::Command { result, .. } => return Err(io::Error::from_raw_os_error(-result)),
                Event::Ready(token) if self.class.is_command(token) => {
                    // Clients' memory may have gone, which the same descriptor says.
                    self.release_removed_regions();
                    self.handle_command()?
                }
                event => self.handle_event(event)?,
            }
        }
        Ok(())
    }

    /// A command of many tags has an event.
    fn handle_batch(&mut self, name: u64, result: i32, flags: u32) -> io::Result<()> {
        self.live -= self.ring.handle_event(name, result, flags)?;
        while let Some(tag) = self.ring.next() {
            self.dispatch(tag)?;
        }
        Ok(())
    }

    /// Sends what was pushed, and returns when there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        self.ring.push_gathered()?;
        let waited = if self.class.is_idle() {
            self.class.recorder.phase(Phase::Idle);
            self.wait_for_request()?
        } else {
            self.wait_for_driver()?
        };
        self.class.record_wait(waited);
        Ok(())
    }

    /// With nothing in flight: sends what was pushed, and returns when there is something. It polls
    /// for the next request as long as that pays, then it sleeps.
    #[inline]
    fn wait_for_request(&mut self) -> io::Result<LoopStats> {
        let most = self.idle.poll_for();
        if most.is_zero() || self.class.state() != State::Serving {
            self.idle.slept();
            return self.ring.reactor.step(None);
        }
        let reactor = &mut self.ring.reactor;
        let sent = if reactor.has_unsent() { reactor.step(Some(Duration::ZERO))?.calls } else { 0 };
        let (found, looked) = reactor.look_for_events(most);
        self.idle.looked(looked, found, idle::preemptions);
        let turn = reactor.step(if found { Some(Duration::ZERO) } else { None })?;
        Ok(LoopStats { calls: sent + turn.calls, polled: Some(found), ..turn })
    }

    /// Tells the kernel what has ended last.
    fn send_last(&mut self) -> io::Result<()> {
        loop {
            self.ring.push_gathered()?;
            self.ring.reactor.step(Some(Duration::ZERO))?;
            if !self.ring.reactor.has_unsent() {
                return Ok(());
            }
            self.take_events()?;
        }
    }

    #[inline]
    fn dispatch(&mut self, tag: u16) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(usize::from(tag)) else { return Ok(()) };
        slot.busy = true;
        match self.class.state() {
            State::Serving => {}
            State::Quiescing { .. } => return Ok(()),
            State::Refusing { .. } | State::Abandoned { .. } => {
                return self.reject(tag, IoError::Transport);
            }
        }
        let descriptor = self.descriptors.read(tag);
        match self.geometry.decode(&descriptor) {
            Ok(decoded) => {
                slot.bytes = decoded.bytes;
                self.class.record_start(tag, &decoded);
                let data = match decoded.bytes {
                    0 => Data::None,
                    _ if self.view.is_some() => match self.find(tag, &descriptor, decoded.bytes) {
                        Some(data) => data,
                        // The kernel names memory that nobody has, or bytes beyond its end.
                        None => return self.finish(tag, Err(IoError::Transport)),
                    },
                    _ => slot.buffer.take().map_or(Data::None, Data::Buffer),
                };
                let request = Request {
                    operation: decoded.operation,
                    fua: decoded.fua,
                    blocks: decoded.blocks,
                    lba: decoded.lba,
                    token: tag.into(),
                    data,
                };
                self.submit(request)
            }
            Err(error) => self.reject(tag, error),
        }
    }

    /// Ends a request that the driver does not see.
    #[cold]
    fn reject(&mut self, tag: u16, error: IoError) -> io::Result<()> {
        self.slots[usize::from(tag)].bytes = 0;
        self.class.record_rejected(tag);
        self.finish(tag, Err(error))
    }
}

impl<'a> QueueServer<'a> for UblkQueueServer<'a> {
    #[inline]
    fn class(&mut self) -> &mut ClassQueue<'a> {
        &mut self.class
    }

    #[inline]
    fn parts(&mut self) -> (&mut ClassQueue<'a>, &mut Reactor) {
        (&mut self.class, &mut self.ring.reactor)
    }

    /// Serves until the device stops and nothing is in flight, or until the queue is quiesced.
    fn run(&mut self) -> io::Result<()> {
        loop {
            self.class.recorder.beat();
            self.take_events()?;
            if self.live == 0 {
                // Every tag was taken back by the kernel, so none is with the driver.
                return Ok(());
            }
            self.drive()?;
            if self.class.is_quiesced() {
                return self.send_last();
            }
            self.wait()?;
        }
    }

    #[inline]
    fn complete(&mut self, completion: Completion) -> io::Result<()> {
        self.end(completion)
    }

    #[cold]
    fn abandon(&mut self, reason: String) -> io::Result<()> {
        self.class.abandon(reason)?;
        for tag in 0..self.slots.len() {
            if self.slots[tag].busy {
                self.cut_off(tag)?;
                self.replace(tag)?;
                self.finish(tag as u16, Err(IoError::Transport))?;
            }
        }
        Ok(())
    }

    fn device_is_well(&mut self) -> io::Result<()> {
        self.fail_retry_list()
    }
}
