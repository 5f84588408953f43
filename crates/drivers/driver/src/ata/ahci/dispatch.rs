//! From a request to the device: its command, and when it starts.
//!
//! # Order
//! Queued commands and others are never in the device's hands together [AHCI 5.3, ACS-3 4.14.1].
//! What cannot start yet waits in line, and what comes after it waits behind it, so that a flush
//! among reads neither starves nor is starved. Of commands that are not queued there is one at a
//! time: the drive does them one by one anyway, and so a failure is known to be that one's.

use ring3_class::block::{Data, IoError, Operation, Request};

use super::super::Level;
use super::super::command::trim_ranges;
use super::queue::PortQueue;

impl PortQueue {
    /// Writes the command of `request` into `slot`: whether it is a queued one, or `None` if the
    /// device need not be asked.
    #[inline]
    pub(super) fn write(
        &self,
        slot: u8,
        request: &Request,
        level: Level,
    ) -> Result<Option<bool>, IoError> {
        let Some(command) = self.encoder.encode(request, level)? else { return Ok(None) };
        let command = command.with_tag(slot);
        match request.operation {
            Operation::Read | Operation::Write => {
                let len = request.blocks as usize * self.block_size() as usize;
                self.port.lists.write(slot, &command, &request.data, len)?;
            }
            Operation::Discard => {
                self.port.lists.write_trim(
                    slot,
                    &command,
                    trim_ranges(request.lba, request.blocks),
                )?;
            }
            Operation::Flush | Operation::WriteZeroes => {
                self.port.lists.write_plain(slot, &command)
            }
        }
        Ok(Some(command.protocol.is_queued()))
    }

    /// Writes the command of `request` into `slot` if it is a queued one for a buffer, as almost
    /// every one is.
    #[inline]
    pub(super) fn write_queued(&self, slot: u8, request: &Request) -> bool {
        if self.level == Level::Queued
            && let Data::Buffer(buffer) = &request.data
            && let Some(frame) = self.encoder.queued_words(request, slot)
        {
            let len = request.blocks as usize * self.block_size() as usize;
            return self.port.lists.write_queued(
                slot,
                frame,
                request.operation == Operation::Write,
                buffer,
                len,
            );
        }
        false
    }

    /// Hands the commands in `slots`, all of one kind, to the device.
    #[inline]
    pub(super) fn issue(&mut self, slots: u32, queued: bool) {
        if self.issued == 0 {
            if self.signalled && self.armed {
                // What has been signalled is served. Later, the signal of what starts now would be
                // lost with it.
                self.gate.acknowledge();
                self.signalled = false;
            }
            if !queued {
                // The frames by which queued commands were accepted are none of this one.
                self.port.lists.forget_frames();
            }
            self.plain = !queued;
        }
        self.port.issue(slots, queued);
        self.issued |= slots;
    }

    /// Starts what is in line and may start.
    pub(super) fn advance(&mut self) {
        let mut batch = 0;
        while self.rung > 0
            && let Some(&slot) = self.line.front()
        {
            let queued = self.queued >> slot & 1 == 1;
            let free = self.issued | batch == 0;
            if !(free || (queued && !self.plain)) {
                break;
            }
            self.line.pop_front();
            self.rung -= 1;
            self.started |= 1 << slot;
            if !queued {
                return self.issue(1 << slot, false);
            }
            // `issue` says so too, but only at the end of the batch.
            self.plain = false;
            batch |= 1 << slot;
        }
        if batch != 0 {
            self.issue(batch, true);
        }
    }
}
