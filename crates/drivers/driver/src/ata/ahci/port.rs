//! One port: its registers, its memory, and the states between "nobody knows" and "takes commands".
//! [AHCI 10.1.2, 10.3, 10.4]

use std::sync::Arc;
use std::time::Duration;

use ring3_device::dma::Arena;
use ring3_device::order::hand_over;
use ring3_device::{Bar, Deadline, Error, Registers, poll_until};
use ring3_spec::ahci::port::{
    self, Command as PortCommand, Interrupts, SataControl, SataError, SataStatus, TaskFileData,
};
use ring3_spec::ahci::{fis::QueuedErrorLog, registers};
use ring3_spec::ata::{ErrorBits, Identify, SECTOR, Signature, Status, TaskFile, log, opcode};

use super::super::Options;
use super::super::cache::Cache;
use super::super::command::{Command, Encoder, Protocol, STANDBY, read_log};
use super::super::statistics;
use super::lists::{Failure, Lists};
use crate::disk::write_cache::PowerCount;

/// ST and FRE are followed by CR and FR within this. [AHCI 10.1.2]
const STOP: Duration = Duration::from_millis(port::STOP_MILLIS);
/// PxSCTL.DET = 1 stands this long: at least a millisecond. [AHCI 10.4.2]
const COMRESET: Duration = Duration::from_millis(2);
/// A drive that is there is noticed within this as a rule; the link's own limit is 10 ms [SATA
/// 8.4.1]. One that was used has longer: `port_reset.rs`.
pub(super) const NOTICE: Duration = Duration::from_millis(100);
/// The same where nobody was noticed before either, just above the link's limit: whoever waits for
/// a disk on another port does not wait for empty ones.
pub(super) const NOTICE_AGAIN: Duration = Duration::from_millis(12);
/// PxCMD.ICC: active.
const ACTIVE: u32 = 1;
/// PxSCTL.IPM: no power saving of the link, which would look like an unplugged drive and costs
/// time.
const NO_POWER_SAVING: u32 = 3;

/// What raises the interrupt: ends of commands, what stops the port, and drives that come or go.
const ENABLED: Interrupts = Interrupts(Interrupts::FATAL.0)
    .with_register_frame(1)
    .with_device_bits(1)
    .with_connect_change(1)
    .with_phy_change(1);
/// What is cleared by acknowledging. What stops the port stays, so that it is not lost.
const ROUTINE: Interrupts = Interrupts(0)
    .with_register_frame(1)
    .with_pio_frame(1)
    .with_dma_frame(1)
    .with_device_bits(1)
    .with_region_done(1);

/// Whether `events` are of a link that was lost, or of a drive that was plugged in.
pub(super) fn is_link_change(events: Interrupts) -> bool {
    events.connect_change() | events.phy_change() == 1
}

/// A port with the memory that its device knows.
pub(super) struct Port {
    index: u8,
    registers: Registers,
    pub(super) lists: Arc<Lists>,
    /// The controller's generation in which it was made ready.
    pub(super) generation: u32,
    /// It takes commands, and none is left over from before.
    pub(super) ready: bool,
    /// The fastest generation of the link that is allowed, which counts from its next reset on; 0
    /// is any. [AHCI 3.3.11, PxSCTL.SPD]
    speed_limit: u32,
    /// What the drive's volatile cache may have lost.
    pub(super) cache: Cache,
}

/// The interrupt registers of one port, for whoever holds them back or lets them through.
#[derive(Clone)]
pub(super) struct PortInterruptMask {
    bar: Bar,
    index: u8,
}

impl PortInterruptMask {
    /// Takes back what the port has signalled so far, so that the next end signals again. [AHCI
    /// 5.6.2: the port first]
    #[inline]
    pub(super) fn acknowledge(&self) {
        self.bar.write32(port::interrupt_status(self.index).offset(), ROUTINE.0);
        self.bar.write32(registers::INTERRUPT_STATUS.offset(), 1 << self.index);
    }

    /// No more interrupts of this port.
    pub(super) fn close(&self) {
        self.bar.write32(port::interrupt_enable(self.index).offset(), 0);
    }

    /// Interrupts from now on. What has ended before, and whose interrupt never comes, is in memory
    /// when this returns.
    pub(super) fn open(&self) {
        self.bar.write32(port::interrupt_status(self.index).offset(), ROUTINE.0);
        // The answer to a read comes after all that the device has written to memory before it.
        let left = self.bar.read32(port::interrupt_status(self.index).offset()) & !ROUTINE.0;
        // Trouble is not acknowledged before it is mended, and would signal again and again until
        // then.
        self.bar.write32(port::interrupt_enable(self.index).offset(), ENABLED.0 & !left);
        self.bar.write32(registers::INTERRUPT_STATUS.offset(), 1 << self.index);
    }
}

impl Port {
    /// Port `index` with its memory. The controller was reset, so the port is stopped.
    pub(super) fn new(bar: Bar, index: u8, lists: Lists, generation: u32) -> Result<Self, Error> {
        let registers = Registers::new(bar, 0)?;
        // The limit of who had it before goes with a reset of the controller.
        let speed_limit = registers.read(port::sata_control(index)).speed();
        Ok(Self {
            index,
            registers,
            lists: Arc::new(lists),
            generation,
            ready: false,
            speed_limit,
            cache: Cache::default(),
        })
    }

    /// The addresses that port `index` was told: of the command list and of the received frames.
    pub(super) fn addresses_at(bar: &Bar, index: u8) -> Result<(u64, u64), Error> {
        let registers = Registers::new(bar.clone(), 0)?;
        let read =
            |low, high| u64::from(registers.read(low)) | u64::from(registers.read(high)) << 32;
        registers.read_alive(port::command(index))?;
        let list = read(port::command_list(index), port::command_list_high(index));
        Ok((list, read(port::received(index), port::received_high(index))))
    }

    /// The same port, to be kept in its seat when its queue ends.
    pub(super) fn again(&self) -> Result<Self, Error> {
        let registers = Registers::new(self.registers.bar().clone(), 0)?;
        let Self { index, generation, ready, speed_limit, .. } = *self;
        Ok(Self {
            index,
            registers,
            lists: self.lists.clone(),
            generation,
            ready,
            speed_limit,
            cache: self.cache.clone(),
        })
    }

    /// Makes room for `slots` commands. The port is stopped.
    pub(super) fn resize(&mut self, arena: &Arena, slots: u8) -> Result<(), Error> {
        let lists = Arc::get_mut(&mut self.lists)
            .ok_or_else(|| Error::Busy("a port's memory is in use".into()))?;
        lists.resize(arena, slots)
    }

    /// Gives its memory up for good, because the device may still write to it.
    pub(super) fn abandon(&self) {
        std::mem::forget(self.lists.clone());
    }

    /// Its number.
    pub(super) fn index(&self) -> u8 {
        self.index
    }

    /// Its interrupt registers.
    pub(super) fn gate(&self) -> PortInterruptMask {
        PortInterruptMask { bar: self.registers.bar().clone(), index: self.index }
    }

    /// Tells the port its memory, and the drive to start up. Whether there is one shows later. The
    /// controller was reset, and the link with it. [AHCI 10.1.2 steps 3 to 5]
    pub(super) fn begin(&mut self) {
        self.cache.expect_link_loss();
        self.ready = false;
        let (list, received) = self.lists.addresses();
        self.registers.write(port::command_list(self.index), list as u32);
        self.registers.write(port::command_list_high(self.index), (list >> 32) as u32);
        self.registers.write(port::received(self.index), received as u32);
        self.registers.write(port::received_high(self.index), (received >> 32) as u32);
        self.registers.write(port::interrupt_enable(self.index), Interrupts(0));
        self.clear();
        // Frames are received before the drive may send one: the first one is its signature.
        let command =
            PortCommand(0).with_receive(1).with_power_on(1).with_spin_up(1).with_link_state(ACTIVE);
        self.registers.write(port::command(self.index), command);
        if self.speed_limit == 0 {
            self.registers.write(port::sata_control(self.index), self.link_control());
        } else {
            // The link has come up with the controller's reset, as fast as it goes.
            self.comreset();
        }
    }

    /// PxSCTL while the link is up.
    fn link_control(&self) -> SataControl {
        SataControl(0).with_power(NO_POWER_SAVING).with_speed(self.speed_limit)
    }

    /// Whether the link was lost, or a drive was plugged in, since errors were last forgotten.
    pub(super) fn has_lost_link(&self) -> bool {
        self.events().is_ok_and(is_link_change)
    }

    /// Forgets errors and interrupts, but for what they say of the drive's cache. [AHCI 10.1.2
    /// steps 5 and 6]
    pub(super) fn clear(&mut self) {
        if self.has_lost_link() {
            self.cache.lose_link();
        }
        self.registers.write(port::sata_error(self.index), SataError(u32::MAX));
        self.registers.write(port::interrupt_status(self.index), Interrupts(u32::MAX));
        self.registers.write(registers::INTERRUPT_STATUS, 1 << self.index);
        self.lists.forget_frames();
    }

    /// Its lists are as no command has touched them, and nothing has happened so far. Nothing is in
    /// flight.
    pub(super) fn reinitialise(&mut self) {
        self.lists.name_tables();
        self.clear();
    }

    /// Whether there is a drive with a link; waits for one that was noticed within `notice`.
    /// `since` counts from the start of the link.
    pub(super) fn has_drive(&self, since: Deadline, notice: Duration) -> Result<bool, Error> {
        let found = poll_until(since, "the link to a drive (PxSSTS.DET)", || {
            let status = self.registers.read_alive(port::sata_status(self.index))?;
            let nobody = status.detection() == 0 && since.elapsed() >= notice;
            Ok((status.detection() == SataStatus::LINKED || nobody).then_some(status.detection()))
        })?;
        Ok(found == SataStatus::LINKED)
    }

    /// The generation of the link: 1 has 1.5 Gbit/s, and each further one twice that; 0 is none.
    /// [AHCI 3.3.10]
    pub(super) fn link_speed(&self) -> Result<u32, Error> {
        Ok(self.registers.read_alive(port::sata_status(self.index))?.speed())
    }

    /// Keeps the link at this generation or below, from its next reset on.
    pub(super) fn limit_speed(&mut self, generation: u32) {
        self.speed_limit = generation;
    }

    /// Waits until the drive is ready for commands, and says what it is. [AHCI 10.1.1, 3.3.9]
    pub(super) fn signature(&self, deadline: Deadline) -> Result<Signature, Error> {
        poll_until(deadline, "a drive to become ready (BSY = 0, DRQ = 0)", || {
            let task_file = self.registers.read_alive(port::task_file(self.index))?;
            let sleeping = task_file.status().busy() | task_file.status().data_request() == 1;
            Ok((!sleeping).then_some(()))
        })?;
        Ok(Signature::from_raw(self.registers.read(port::signature(self.index))))
    }

    /// Lets the port take commands. The drive is ready. [AHCI 10.3.1]
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.clear();
        let command = self.registers.read_alive(port::command(self.index))?;
        self.registers.write(port::command(self.index), command.with_start(1));
        poll_until(Deadline::after(STOP), "a port to start (PxCMD.CR = 1)", || {
            Ok((self.registers.read_alive(port::command(self.index))?.running() == 1).then_some(()))
        })?;
        self.cache.expect_link();
        self.ready = true;
        Ok(())
    }

    /// Stops the port. When this succeeds, it moves no data. [AHCI 10.3.2]
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        self.ready = false;
        let command = self.registers.read_alive(port::command(self.index))?;
        self.registers.write(port::command(self.index), command.with_start(0));
        poll_until(Deadline::after(STOP), "a port to stop (PxCMD.CR = 0)", || {
            Ok((self.registers.read_alive(port::command(self.index))?.running() == 0).then_some(()))
        })
    }

    /// Stops the port after an error and starts it again; fails if its drive needs a reset for
    /// that. [AHCI 6.2.2.1]
    pub(super) fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        let status = self.task_file()?.status();
        if status.busy() | status.data_request() == 1 {
            return Err(Error::Fatal("the drive is still busy after its port was stopped".into()));
        }
        self.start()
    }

    /// Begins a reset of the drive over its link, which [`end_link_reset`](Self::end_link_reset)
    /// follows. [AHCI 10.4.2]
    pub(super) fn begin_link_reset(&mut self) {
        // A port that does not stop by itself may do so when its drive starts anew.
        let _ = self.stop();
        self.pulse();
    }

    /// The reset of the link is over, whether there is a drive or not. When this succeeds, the port
    /// is stopped and moves no data.
    pub(super) fn end_link_reset(&mut self) -> Result<(), Error> {
        // What the reset did to the link is no news any more. [AHCI 10.4.2]
        self.clear();
        self.stop()
    }

    /// Stops the port, and has its drive forget what it was asked. When this succeeds, the port
    /// moves no data.
    pub(super) fn interrupt(&mut self) -> Result<(), Error> {
        let stopped = self.stop();
        // A drive with commands left over is of no use.
        self.pulse();
        stopped.or_else(|_| self.stop())
    }

    /// A reset of the link: what a drive was asked is forgotten, and it starts anew.
    fn pulse(&mut self) {
        self.clear();
        self.cache.expect_link_loss();
        self.comreset();
    }

    /// COMRESET alone. The port is stopped.
    pub(super) fn comreset(&self) {
        let control = self.link_control();
        self.registers.write(port::sata_control(self.index), control.with_detection(1));
        std::thread::sleep(COMRESET);
        self.registers.write(port::sata_control(self.index), control);
    }

    /// The drive's status and error.
    pub(super) fn task_file(&self) -> Result<TaskFileData, Error> {
        self.registers.read_alive(port::task_file(self.index))
    }

    /// What has happened, not acknowledged by this.
    pub(super) fn events(&self) -> Result<Interrupts, Error> {
        self.registers.read_alive(port::interrupt_status(self.index))
    }

    /// Whether the port still runs; what its registers say of commands means nothing otherwise.
    pub(super) fn is_running(&self) -> bool {
        let command = self.registers.read(port::command(self.index));
        command.0 != u32::MAX && command.start() == 1
    }

    /// Hands the commands in `slots` to the device: one write, and for queued ones one before it.
    /// [AHCI 5.5.1, 3.3.13]
    #[inline]
    pub(super) fn issue(&self, slots: u32, queued: bool) {
        hand_over();
        let bar = self.registers.bar();
        if queued {
            bar.write32(port::active(self.index).offset(), slots);
        }
        bar.write32(port::issue(self.index).offset(), slots);
    }

    /// A bit for each command that has not ended: of queued commands, or of others.
    #[inline]
    pub(super) fn outstanding(&self, queued: bool) -> u32 {
        let register = if queued { port::active(self.index) } else { port::issue(self.index) };
        self.registers.bar().read32(register.offset())
    }

    /// Sends a command that reads 512 bytes, and waits for its end. Nothing else is in flight.
    fn fetch(
        &mut self,
        command: &Command,
        timeout: Duration,
        what: &'static str,
    ) -> Result<[u8; SECTOR], Error> {
        self.execute(command, timeout, what)?;
        self.lists.own()
    }

    /// Sends a command without data, or one that reads 512 bytes, and waits for its end. Nothing
    /// else is in flight.
    fn execute(
        &mut self,
        command: &Command,
        timeout: Duration,
        what: &'static str,
    ) -> Result<(), Error> {
        self.lists.forget_frames();
        let before = self.lists.write_own(command)?;
        self.issue(1, false);
        let ended = poll_until(Deadline::after(timeout), what, || {
            let frames = self.lists.take_frames(true);
            if let Some(Failure { status, error }) = frames.failure {
                let (status, error) = (status.0, error.0);
                return Err(Error::Unsupported(format!(
                    "{what}: the drive failed it (status {status:#04x}, error {error:#04x})"
                )));
            }
            let outstanding = self.outstanding(false) & 1 != 0;
            // Read after that bit: an end by an error that clears the bit is seen as an error.
            let events = self.events()?;
            if events.task_file_error() == 1 {
                return Err(Error::Unsupported(format!("{what}: the drive failed it")));
            }
            if events.0 & Interrupts::FATAL.0 != 0 {
                return Err(Error::Fatal(format!(
                    "{what}: the transfer failed (PxIS {:#010x})",
                    events.0
                )));
            }
            Ok((!outstanding).then_some(()))
        });
        // Slot 0 is the port's until the command has ended or the port is stopped.
        let ended = ended.or_else(|error| self.stop().and(Err(error)));
        self.lists.restore(before);
        ended?;
        self.clear();
        Ok(())
    }

    /// Makes the drive's cache durable and parks the drive, whose power may go then. Nothing is in
    /// flight.
    pub(super) fn park(&mut self, encoder: &Encoder, options: &Options) -> Result<(), Error> {
        let is_disturbed = self.cache.is_disturbed() || self.has_lost_link();
        if self.cache.has_lost() || (!self.cache.is_clean() && is_disturbed) {
            let text = "it may have lost its power, with writes that were not flushed: check what \
                        was written last";
            return Err(Error::Fatal(text.into()));
        }
        if let Some(flush) = encoder.flush() {
            self.execute(&flush, options.flush_timeout, "FLUSH CACHE")?;
            let _ = self.cache.flushed();
        }
        match self.execute(&STANDBY, options.timeout, "STANDBY IMMEDIATE") {
            // It has nothing to park.
            Err(Error::Unsupported(_)) => Ok(()),
            other => other,
        }
    }

    /// What the drive says about itself. [ACS-3 7.12]
    pub(super) fn identify(&mut self, timeout: Duration) -> Result<Identify, Error> {
        let task = TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() };
        let command = Command { task, protocol: Protocol::PioIn };
        self.fetch(&command, timeout, "IDENTIFY DEVICE").map(Identify)
    }

    /// How often the drive, which describes itself by `data`, was powered on. After an error the
    /// port is stopped, and the drive may still be at it.
    pub(super) fn first_power_count(
        &mut self,
        data: &Identify,
        timeout: Duration,
    ) -> Result<PowerCount, Error> {
        statistics::first_power_count(data, |command| self.fetch_log(&command, timeout))
    }

    /// Asks a drive that counts how often it was powered on, and notes what it has lost. The port
    /// takes commands, before and afterwards. After an error the drive is not asked again.
    pub(super) fn look_for_loss(&mut self, timeout: Duration) -> Result<(), Error> {
        let undisturbed = !self.cache.take_disturbance();
        let asked = if self.cache.counts_power() {
            statistics::power_count(|command| self.fetch_log(&command, timeout))
        } else {
            Ok(PowerCount::UNKNOWN)
        };
        self.cache.compare(*asked.as_ref().unwrap_or(&PowerCount::UNKNOWN), undisturbed);
        asked.map(drop)
    }

    /// The page of a log that `command` reads; `None` if the drive refuses.
    fn fetch_log(
        &mut self,
        command: &Command,
        timeout: Duration,
    ) -> Result<Option<[u8; SECTOR]>, Error> {
        match self.fetch(command, timeout, "reading how often a drive was powered on") {
            Ok(page) => Ok(Some(page)),
            // That has stopped the port. [AHCI 6.2.2.1]
            Err(Error::Unsupported(_)) => self.restart().map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Says in the log of driver `name` what the drive has lost, if it has.
    pub(super) fn report_loss(&self, name: &str) {
        if self.cache.has_lost() {
            let index = self.index;
            tracing::error!(
                "{name} port {index}: its power was lost, or its link, and it does not say: writes \
                since the last flush may be lost, and the next flush fails; check what was written \
                last"
            );
        }
    }

    /// Which queued command failed, and how; lets the drive take commands again. [ACS-3 9.13, AHCI
    /// 6.2.2.2]
    pub(super) fn queued_error(&mut self, timeout: Duration) -> Result<(u8, Failure), Error> {
        let command = read_log(log::QUEUED_ERROR, 0);
        let page =
            self.fetch(&command, timeout, "reading the log of the queued command that failed")?;
        // The last byte makes the sum of all zero. [ACS-3 9.13.1]
        let sum = page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        let log = QueuedErrorLog(page);
        match log.tag() {
            Some(tag) if sum == 0 => {
                Ok((tag, Failure { status: Status(log.status()), error: ErrorBits(log.error()) }))
            }
            _ => {
                Err(Error::Protocol("the log of the queued command that failed names none".into()))
            }
        }
    }

    /// Stops the port for good: no commands, no frames, no addresses. When this succeeds, it
    /// reaches for no memory.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        self.gate().close();
        self.stop()?;
        let command = self.registers.read_alive(port::command(self.index))?;
        self.registers.write(port::command(self.index), command.with_receive(0));
        poll_until(Deadline::after(STOP), "a port to receive no more (PxCMD.FR = 0)", || {
            Ok((self.registers.read_alive(port::command(self.index))?.receiving() == 0)
                .then_some(()))
        })?;
        for address in
            [port::command_list, port::command_list_high, port::received, port::received_high]
        {
            self.registers.write(address(self.index), 0);
        }
        Ok(())
    }
}
