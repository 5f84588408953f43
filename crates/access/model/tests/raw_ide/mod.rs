//! A client that drives the simulated IDE controller port by port: enough to see what the model
//! does, and no more.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::{Duration, Instant};

use ring3_device::OpenOptions;
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Bar, Device};
use ring3_model::ide::{self as sim, IdeHandle, SimIde};
use ring3_spec::ata::{ErrorBits, Identify, Signature, Status, TaskFile, device, opcode};
use ring3_spec::ide::{
    self, BusMasterCommand, BusMasterStatus, DeviceControl, Prd, bus_master, command, control,
};

/// A controller, and the channel and the drive that the client talks to.
pub struct Client {
    pub device: SimIde,
    pub handle: IdeHandle,
    pub irqs: Vec<Irq>,
    command: [Bar; 2],
    control: [Bar; 2],
    pub master: Bar,
    pub channel: u8,
    pub drive: u8,
    /// 256 KiB for data, at a multiple of 64 KiB.
    pub buffer: DmaBuffer,
    pub table: DmaBuffer,
}

pub fn read(lba: u64, count: u16) -> TaskFile {
    task(opcode::READ_DMA_EXT, lba, count, true)
}

pub fn write(lba: u64, count: u16) -> TaskFile {
    task(opcode::WRITE_DMA_EXT, lba, count, true)
}

pub fn task(command: u8, lba: u64, count: u16, ext: bool) -> TaskFile {
    TaskFile { command, count, lba, device: device::LBA, ext, ..TaskFile::default() }
}

pub fn identify() -> TaskFile {
    TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }
}

pub fn feature(feature: u8, count: u16) -> TaskFile {
    TaskFile {
        command: opcode::SET_FEATURES,
        features: feature.into(),
        count,
        ..TaskFile::default()
    }
}

impl Client {
    /// The controller of `uri`, with all its interrupts, and its first drive selected.
    pub fn open(uri: &str) -> Self {
        let options = OpenOptions { arena: 1 << 20, below: 1 << 32, ..OpenOptions::default() };
        let device = sim::open(&uri.parse().unwrap(), options).unwrap();
        device.set_bus_master(true).unwrap();
        let irqs = device.irqs(IrqKind::Intx, device.irq_limits().intx).unwrap();
        irqs.iter().for_each(|irq| irq.unmask().unwrap());
        let bar = |index| device.bar(index).unwrap();
        let (command, control) =
            ([0, 1].map(|c| bar(ide::command_bar(c))), [0, 1].map(|c| bar(ide::control_bar(c))));
        let buffer = device.dma().arena().alloc(256 << 10, 64 << 10).unwrap();
        let table = device.dma().arena().alloc_pages(4096).unwrap();
        let (handle, master) = (device.handle(), bar(ide::BUS_MASTER_BAR));
        Self { device, handle, irqs, command, control, master, channel: 0, drive: 0, buffer, table }
    }

    /// Goes over to drive `index` of four.
    pub fn select(&mut self, index: u8) {
        (self.channel, self.drive) = (index / 2, index % 2);
        self.put(command::DEVICE.offset(), if self.drive == 1 { device::SLAVE } else { 0 });
    }

    fn block(&self) -> &Bar {
        &self.command[usize::from(self.channel)]
    }

    pub fn put(&self, port: u64, value: u8) {
        self.block().write8(port, value);
    }

    pub fn get(&self, port: u64) -> u8 {
        self.block().read8(port)
    }

    pub fn control(&self, value: DeviceControl) {
        self.control[usize::from(self.channel)].write8(control::DEVICE_CONTROL.offset(), value.0);
    }

    /// Reads the status without clearing the interrupt.
    pub fn alternate_status(&self) -> Status {
        Status(self.control[usize::from(self.channel)].read8(control::ALTERNATE_STATUS.offset()))
    }

    /// The status; the drive takes its interrupt back.
    pub fn status(&self) -> Status {
        Status(self.get(command::STATUS.offset()))
    }

    pub fn error(&self) -> ErrorBits {
        ErrorBits(self.get(command::ERROR.offset()))
    }

    /// Writes a command into the registers, and starts it.
    pub fn start(&self, task: &TaskFile) {
        let slave = if self.drive == 1 { device::SLAVE } else { 0 };
        self.put(command::DEVICE.offset(), task.device_byte() | slave);
        let [a, b, c, d, e, f] = task.lba_bytes();
        let ([features, features_high], [count, count_high]) =
            (task.features.to_le_bytes(), task.count.to_le_bytes());
        let halves = [[features_high, count_high, d, e, f], [features, count, a, b, c]];
        for half in halves.into_iter().skip(usize::from(!task.ext)) {
            (1..).zip(half).for_each(|(port, value)| self.put(port, value));
        }
        self.put(command::COMMAND.offset(), task.command);
    }

    /// Waits until the drive is not busy.
    pub fn idle(&self) -> Status {
        self.wait_for(|client| client.alternate_status().busy() == 0);
        self.alternate_status()
    }

    /// Takes `bytes` from the data port, and the interrupt before each `block` of them.
    pub fn take(&self, bytes: usize, block: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < bytes {
            if data.len().is_multiple_of(block) {
                self.idle();
                assert_eq!(self.status().data_request(), 1, "at byte {}", data.len());
            }
            data.extend(self.block().read16(0).to_le_bytes());
        }
        data
    }

    /// Gives `data` to the data port, and takes the interrupt behind each `block` of them.
    pub fn give(&self, data: &[u8], block: usize) {
        for (i, word) in data.chunks_exact(2).enumerate() {
            if (i * 2).is_multiple_of(block) {
                self.idle();
                assert_eq!(self.status().data_request(), 1, "at byte {}", i * 2);
            }
            self.block().write16(0, u16::from_le_bytes([word[0], word[1]]));
        }
        self.idle();
    }

    pub fn data_port(&self) -> u16 {
        self.block().read16(0)
    }

    pub fn identify(&self) -> Identify {
        self.start(&identify());
        Identify::from_bytes(&self.take(512, 512)).unwrap()
    }

    /// Writes the table of `regions` and hands it to the bus master.
    pub fn put_table(&self, regions: &[Prd]) {
        for (i, region) in regions.iter().enumerate() {
            let region = if i + 1 == regions.len() { region.with_last() } else { *region };
            self.table.write(i * Prd::SIZE, &region.into_raw().to_le_bytes()).unwrap();
        }
        self.master.write32(bus_master::table(self.channel).offset(), self.table.iova() as u32);
        let clear = BusMasterStatus(0).with_error(1).with_interrupt(1);
        self.master.write8(bus_master::status(self.channel).offset(), clear.0);
    }

    pub fn start_master(&self, to_memory: bool) {
        let start = BusMasterCommand(0).with_start(1).with_to_memory(to_memory.into());
        self.master.write8(bus_master::command(self.channel).offset(), start.0);
    }

    pub fn master_status(&self) -> BusMasterStatus {
        BusMasterStatus(self.master.read8(bus_master::status(self.channel).offset()))
    }

    pub fn stop_master(&self) {
        self.master.write8(bus_master::command(self.channel).offset(), 0);
    }

    pub fn regions(&self, bytes: usize) -> Vec<Prd> {
        let piece = |at: usize| {
            Prd::new(self.buffer.iova() + at as u64, (bytes - at).min(1 << 16) as u32).unwrap()
        };
        (0..bytes).step_by(1 << 16).map(piece).collect()
    }

    /// Moves the data of a command by the bus master; says what bus master and drive say then.
    pub fn dma(&self, task: &TaskFile, to_memory: bool, bytes: usize) -> (BusMasterStatus, Status) {
        let (master, _) = self.dma_without_status(task, to_memory, bytes);
        (master, self.status())
    }

    /// The same, and the drive keeps its interrupt.
    pub fn dma_without_status(
        &self,
        task: &TaskFile,
        to_memory: bool,
        bytes: usize,
    ) -> (BusMasterStatus, Status) {
        self.put_table(&self.regions(bytes));
        self.start(task);
        self.start_master(to_memory);
        self.wait_for(|client| {
            client.alternate_status().busy() == 0 && client.alternate_status().data_request() == 0
        });
        let master = self.master_status();
        self.stop_master();
        (master, self.alternate_status())
    }

    /// Writes blocks of `byte` and says how it ended.
    pub fn write_bytes(&self, lba: u64, count: u16, byte: u8) -> Status {
        self.fill(byte);
        self.dma(&write(lba, count), false, usize::from(count) * 512).1
    }

    pub fn fill(&self, byte: u8) {
        self.buffer.write(0, &vec![byte; self.buffer.len()]).unwrap();
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(at, &mut bytes).unwrap();
        bytes
    }

    /// The first byte of a block of 512 bytes on the medium of the selected drive.
    pub fn peek(&self, lba: u64) -> u8 {
        let mut byte = [0];
        assert!(self.handle.peek(usize::from(self.channel * 2 + self.drive), lba * 512, &mut byte));
        byte[0]
    }

    pub fn reset(&self) {
        self.control(DeviceControl(0).with_software_reset(1));
        std::thread::sleep(Duration::from_micros(5));
        self.control(DeviceControl(0));
    }

    /// Sets and clears the reset bit, as fast as it goes.
    pub fn pulse_reset(&self) {
        self.control(DeviceControl(0).with_software_reset(1));
        self.control(DeviceControl(0));
    }

    /// What the selected drive left in its registers.
    pub fn signature(&self) -> Signature {
        let registers = [command::COUNT, command::LBA_LOW, command::LBA_MID, command::LBA_HIGH];
        Signature::from_raw(u32::from_le_bytes(
            registers.map(|register| self.get(register.offset())),
        ))
    }

    /// Interrupts of the channel that have come since the last call; it is open again then.
    pub fn taken(&self) -> u64 {
        let irq = &self.irqs[usize::from(self.channel).min(self.irqs.len() - 1)];
        let count = irq.take().unwrap();
        irq.unmask().unwrap();
        count
    }

    pub fn wait_for(&self, ready: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !ready(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "it did not happen in ten seconds");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Asserts that the client broke no rule.
    pub fn is_blameless(&self) {
        assert_eq!(self.handle.violations(), Vec::<String>::new());
    }
}
