//! A client that drives the simulated AHCI controller register by register: enough to see what the
//! model does, and no more.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Bar, Device};
use ring3_device::{OpenOptions, Uri};
use ring3_model::ahci::{self as sim, AhciHandle};
use ring3_spec::ahci::fis::{RegisterToDevice, RegisterToHost};
use ring3_spec::ahci::port::{self, Command, Interrupts, SataControl, SataStatus, TaskFileData};
use ring3_spec::ahci::registers::{self, Control};
use ring3_spec::ahci::{BAR, CommandHeader, HeaderFlags, Region};
use ring3_spec::ata::{Identify, TaskFile, device, opcode};
use ring3_spec::register::{Reg, Value};

/// Bytes of a command table with room for some regions.
const TABLE: usize = 0x400;
/// All interrupts of a port.
pub const ALL: u32 = u32::MAX;

/// A controller and one of its ports.
pub struct Client {
    pub device: Arc<dyn Device>,
    /// The model's other side; none of QEMU's.
    handle: Option<AhciHandle>,
    pub bar: Bar,
    pub irqs: Vec<Irq>,
    pub port: u8,
    pub list: DmaBuffer,
    pub received: DmaBuffer,
    pub tables: DmaBuffer,
    /// 256 KiB for data.
    pub buffer: DmaBuffer,
}

/// Reads `count` blocks from `lba` on, one command at a time.
pub fn read(lba: u64, count: u16) -> TaskFile {
    task(opcode::READ_DMA_EXT, lba, count)
}

pub fn write(lba: u64, count: u16) -> TaskFile {
    task(opcode::WRITE_DMA_EXT, lba, count)
}

pub fn task(command: u8, lba: u64, count: u16) -> TaskFile {
    TaskFile { command, count, lba, device: device::LBA, ext: true, ..TaskFile::default() }
}

pub fn queued(command: u8, lba: u64, blocks: u16, tag: u8) -> TaskFile {
    TaskFile {
        command,
        features: blocks,
        count: u16::from(tag) << 3,
        lba,
        device: device::LBA,
        ext: true,
    }
}

pub fn identify() -> TaskFile {
    TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }
}

impl Client {
    /// The controller of `uri` as after power-on, and memory for port 0.
    pub fn open(uri: &str, interrupts: Option<IrqKind>) -> Self {
        let uri: Uri = uri.parse().unwrap();
        let options = OpenOptions { arena: 1 << 20, ..OpenOptions::default() };
        let (device, handle): (Arc<dyn Device>, _) = if uri.scheme == "sim" {
            let device = sim::open(&uri, options).unwrap();
            let handle = device.handle();
            (Arc::new(device), Some(handle))
        } else {
            (ring3_backend::open(&uri, options).unwrap(), None)
        };
        device.set_bus_master(true).unwrap();
        let irqs = interrupts.map(|kind| device.irqs(kind, 1).unwrap()).unwrap_or_default();
        irqs.iter().for_each(|irq| irq.unmask().unwrap());
        let pages = |bytes| device.dma().arena().alloc_pages(bytes).unwrap();
        let (list, received, tables, buffer) =
            (pages(4096), pages(4096), pages(32 * TABLE), pages(256 << 10));
        let bar = device.bar(BAR).unwrap();
        Self { device, handle, bar, irqs, port: 0, list, received, tables, buffer }
    }

    /// The other side of the model.
    pub fn handle(&self) -> &AhciHandle {
        self.handle.as_ref().expect("the simulated controller")
    }

    /// The same with its first port running.
    pub fn ready(uri: &str) -> Self {
        let client = Self::open(uri, Some(IrqKind::Msi));
        client.enable();
        client.start();
        client
    }

    pub fn get<T: Value<Raw = u32>, A>(&self, register: Reg<T, A>) -> T {
        T::from_raw(self.bar.read32(register.offset()))
    }

    pub fn set<T: Value<Raw = u32>, A>(&self, register: Reg<T, A>, value: T) {
        self.bar.write32(register.offset(), value.into_raw());
    }

    pub fn enable(&self) {
        self.set(registers::CONTROL, Control(0).with_enabled(1).with_interrupts(1));
    }

    /// Gives the port its memory and lets it receive frames.
    pub fn listen(&self) {
        let p = self.port;
        if self.get(port::command(p)).receive() != 0 {
            return;
        }
        self.set(port::command_list(p), self.list.iova() as u32);
        self.set(port::command_list_high(p), (self.list.iova() >> 32) as u32);
        self.set(port::received(p), self.received.iova() as u32);
        self.set(port::received_high(p), (self.received.iova() >> 32) as u32);
        self.set(port::command(p), Command(0).with_receive(1));
    }

    /// Starts the port, with all interrupts; what happened before is cleared.
    pub fn start(&self) {
        let p = self.port;
        self.listen();
        self.wait_for(|client| client.status().status().busy() == 0);
        self.set(port::sata_error(p), port::SataError(ALL));
        self.set(port::interrupt_status(p), Interrupts(ALL));
        self.set(registers::INTERRUPT_STATUS, ALL);
        self.set(port::interrupt_enable(p), Interrupts(ALL));
        self.set(port::command(p), Command(0).with_receive(1).with_start(1));
        for irq in &self.irqs {
            irq.take().unwrap();
        }
    }

    pub fn stop(&self) {
        self.set(port::command(self.port), Command(0).with_receive(1));
    }

    /// Stops the port, clears what happened and starts it again, as after an error.
    pub fn recover(&self) {
        self.stop();
        self.start();
    }

    /// Resets the link for as long as it must be.
    pub fn reset_link(&self) {
        self.set(port::sata_control(self.port), SataControl(0).with_detection(1));
        std::thread::sleep(Duration::from_millis(1));
        self.set(port::sata_control(self.port), SataControl(0));
    }

    pub fn status(&self) -> TaskFileData {
        self.get(port::task_file(self.port))
    }

    pub fn link(&self) -> SataStatus {
        self.get(port::sata_status(self.port))
    }

    pub fn happened(&self) -> Interrupts {
        self.get(port::interrupt_status(self.port))
    }

    pub fn issued(&self) -> u32 {
        self.get(port::issue(self.port))
    }

    pub fn active(&self) -> u32 {
        self.get(port::active(self.port))
    }

    /// Writes a command into `slot`, with `regions` of memory.
    pub fn put_regions(&self, slot: u8, command: &TaskFile, write: bool, regions: &[Region]) {
        let table = usize::from(slot) * TABLE;
        self.tables.write(table, &RegisterToDevice::of(command).0).unwrap();
        for (i, region) in regions.iter().enumerate() {
            for (half, word) in region.into_raw().into_iter().enumerate() {
                self.tables.write(table + 0x80 + i * 16 + half * 8, &word.to_le_bytes()).unwrap();
            }
        }
        let flags = HeaderFlags(0)
            .with_frame_dwords(5)
            .with_write(write.into())
            .with_regions(regions.len() as u32);
        let mut header = CommandHeader::zeroed();
        header.set_flags(flags.0).set_table(self.tables.iova() + table as u64);
        self.list.write(usize::from(slot) * 32, &header.0).unwrap();
    }

    /// Writes a command into `slot` whose data are `bytes` at `at` of the buffer.
    pub fn put(&self, slot: u8, command: &TaskFile, write: bool, at: usize, bytes: usize) {
        let region = Region::new(self.buffer.iova() + at as u64, bytes as u32);
        self.put_regions(slot, command, write, region.as_slice());
    }

    pub fn issue(&self, slots: u32) {
        self.set(port::issue(self.port), slots);
    }

    pub fn issue_queued(&self, slots: u32) {
        self.set(port::active(self.port), slots);
        self.issue(slots);
    }

    /// Puts and issues a command in slot 0, and waits until the port is done with it or has
    /// stopped; says how it ended.
    pub fn run(&self, command: &TaskFile, write: bool, bytes: usize) -> TaskFileData {
        self.put(0, command, write, 0, bytes);
        self.issue(1);
        self.wait_for(|client| {
            client.issued() & 1 == 0 || client.happened().0 & Interrupts::FATAL.0 != 0
        });
        self.status()
    }

    /// The same for a queued command, under tag 0.
    pub fn run_queued(&self, command: u8, lba: u64, blocks: u16, bytes: usize) -> TaskFileData {
        self.put(0, &queued(command, lba, blocks, 0), command == opcode::WRITE_QUEUED, 0, bytes);
        self.issue_queued(1);
        self.wait_for(|client| {
            client.active() & 1 == 0 || client.happened().0 & Interrupts::FATAL.0 != 0
        });
        self.status()
    }

    pub fn identify(&self) -> Identify {
        assert!(!self.run(&identify(), false, 512).status().failed());
        Identify::from_bytes(&self.bytes(0, 512)).unwrap()
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(at, &mut bytes).unwrap();
        bytes
    }

    pub fn fill(&self, byte: u8) {
        self.buffer.write(0, &vec![byte; self.buffer.len()]).unwrap();
    }

    /// Writes blocks of `byte`, and says how it ended.
    pub fn write_bytes(&self, lba: u64, count: u16, byte: u8) -> TaskFileData {
        self.fill(byte);
        self.run(&write(lba, count), true, usize::from(count) * 512)
    }

    /// The first byte of a block of 512 bytes on the medium.
    pub fn peek(&self, lba: u64) -> u8 {
        let mut byte = [0];
        assert!(self.handle().peek(self.port.into(), lba * 512, &mut byte));
        byte[0]
    }

    /// The register frame among the received ones.
    pub fn frame(&self) -> RegisterToHost {
        let mut bytes = [0; 20];
        self.received.read(0x40, &mut bytes).unwrap();
        RegisterToHost(bytes)
    }

    /// A command header.
    pub fn header(&self, slot: u8) -> CommandHeader {
        let mut bytes = [0; 32];
        self.list.read(usize::from(slot) * 32, &mut bytes).unwrap();
        CommandHeader(bytes)
    }

    /// Bytes that the controller says it moved.
    pub fn moved(&self, slot: u8) -> u32 {
        self.header(slot).moved()
    }

    /// Clears what has happened, in the port first.
    pub fn acknowledge(&self) {
        self.set(port::interrupt_status(self.port), Interrupts(ALL));
        self.set(registers::INTERRUPT_STATUS, ALL);
    }

    pub fn wait_for(&self, ready: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !ready(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "it did not happen in ten seconds");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Interrupts that have come since the last call.
    pub fn taken(&self) -> u64 {
        self.irqs[0].take().unwrap()
    }

    /// Asserts that the client broke no rule.
    pub fn is_blameless(&self) {
        let violations = self.handle.as_ref().map(AhciHandle::violations);
        assert_eq!(violations.unwrap_or_default(), Vec::<String>::new());
    }
}
