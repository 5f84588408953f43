//! A client that drives the simulated controller register by register: enough to see what the model
//! does, and no more.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Bar, Device};
use ring3_device::{OpenOptions, Uri};
use ring3_model::nvme::{self, NvmeHandle};
use ring3_spec::nvme::registers::{self, Aqa, Cc, Csts};
use ring3_spec::nvme::{Completion, PHASE_BIT, Status, Submission, opcode};

/// Entries of every queue.
pub const ENTRIES: u32 = 16;

/// A queue pair, whose rings the client reads and writes by hand.
pub struct Pair {
    pub id: u16,
    pub submission: DmaBuffer,
    pub completion: DmaBuffer,
    pub tail: u32,
    pub head: u32,
}

/// A controller with its admin queue and, once it is ready, I/O queue 1.
pub struct Client {
    pub device: Arc<dyn Device>,
    /// The model's other side; none of QEMU's.
    handle: Option<NvmeHandle>,
    pub bar: Bar,
    pub admin: Pair,
    pub queue: Pair,
    pub irqs: Vec<Irq>,
    /// 64 KiB for data.
    pub buffer: DmaBuffer,
    /// A page for lists of pages.
    list: DmaBuffer,
    next_id: u16,
}

impl Client {
    /// The controller of `uri`, disabled, with as many interrupts of a kind as wanted.
    pub fn open(uri: &str, interrupts: Option<(IrqKind, u16)>) -> Self {
        let uri: Uri = uri.parse().unwrap();
        let options = OpenOptions { arena: 4 << 20, ..OpenOptions::default() };
        let (device, handle): (Arc<dyn Device>, _) = if uri.scheme == "sim" {
            let device = nvme::open(&uri, options).unwrap();
            let handle = device.handle();
            (Arc::new(device), Some(handle))
        } else {
            (ring3_backend::open(&uri, options).unwrap(), None)
        };
        device.set_bus_master(true).unwrap();
        let irqs =
            interrupts.map(|(kind, count)| device.irqs(kind, count).unwrap()).unwrap_or_default();
        let pair = |id| {
            let pages = || device.dma().arena().alloc_pages(4096).unwrap();
            Pair { id, submission: pages(), completion: pages(), tail: 0, head: 0 }
        };
        let (admin, queue) = (pair(0), pair(1));
        let buffer = device.dma().arena().alloc_pages(64 << 10).unwrap();
        let list = device.dma().arena().alloc_pages(4096).unwrap();
        let bar = device.bar(0).unwrap();
        Self { device, handle, bar, admin, queue, irqs, buffer, list, next_id: 1 }
    }

    /// The other side of the model.
    pub fn handle(&self) -> &NvmeHandle {
        self.handle.as_ref().expect("the simulated controller")
    }

    /// The controller of `uri`, enabled, with I/O queue 1, whose interrupts go to vector 1 if there
    /// is one and to 0 if not.
    pub fn ready(uri: &str) -> Self {
        Self::ready_with(uri, Some((IrqKind::MsiX, 2)), 1)
    }

    pub fn ready_with(uri: &str, interrupts: Option<(IrqKind, u16)>, vector: u16) -> Self {
        let mut client = Self::open(uri, interrupts);
        client.enable();
        client.create_queue(vector);
        client
    }

    /// Writes CC.EN with the admin queue in place.
    pub fn enable(&mut self) {
        let bar = &self.bar;
        let sizes = Aqa(0).with_submission_0based(ENTRIES - 1).with_completion_0based(ENTRIES - 1);
        bar.write32(registers::AQA.offset(), sizes.0);
        bar.write64(registers::ASQ.offset(), self.admin.submission.iova());
        bar.write64(registers::ACQ.offset(), self.admin.completion.iova());
        bar.write32(
            registers::CC.offset(),
            Cc(0).with_enable(1).with_submission_entry(6).with_completion_entry(4).0,
        );
        if self.handle.is_none() {
            self.wait_for(|client| client.status().ready() == 1);
        }
    }

    pub fn create_queue(&mut self, vector: u16) {
        let (cq, sq) = (self.queue.completion.iova(), self.queue.submission.iova());
        assert_eq!(
            self.admin(Submission::create_cq(1, ENTRIES, cq, Some(vector))).status(),
            Status::SUCCESS
        );
        assert_eq!(self.admin(Submission::create_sq(1, ENTRIES, sq, 1)).status(), Status::SUCCESS);
    }

    pub fn status(&self) -> Csts {
        Csts(self.bar.read32(registers::CSTS.offset()))
    }

    /// Writes a command into the queue and rings; returns its id.
    pub fn submit(&mut self, admin: bool, command: Submission) -> u16 {
        let id = self.next_id;
        self.next_id += 1;
        let pair = if admin { &mut self.admin } else { &mut self.queue };
        let bytes: Vec<u8> =
            command.with_id(id).0.iter().flat_map(|word| word.to_le_bytes()).collect();
        pair.submission.write(pair.tail as usize * 64, &bytes).unwrap();
        pair.tail = (pair.tail + 1) % ENTRIES;
        self.bar.write32(registers::submission_doorbell(pair.id, 0).offset(), pair.tail);
        id
    }

    /// The next completion, if it has the right phase; taken without a doorbell.
    pub fn pop(&mut self, admin: bool) -> Option<Completion> {
        let pair = if admin { &mut self.admin } else { &mut self.queue };
        let mut bytes = [0; 16];
        pair.completion.read((pair.head % ENTRIES) as usize * 16, &mut bytes).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let expected = u64::from((pair.head / ENTRIES).is_multiple_of(2));
        if word(8) >> PHASE_BIT & 1 != expected {
            return None;
        }
        pair.head += 1;
        Some(Completion([word(0), word(8)]))
    }

    /// Tells the controller what was taken.
    pub fn acknowledge(&mut self, admin: bool) {
        let pair = if admin { &self.admin } else { &self.queue };
        self.bar.write32(registers::completion_doorbell(pair.id, 0).offset(), pair.head % ENTRIES);
    }

    /// The next completion, waited for up to ten seconds.
    pub fn wait(&mut self, admin: bool) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.pop(admin) {
                self.acknowledge(admin);
                return completion;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "no completion");
            std::thread::yield_now();
        }
    }

    /// The end of a command, which the model owes at once.
    fn end(&mut self, admin: bool) -> Completion {
        if self.handle.is_none() {
            return self.wait(admin);
        }
        let completion = self.pop(admin).expect("a command ends at once");
        self.acknowledge(admin);
        completion
    }

    /// An admin command and its end.
    pub fn admin(&mut self, command: Submission) -> Completion {
        let id = self.submit(true, command);
        let completion = self.end(true);
        assert_eq!(completion.id(), id);
        completion
    }

    /// An I/O command and its status.
    pub fn io(&mut self, command: Submission) -> Status {
        let id = self.submit(false, command);
        let completion = self.end(false);
        assert_eq!((completion.id(), completion.queue()), (id, 1));
        completion.status()
    }

    /// Asks until `done`, for up to ten seconds.
    pub fn wait_for(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "it never came");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Disables the controller and makes it ready again, with its queues empty.
    pub fn restart(&mut self) {
        self.bar.write32(registers::CC.offset(), 0);
        for pair in [&mut self.admin, &mut self.queue] {
            (pair.tail, pair.head) = (0, 0);
            pair.completion.fill(0);
        }
        self.enable();
        self.create_queue(1);
    }

    /// Reads or writes blocks of 512 bytes of namespace 1 through the buffer, up to 64 KiB.
    pub fn transfer(&mut self, opcode: u8, lba: u64, blocks: u32, fua: bool) -> Status {
        let list = self.list.iova();
        let pages = (blocks * 512).div_ceil(4096) as u64;
        (1..pages).for_each(|page| {
            let entry = (self.buffer.iova() + page * 4096).to_le_bytes();
            self.list.write((page as usize - 1) * 8, &entry).unwrap();
        });
        let second = if pages == 2 { self.buffer.iova() + 4096 } else { list };
        self.io(
            Submission::transfer(opcode, 1, lba, blocks, fua).with_data(self.buffer.iova(), second)
        )
    }

    /// Reads blocks of namespace 1 into the buffer.
    pub fn read(&mut self, lba: u64, blocks: u32) -> Status {
        self.transfer(opcode::nvm::READ, lba, blocks, false)
    }

    /// Writes `byte` all over blocks of namespace 1, which must work.
    pub fn write(&mut self, lba: u64, blocks: u32, byte: u8) {
        self.buffer.fill(byte);
        assert_eq!(self.transfer(opcode::nvm::WRITE, lba, blocks, false), Status::SUCCESS);
    }

    /// A byte of the buffer.
    pub fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        self.buffer.read(at, &mut byte).unwrap();
        byte[0]
    }

    /// A byte of the medium of namespace 1.
    pub fn peek(&self, at: u64) -> u8 {
        let mut byte = [0];
        assert!(self.handle().peek(1, at, &mut byte));
        byte[0]
    }

    /// An identify structure.
    pub fn identify(&mut self, cns: u8, namespace: u32) -> Vec<u8> {
        self.fetch(Submission::identify(cns, namespace), 4096)
    }

    /// A log page.
    pub fn log(&mut self, page: u8, bytes: u32) -> Vec<u8> {
        self.fetch(Submission::get_log_page(page, bytes, false), bytes as usize)
    }

    fn fetch(&mut self, command: Submission, len: usize) -> Vec<u8> {
        let command = command.with_data(self.buffer.iova(), 0);
        assert_eq!(self.admin(command).status(), Status::SUCCESS);
        let mut bytes = vec![0; len];
        self.buffer.read(0, &mut bytes).unwrap();
        bytes
    }
}
