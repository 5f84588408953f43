//! QEMU's NVMe controller over qtest, poked by hand: MSI-X as eventfds, masks, the pin, the reset
//! of the function, and disks.

use std::time::{Duration, Instant};

use ring3_backend::qtest::{self, Qtest};
use ring3_backend::{OpenOptions, Uri};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::{Deadline, Device, Registers, poll_until};
use ring3_spec::nvme::identify::{Namespace, cns, namespace_list};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CC, CSTS, Cc, completion_doorbell, submission_doorbell,
};
use ring3_spec::nvme::{Completion, PHASE_BIT, PHASE_WORD, Submission};

const ENTRIES: u32 = 16;

fn open(text: &str) -> Qtest {
    let options = OpenOptions { arena: 4 << 20, ..OpenOptions::default() };
    qtest::open(&text.parse::<Uri>().unwrap(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn not_long() -> Deadline {
    Deadline::after(Duration::from_millis(50))
}

/// One queue pair, with a doorbell for each command.
struct Queue {
    number: u16,
    submissions: SubmissionRing<DmaBuffer, 8>,
    completions: CompletionRing<DmaBuffer, 2, PHASE_WORD, PHASE_BIT>,
}

impl Queue {
    fn new(device: &Qtest, number: u16) -> Self {
        let page = || device.dma().arena().alloc_pages(4096).unwrap();
        let submissions = SubmissionRing::new(page(), ENTRIES).unwrap();
        let completions = CompletionRing::new(page(), ENTRIES).unwrap();
        Self { number, submissions, completions }
    }

    fn submit(&mut self, registers: &Registers, command: Submission) {
        assert!(self.submissions.push(&command.0));
        let tail = self.submissions.publish().unwrap();
        registers.write(submission_doorbell(self.number, 0), tail);
    }

    fn reap(&mut self, registers: &Registers) -> Completion {
        let entry = poll_until(soon(), "a completion", || Ok(self.completions.pop())).unwrap();
        registers.write(completion_doorbell(self.number, 0), self.completions.publish().unwrap());
        let completion = Completion(entry);
        self.submissions.retire(completion.head().into()).unwrap();
        assert!(completion.status().is_success(), "{:#x?}", completion.0);
        completion
    }
}

struct Controller {
    registers: Registers,
    admin: Queue,
    device: Qtest,
}

impl Controller {
    /// Enables the controller with `count` interrupts of `kind`, in that order: QEMU looks at the
    /// vectors only then.
    fn enable(device: Qtest, kind: IrqKind, count: u16) -> (Self, Vec<Irq>) {
        device.set_bus_master(true).unwrap();
        let irqs = device.irqs(kind, count).unwrap();
        let controller = Self {
            registers: Registers::new(device.bar(0).unwrap(), 0x1000).unwrap(),
            admin: Queue::new(&device, 0),
            device,
        };
        controller.start();
        (controller, irqs)
    }

    fn start(&self) {
        let registers = &self.registers;
        registers.write(
            AQA,
            Aqa(0).with_submission_0based(ENTRIES - 1).with_completion_0based(ENTRIES - 1),
        );
        registers.write(ASQ, self.admin.submissions.words().iova());
        registers.write(ACQ, self.admin.completions.words().iova());
        registers.write(CC, Cc(0).with_enable(1).with_submission_entry(6).with_completion_entry(4));
        poll_until(
            soon(),
            "ready",
            || Ok((registers.read_alive(CSTS)?.ready() == 1).then_some(())),
        )
        .unwrap();
    }

    fn run(&mut self, command: Submission) -> Completion {
        self.admin.submit(&self.registers, command);
        self.admin.reap(&self.registers)
    }

    fn identify(&mut self, what: u8, namespace: u32) -> [u8; 4096] {
        let page = self.device.dma().arena().alloc_pages(4096).unwrap();
        self.run(Submission::identify(what, namespace).with_data(page.iova(), 0));
        let mut bytes = [0; 4096];
        page.read(0, &mut bytes).unwrap();
        bytes
    }

    fn create_queue(&mut self, number: u16, vector: u16) -> Queue {
        let queue = Queue::new(&self.device, number);
        self.run(Submission::create_cq(
            number,
            ENTRIES,
            queue.completions.words().iova(),
            Some(vector),
        ));
        self.run(Submission::create_sq(number, ENTRIES, queue.submissions.words().iova(), number));
        queue
    }
}

#[test]
fn each_vector_signals_its_own_eventfd() {
    let (mut controller, irqs) = Controller::enable(open("qtest:nvme,null=on"), IrqKind::MsiX, 4);
    controller.identify(cns::CONTROLLER, 0);
    assert!(irqs[0].wait(soon()).unwrap() > 0);
    let mut queue = controller.create_queue(1, 3);
    while irqs[0].wait(not_long()).unwrap() > 0 {}
    let page = controller.device.dma().arena().alloc_pages(4096).unwrap();
    queue.submit(
        &controller.registers,
        Submission::transfer(nvm::READ, 1, 0, 8, false).with_data(page.iova(), 0),
    );
    assert_eq!(irqs[3].wait(soon()).unwrap(), 1);
    queue.reap(&controller.registers);
    assert_eq!([0, 1, 2].map(|vector: usize| irqs[vector].take().unwrap()), [0, 0, 0]);
}

#[test]
fn no_interrupt_is_lost_in_a_thousand_reads() {
    let (mut controller, irqs) = Controller::enable(open("qtest:nvme,null=on"), IrqKind::MsiX, 2);
    let mut queue = controller.create_queue(1, 1);
    let page = controller.device.dma().arena().alloc_pages(4096).unwrap();
    let start = Instant::now();
    for lba in 0..1000 {
        queue.submit(
            &controller.registers,
            Submission::transfer(nvm::READ, 1, lba, 8, false).with_data(page.iova(), 0),
        );
        assert!(irqs[1].wait(soon()).unwrap() > 0, "read {lba}");
        queue.reap(&controller.registers);
    }
    println!("a read by interrupt takes {:?}", start.elapsed() / 1000);
    assert_eq!(irqs[1].stats().count, 1000);
}

#[test]
fn a_vector_that_is_masked_holds_its_interrupt_back_until_it_is_unmasked() {
    let (mut controller, irqs) = Controller::enable(open("qtest:nvme,null=on"), IrqKind::MsiX, 1);
    irqs[0].mask().unwrap();
    controller.identify(cns::CONTROLLER, 0);
    assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
    irqs[0].unmask().unwrap();
    assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
}

#[test]
fn all_vectors_of_the_device_are_offered_and_no_more() {
    let device = open("qtest:nvme,null=on,queues=64");
    assert_eq!(device.irq_limits().msix, 65);
    assert_eq!(device.irqs(IrqKind::MsiX, 65).unwrap().len(), 65);
    assert!(device.irqs(IrqKind::MsiX, 66).is_err());
}

#[test]
fn without_msix_the_pin_tells() {
    let device = open("qtest:nvme,null=on,msix=off");
    assert_eq!(device.irq_limits().msix, 0);
    let (mut controller, irqs) = Controller::enable(device, IrqKind::Intx, 1);
    for _ in 0..3 {
        controller.identify(cns::CONTROLLER, 0);
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
        irqs[0].unmask().unwrap();
        assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
    }
}

#[test]
fn a_reset_stops_the_function_and_leaves_its_interrupts_armed() {
    let (mut controller, irqs) = Controller::enable(open("qtest:nvme,null=on"), IrqKind::MsiX, 1);
    controller.identify(cns::CONTROLLER, 0);
    assert!(irqs[0].wait(soon()).unwrap() > 0);
    controller.device.reset().unwrap();
    assert_eq!(controller.registers.read_alive(CC).unwrap().enable(), 0);
    controller.admin.submissions.reset();
    controller.admin.completions.reset();
    controller.start();
    controller.identify(cns::CONTROLLER, 0);
    assert!(irqs[0].wait(soon()).unwrap() > 0);
}

#[test]
fn namespaces_have_the_formats_that_the_name_asked_for() {
    let device = open("qtest:nvme,namespaces=4,block=512:4096:512:4096,meta=0:0:8:0,size=64M");
    let (mut controller, _irqs) = Controller::enable(device, IrqKind::MsiX, 1);
    let list = controller.identify(cns::ACTIVE_NAMESPACES, 0);
    assert_eq!(namespace_list(&list).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let formats = [1, 2, 3, 4].map(|id| {
        let format = Namespace::from_bytes(&controller.identify(cns::NAMESPACE, id))
            .unwrap()
            .current_format()
            .unwrap();
        (format.block_size().unwrap(), format.metadata())
    });
    assert_eq!(formats, [(512, 0), (4096, 0), (512, 8), (4096, 0)]);
}

#[test]
fn what_is_written_to_a_file_is_there_after_qemu_has_ended() {
    let path = std::env::temp_dir().join(format!("ring3-qtest-nvme-{}", std::process::id()));
    let uri = format!("qtest:nvme,size=1M,file={}", path.display());
    let (mut controller, _irqs) = Controller::enable(open(&uri), IrqKind::MsiX, 1);
    let mut queue = controller.create_queue(1, 0);
    let page = controller.device.dma().arena().alloc_pages(4096).unwrap();
    page.fill(0xa5);
    queue.submit(
        &controller.registers,
        Submission::transfer(nvm::WRITE, 1, 8, 8, false).with_data(page.iova(), 0),
    );
    queue.reap(&controller.registers);
    drop((controller, queue, page));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bytes.len(), 1 << 20);
    assert!(
        bytes[4096..8192].iter().all(|&byte| byte == 0xa5) && bytes[8192] == 0 && bytes[4095] == 0
    );
}

#[test]
fn a_file_that_another_qemu_writes_to_is_refused_in_its_words() {
    let path = std::env::temp_dir().join(format!("ring3-qtest-lock-{}", std::process::id()));
    let uri = format!("qtest:nvme,size=1M,file={}", path.display()).parse::<Uri>().unwrap();
    let first = qtest::open(&uri, OpenOptions::default()).unwrap();
    let second = qtest::open(&uri, OpenOptions::default()).err().unwrap();
    drop(first);
    std::fs::remove_file(&path).unwrap();
    assert!(second.to_string().contains("lock"), "{second}");
}
