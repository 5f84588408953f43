//! The registers of one channel: what is written and read where, and nothing of why.
//!
//! # Cost
//! Each access leaves the processor, and over VFIO each is a system call, so that none is made that
//! need not be. A command of 28 bits costs six writes, its DMA two, and its end two to four
//! accesses.

use ring3_device::{Device, Error, Registers};
use ring3_spec::ata::{ErrorBits, Signature, Status, TaskFile, device};
use ring3_spec::ide::{
    self, BUS_MASTER_BAR, BusMasterCommand, BusMasterStatus, DeviceControl, bus_master, command,
    control,
};

/// Bytes of both channels' bus masters. [BMIDE 2.0]
const BUS_MASTER_LEN: u64 = 2 * bus_master::STRIDE as u64;

/// The ports of a channel.
pub(super) struct Ports {
    command: Registers,
    control: Registers,
    bus_master: Option<Registers>,
    channel: u8,
    /// What the device register holds; 0, which is never written, if that is not known.
    device: u8,
    /// What the bus master command holds beside the start bit.
    direction: BusMasterCommand,
    /// What the bus master was told of its table, if the register says so when it is read. It is
    /// not written again, so that a reset shows for as long as nobody has dealt with it.
    witness: Option<u32>,
    /// The register has changed by itself, and is no witness any more.
    is_distrusted: bool,
    /// The data port takes accesses of 32 bits.
    wide: bool,
    /// nIEN.
    interrupts_off: bool,
}

impl Ports {
    /// The ports of `channel` (0 or 1), with those of its bus master if `bus_master` says that it
    /// has one.
    pub(super) fn new(
        device: &dyn Device,
        channel: u8,
        bus_master: bool,
        wide: bool,
    ) -> Result<Self, Error> {
        let bus_master = if bus_master {
            Some(Registers::new(device.bar(BUS_MASTER_BAR)?, BUS_MASTER_LEN)?)
        } else {
            None
        };
        Ok(Self {
            command: Registers::new(device.bar(ide::command_bar(channel))?, command::LEN)?,
            control: Registers::new(device.bar(ide::control_bar(channel))?, control::LEN)?,
            bus_master,
            channel,
            device: 0,
            direction: BusMasterCommand(0),
            witness: None,
            is_distrusted: false,
            wide,
            interrupts_off: true,
        })
    }

    /// Makes `drive` the one that the other registers are of; true if that takes effect only after
    /// [`await_selection`](Self::await_selection).
    pub(super) fn select(&mut self, drive: u8) -> bool {
        let changed = self.device == 0 || self.device & device::SLAVE != slave(drive);
        if changed {
            self.set_device(device::OBSOLETE | device::LBA | slave(drive));
        }
        changed
    }

    /// Whatever the device register holds, it is not known: the drives were reset, or one of them
    /// has failed.
    pub(super) fn forget(&mut self) {
        self.device = 0;
    }

    fn set_device(&mut self, value: u8) {
        self.command.write(command::DEVICE, value);
        self.device = value;
    }

    /// Waits the 400 ns after which the status is the drive's that was selected, or the command's
    /// that was written: a read of a port takes at least 100 ns. [ATA-6 9.5, note; ATA-6 9.7]
    pub(super) fn await_selection(&self) {
        for _ in 0..4 {
            self.alternate();
        }
    }

    /// The status, without effect on the interrupt.
    pub(super) fn alternate(&self) -> Status {
        self.control.read(control::ALTERNATE_STATUS)
    }

    /// The status; takes the drive's interrupt back.
    pub(super) fn status(&mut self) -> Status {
        self.command.take(command::STATUS)
    }

    /// Why the last command failed.
    pub(super) fn error(&self) -> ErrorBits {
        self.command.read(command::ERROR)
    }

    /// What the selected drive left in count and address after a reset. [ATA-6 9.12]
    pub(super) fn signature(&self) -> Signature {
        let registers = [command::COUNT, command::LBA_LOW, command::LBA_MID, command::LBA_HIGH];
        Signature::from_raw(u32::from_le_bytes(
            registers.map(|register| self.command.read(register)),
        ))
    }

    /// Starts `task` on `drive`, which is selected and idle. [ATA-6 6.20, 7.2]
    pub(super) fn start(&mut self, drive: u8, task: &TaskFile) {
        let [low, mid, high, low_high, mid_high, high_high] = task.lba_bytes();
        let ([count, count_high], [features, features_high]) =
            (task.count.to_le_bytes(), task.features.to_le_bytes());
        // A command of 28 bits has address bits here, and the drive may have moved them on; one of
        // 48 bits has only the drive.
        let device = task.device_byte() | device::OBSOLETE | slave(drive);
        if !task.ext || self.device != device {
            self.set_device(device);
        }
        // No command that this driver sends has features that may be left over from another.
        if task.ext {
            if task.features != 0 {
                self.command.write(command::FEATURES, features_high);
            }
            self.write_half(count_high, [low_high, mid_high, high_high]);
        }
        if task.features != 0 {
            self.command.write(command::FEATURES, features);
        }
        self.write_half(count, [low, mid, high]);
        self.command.write(command::COMMAND, task.command);
    }

    fn write_half(&self, count: u8, [low, mid, high]: [u8; 3]) {
        self.command.write(command::COUNT, count);
        self.command.write(command::LBA_LOW, low);
        self.command.write(command::LBA_MID, mid);
        self.command.write(command::LBA_HIGH, high);
    }

    /// Lets the drives raise their interrupt, or not.
    pub(super) fn set_interrupts(&mut self, on: bool) {
        self.interrupts_off = !on;
        self.write_control(false);
    }

    /// Holds the drives in software reset, or lets them go; the master is selected then. [ATA-6
    /// 9.2]
    pub(super) fn set_reset(&mut self, on: bool) {
        self.device = device::OBSOLETE;
        self.write_control(on);
    }

    fn write_control(&self, reset: bool) {
        let control = DeviceControl(0)
            .with_interrupts_off(self.interrupts_off.into())
            .with_software_reset(reset.into());
        self.control.write(control::DEVICE_CONTROL, control);
    }

    /// Takes the drive's next block of data.
    pub(super) fn read_data(&mut self, bytes: &mut [u8]) {
        let (bar, at) = (self.command.bar(), command::DATA_IN.offset());
        if self.wide { bar.read_string32(at, bytes) } else { bar.read_string16(at, bytes) }
    }

    /// Gives the drive its next block of data.
    pub(super) fn write_data(&mut self, bytes: &[u8]) {
        let (bar, at) = (self.command.bar(), command::DATA_OUT.offset());
        if self.wide { bar.write_string32(at, bytes) } else { bar.write_string16(at, bytes) }
    }
}

/// The bus master; without one these do nothing, and its status is all zeros.
impl Ports {
    /// Whether there is one.
    pub(super) fn has_bus_master(&self) -> bool {
        self.bus_master.is_some()
    }

    /// Prepares a transfer as the table at `table` says. [BMIDE 1.3, steps 1 and 2]
    pub(super) fn prepare(&mut self, table: u32, to_memory: bool) {
        let Some(bus_master) = &self.bus_master else { return };
        if self.witness != Some(table) {
            bus_master.write(bus_master::table(self.channel), table);
        }
        let direction = BusMasterCommand(0).with_to_memory(to_memory.into());
        if self.direction != direction {
            bus_master.write(bus_master::command(self.channel), direction);
            self.direction = direction;
        }
    }

    /// Tells the bus master `table`, by which a reset is seen from now on that nobody has told the
    /// driver of. A register that does not hold what was written is no witness.
    pub(super) fn set_witness(&mut self, table: u32) {
        let Some(bus_master) = &self.bus_master else { return };
        bus_master.write(bus_master::table(self.channel), table);
        let is_held = bus_master.read(bus_master::table(self.channel)) == table;
        self.witness = is_held.then_some(table).filter(|_| !self.is_distrusted);
    }

    /// From now on no reset is seen by the table.
    pub(super) fn distrust_witness(&mut self) {
        (self.witness, self.is_distrusted) = (None, true);
    }

    /// Whether the bus master has forgotten its table: the controller was reset, and the drives
    /// with it. A drive that is idle has then not done what it was told, and its registers are not
    /// what the driver has written.
    pub(super) fn has_forgotten(&self) -> bool {
        let table = |bus_master: &Registers| bus_master.read(bus_master::table(self.channel));
        let told = self.witness.zip(self.bus_master.as_ref());
        told.is_some_and(|(told, bus_master)| table(bus_master) != told)
    }

    /// Starts the transfer that was prepared; the drive has its command. [BMIDE 1.3, step 4]
    pub(super) fn engage(&self) {
        if let Some(bus_master) = &self.bus_master {
            bus_master.write(bus_master::command(self.channel), self.direction.with_start(1));
        }
    }

    /// Stops the transfer, whether it has ended or not. [BMIDE 3.1]
    pub(super) fn stop(&self) {
        if let Some(bus_master) = &self.bus_master {
            bus_master.write(bus_master::command(self.channel), self.direction);
        }
    }

    /// How the transfer is.
    pub(super) fn bus_status(&self) -> BusMasterStatus {
        self.bus_master
            .as_ref()
            .map_or(BusMasterStatus(0), |ports| ports.read(bus_master::status(self.channel)))
    }

    /// Clears the interrupt and the error in `status`, if they are set; firmware's notes stay.
    pub(super) fn clear(&self, status: BusMasterStatus) {
        if let Some(bus_master) = &self.bus_master
            && (status.interrupt() | status.error()) != 0
        {
            bus_master
                .write(bus_master::status(self.channel), status.with_active(0).with_simplex(0));
        }
    }

    /// A register of the chip's own between the bus master's.
    pub(super) fn chip_registers(&self) -> Option<&Registers> {
        self.bus_master.as_ref()
    }
}

fn slave(drive: u8) -> u8 {
    if drive == 0 { 0 } else { device::SLAVE }
}
