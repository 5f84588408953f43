//! How a command runs: its start, and the looks at it. The data that the processor moves are in
//! `pio.rs`.
//!
//! # Ordering
//! [BMIDE 1.3] A transfer: table and direction, command, start. Its end: bus master status, drive
//! status (which takes the drive's interrupt back), stop, clear. Data are in memory when the bus
//! master says that it is neither active nor in error. Without an interrupt the drive's alternate
//! status says when to look at the bus master.
//!
//! # Trust
//! That a command has ended well is said by both, drive and bus master: what only one of them says
//! is repeated.

use std::time::Duration;

use ring3_class::block::{IoError, Operation};
use ring3_device::{Deadline, order, poll_until};
use ring3_spec::ata::Status;
use ring3_spec::ide::BusMasterStatus;

use super::super::command::{Command, Protocol};
use super::super::options::Level;
use super::channel::{Channel, ChannelFault, End, Running};

/// How long a drive that should be idle may take to say so, and to ask for the first block of a PIO
/// write.
pub(super) const PROMPTLY: Duration = Duration::from_millis(5);

/// What a bus master says that is not there any more.
const ALL_ONES: BusMasterStatus = BusMasterStatus(u8::MAX);

impl Channel {
    /// Gives the running command to its drive. An error ends the request; nothing was started then.
    pub(super) fn launch(&mut self) -> Result<(), IoError> {
        let Some(drive) = self.running.as_ref().map(|running| running.drive) else { return Ok(()) };
        if self.is_reset_under_us() || self.was_reset_unasked() {
            return Ok(());
        }
        let command = self.command()?;
        self.stats.commands += 1;
        let Some(running) = &mut self.running else { return Ok(()) };
        let flushes = running.request.operation == Operation::Flush;
        let epoch = if flushes {
            self.timeouts.epoch_for(self.function.options.flush_timeout)
        } else {
            self.timeouts.epoch()
        };
        (running.command, running.moved, running.epoch, running.suspicious) =
            (Some(command), 0, epoch, false);
        running.attempts = running.attempts.saturating_add(1);
        if !self.is_idle(drive) {
            self.trouble =
                Some(ChannelFault::Reset("the drive is not ready for a command", IoError::Timeout));
            return Ok(());
        }
        self.idle = false;
        if command.is_dma() {
            let table = self.describe().ok_or(IoError::Invalid)?;
            self.ports.prepare(table, !command.protocol.writes());
            self.ports.start(drive, &command.task);
            self.ports.engage();
            return Ok(());
        }
        self.ports.start(drive, &command.task);
        self.ports.await_selection();
        if command.protocol == Protocol::PioOut {
            self.give_first_block();
        }
        Ok(())
    }

    /// What the running request tells its drive, as fast as drive and function can move data now.
    fn command(&mut self) -> Result<Command, IoError> {
        let has_dma = self.function.has_dma() && self.table.is_some();
        let Some(Running { drive, request, .. }) = &self.running else {
            return Err(IoError::Invalid);
        };
        let Some(state) = self.states[usize::from(*drive & 1)].as_deref() else {
            return Err(IoError::Gone);
        };
        if let Some(error) = state.fault {
            return Err(error);
        }
        let level = if has_dma { state.level() } else { Level::Pio };
        match state.encoder.encode(request, level)? {
            // A TRIM has no form that the processor moves.
            Some(command) if level == Level::Pio && command.is_dma() => Err(IoError::Unsupported),
            Some(command) => Ok(command),
            None => Err(IoError::Invalid),
        }
    }

    /// Selects `drive` and makes sure that it takes a command. [ATA-6 9.7, HI1 and HI2]
    fn is_idle(&mut self, drive: u8) -> bool {
        if !self.ports.select(drive) && self.idle {
            return true;
        }
        self.ports.await_selection();
        let idle = || Some(self.ports.alternate()).filter(|status| is_over(*status));
        idle().is_some()
            || poll_until(Deadline::after(PROMPTLY), "a drive to be idle", || Ok(idle())).is_ok()
    }

    /// Writes the table; its device address.
    fn describe(&self) -> Option<u32> {
        let (table, running) = (self.table.as_ref()?, self.running.as_ref()?);
        let request = &running.request;
        if request.operation == Operation::Discard {
            return table.describe_trim(request.lba, request.blocks);
        }
        table.describe(&request.data, self.bytes())
    }

    /// Bytes of the running request.
    pub(super) fn bytes(&self) -> usize {
        let Some(Running { drive, request, .. }) = &self.running else { return 0 };
        let block_size =
            self.states[usize::from(*drive & 1)].as_ref().map_or(0, |state| state.block_size);
        request.blocks as usize * block_size as usize
    }

    /// How the running command has ended, if it has. A PIO command's next block is moved.
    #[inline]
    pub(super) fn poll_completions(&mut self) -> Option<End> {
        match self.running.as_ref()?.command.as_ref()?.protocol {
            Protocol::DmaIn | Protocol::DmaOut if self.polled => self.look_at_dma(),
            Protocol::DmaIn | Protocol::DmaOut => self.look_for_interrupt(),
            Protocol::NonData => self.look_at_drive(),
            Protocol::PioIn | Protocol::PioOut => self.look_at_pio(),
            Protocol::QueuedIn | Protocol::QueuedOut => Some(End::Short),
        }
    }

    /// A transfer that ends with an interrupt: one read of the bus master's status while it runs.
    /// [BMIDE 3.2]
    fn look_for_interrupt(&mut self) -> Option<End> {
        let bus = self.ports.bus_status();
        // All ones are no news here: whether the function is gone is looked for now and then.
        if bus.interrupt() | bus.error() == 0 || bus == ALL_ONES {
            return None;
        }
        // Takes the drive's interrupt back.
        let status = self.ports.status();
        if !is_over(status) && bus.error() == 0 {
            self.stats.stray_interrupts += 1;
            self.acknowledge();
            return None;
        }
        self.end_of_dma(bus, status)
    }

    /// A transfer without an interrupt: one read of the drive's status while it runs.
    fn look_at_dma(&mut self) -> Option<End> {
        let status = self.ports.alternate();
        if !is_over(status) {
            return None;
        }
        let bus = self.ports.bus_status();
        // The last bytes are on their way to memory, or the drive has not noticed its command yet.
        let still_moving = bus.active() == 1 && bus.error() == 0 && !status.failed();
        if still_moving || bus == ALL_ONES { None } else { self.end_of_dma(bus, status) }
    }

    /// Stops the bus master and says how the transfer went. [BMIDE 3.2, table of the states]
    pub(super) fn end_of_dma(&mut self, bus: BusMasterStatus, status: Status) -> Option<End> {
        self.ports.stop();
        self.ports.clear(bus);
        if !self.polled {
            self.function.chip.acknowledge(
                &*self.function.device,
                self.number,
                self.ports.chip_registers(),
            );
        }
        order::take_back();
        if !is_over(status) || (bus.active() == 1 && self.ports.bus_status().active() == 1) {
            let why = if bus.error() == 1 {
                "the bus master could not reach memory"
            } else {
                "the bus master does not stop"
            };
            self.trouble = Some(ChannelFault::Reset(why, IoError::Transport));
            return None;
        }
        self.idle = true;
        Some(if status.failed() {
            self.failed(status)
        } else if bus.active() == 1 || bus.error() == 1 {
            End::Short
        } else {
            return self.done();
        })
    }

    /// An end as it should be: none if the drive is idle because it was reset.
    pub(super) fn done(&mut self) -> Option<End> {
        if self.was_reset_unasked() { None } else { Some(End::Done) }
    }

    /// Whether somebody else has reset the controller. A command that is given to it then would
    /// meet other blocks.
    fn was_reset_unasked(&mut self) -> bool {
        let was_reset = self.ports.has_forgotten();
        if was_reset {
            // Twice for one command, the second time right behind the driver's own reset: it is the
            // chip that changes the register.
            if self.running.as_ref().is_some_and(|running| running.attempts > 1) {
                tracing::warn!(
                    "{}: channel {} does not keep its table: resets by others are not seen",
                    self.function.device.name(),
                    self.number
                );
                self.ports.distrust_witness();
            }
            let why = "the controller was reset behind the driver's back";
            self.trouble = Some(ChannelFault::Reset(why, IoError::Transport));
        }
        was_reset
    }

    /// The drive says that the command failed.
    #[cold]
    pub(super) fn failed(&mut self, status: Status) -> End {
        let error = self.ports.error();
        // It may have left anything in its registers.
        self.ports.forget();
        End::Failed(status, error)
    }

    /// A command without data.
    fn look_at_drive(&mut self) -> Option<End> {
        if self.ports.alternate().busy() == 1 {
            return None;
        }
        let status = self.ports.status();
        self.acknowledge();
        if !is_over(status) {
            self.trouble = Some(ChannelFault::Reset(
                "the drive is gone, or wants data for a command that has none",
                IoError::Transport,
            ));
            return None;
        }
        self.idle = true;
        if status.failed() { Some(self.failed(status)) } else { self.done() }
    }

    /// Whatever becomes of the running command, it is not given to the drive once more.
    pub(super) fn no_more_attempts(&mut self) {
        if let Some(running) = &mut self.running {
            running.attempts = super::channel::ATTEMPTS;
        }
    }
}

/// Whether a drive with `status` works on nothing.
pub(super) fn is_over(status: Status) -> bool {
    status.busy() == 0 && status.data_request() == 0 && !is_absent(status)
}

/// Whether nobody may be there: a bus that floats, or a master that answers for its slave. A busy
/// drive may say the first, too.
pub(super) fn is_absent(status: Status) -> bool {
    status.0 == 0 || status.is_floating()
}
