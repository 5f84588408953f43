//! MSI-X, INTx and reset: shown on QEMU's NVMe controller, driven register by register.

use ring3_device::dma::{Arena, DmaBuffer};
use ring3_device::irq::{Irq, IrqControl, IrqKind};
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::{Device, Error, Registers, poll_until};
use ring3_spec::nvme::identify::cns;
use ring3_spec::nvme::registers::{
    ACQ, AQA, ASQ, Aqa, CC, CSTS, Cc, completion_doorbell, submission_doorbell,
};
use ring3_spec::nvme::{Completion, PHASE_BIT, PHASE_WORD, Submission};

use super::{claim, command_in_sysfs, guest_tests, not_long, soon};
use crate::vfio::Vfio;
use crate::vfio::irq::Ties;

const ENTRIES: u32 = 16;

/// The controller with its admin queue.
pub(super) struct Controller<D = Vfio> {
    registers: Registers,
    submissions: SubmissionRing<DmaBuffer, 8>,
    completions: CompletionRing<DmaBuffer, 2, PHASE_WORD, PHASE_BIT>,
    arena: Arena,
    pub(super) device: D,
}

impl Controller {
    /// Enables the controller with `count` interrupts of `kind`, in that order: QEMU looks at the
    /// vectors only then.
    fn enable(kind: IrqKind, count: u16) -> (Self, Vec<Irq>) {
        Self::on(claim("NVME"), |device| device, kind, count)
    }
}

impl<D> Controller<D> {
    /// As [`enable`](Controller::enable), on the device that `owner` has.
    pub(super) fn on(
        owner: D,
        device: impl Fn(&D) -> &dyn Device,
        kind: IrqKind,
        count: u16,
    ) -> (Self, Vec<Irq>) {
        let device = device(&owner);
        device.set_bus_master(true).unwrap();
        let irqs = device.irqs(kind, count).unwrap();
        let arena = device.dma().arena().clone();
        let page = || arena.alloc_pages(4096).unwrap();
        let submissions = SubmissionRing::new(page(), ENTRIES).unwrap();
        let completions = CompletionRing::new(page(), ENTRIES).unwrap();
        let registers = Registers::new(device.bar(0).unwrap(), 0x1000).unwrap();
        let controller = Self { registers, submissions, completions, arena, device: owner };
        controller.start();
        (controller, irqs)
    }

    fn start(&self) {
        let registers = &self.registers;
        registers.write(
            AQA,
            Aqa(0).with_submission_0based(ENTRIES - 1).with_completion_0based(ENTRIES - 1),
        );
        registers.write(ASQ, self.submissions.words().iova());
        registers.write(ACQ, self.completions.words().iova());
        registers.write(CC, Cc(0).with_enable(1).with_submission_entry(6).with_completion_entry(4));
        poll_until(
            soon(),
            "ready",
            || Ok((registers.read_alive(CSTS)?.ready() == 1).then_some(())),
        )
        .unwrap();
    }

    /// Asks the controller who it is; returns its vendor id.
    pub(super) fn identify(&mut self) -> u16 {
        let page = self.arena.alloc_pages(4096).unwrap();
        assert!(
            self.submissions
                .push(&Submission::identify(cns::CONTROLLER, 0).with_data(page.iova(), 0).0)
        );
        self.registers.write(submission_doorbell(0, 0), self.submissions.publish().unwrap());
        let entry = poll_until(soon(), "a completion", || Ok(self.completions.pop())).unwrap();
        self.registers.write(completion_doorbell(0, 0), self.completions.publish().unwrap());
        assert!(Completion(entry).status().is_success());
        let mut bytes = [0; 2];
        page.read(0, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    }
}

guest_tests! {
    fn the_controller_identifies_itself_by_dma_and_signals_by_msix() {
        let (mut controller, irqs) = Controller::enable(IrqKind::MsiX, 3);
        assert_eq!(controller.identify(), 0x1b36);
        assert!(irqs[0].wait(soon()).unwrap() > 0);
        assert_eq!((irqs[1].take().unwrap(), irqs[2].take().unwrap()), (0, 0));
    }

    fn a_masked_vector_signals_when_it_is_unmasked() {
        let (mut controller, irqs) = Controller::enable(IrqKind::MsiX, 1);
        irqs[0].mask().unwrap();
        controller.identify();
        assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
        irqs[0].unmask().unwrap();
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
    }

    fn masking_is_a_store_to_the_table() {
        let (controller, irqs) = Controller::enable(IrqKind::MsiX, 2);
        let table = controller.device.claim.config().filter().msix.unwrap();
        let bar = controller.device.bar(table.bar).unwrap();
        assert!(table.offset + 32 <= bar.mapped_len());
        let control = || bar.read32(table.offset + 16 + 12) & 1;
        irqs[1].mask().unwrap();
        assert_eq!(control(), 1);
        irqs[1].unmask().unwrap();
        assert_eq!(control(), 0);
    }

    fn a_vector_that_is_untied_signals_when_it_is_tied_again() {
        let (mut controller, irqs) = Controller::enable(IrqKind::MsiX, 1);
        let ties = Ties::new(controller.device.claim.clone(), &[&irqs[0]], true).unwrap();
        ties.mask(0).unwrap();
        ties.mask(0).unwrap();
        controller.identify();
        assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
        ties.unmask(0).unwrap();
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
        controller.identify();
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
    }

    fn a_vector_of_which_nobody_knows_whether_it_is_tied_is_open_once_somebody_wants_it_so() {
        let (mut controller, irqs) = Controller::enable(IrqKind::MsiX, 1);
        let claim = &controller.device.claim;
        Ties::new(claim.clone(), &[&irqs[0]], true).unwrap().mask(0).unwrap();
        let adopted = Ties::new(claim.clone(), &[&irqs[0]], false).unwrap();
        controller.identify();
        assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
        adopted.unmask(0).unwrap();
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
    }

    fn the_pin_signals_once_and_again_after_it_is_unmasked() {
        let (mut controller, irqs) = Controller::enable(IrqKind::Intx, 1);
        for _ in 0..3 {
            controller.identify();
            assert!(irqs[0].wait(soon()).unwrap() > 0);
            irqs[0].unmask().unwrap();
            // What was raised before the completion was taken may come once more.
            irqs[0].wait(not_long()).unwrap();
            irqs[0].unmask().unwrap();
        }
    }

    fn another_kind_of_interrupt_takes_the_place_of_the_first() {
        let (controller, first) = Controller::enable(IrqKind::MsiX, 4);
        let second = controller.device.irqs(IrqKind::Intx, 1).unwrap();
        let third = controller.device.irqs(IrqKind::MsiX, 8).unwrap();
        assert_eq!((first.len(), second.len(), third.len()), (4, 1, 8));
        controller.device.irqs(IrqKind::MsiX, 0).unwrap();
    }

    fn more_vectors_than_there_are_is_unsupported() {
        let device = claim("NVME");
        let limits = device.irq_limits();
        assert!((limits.msix, limits.intx, limits.msi) == (65, 1, 0), "{limits:?}");
        assert!(matches!(device.irqs(IrqKind::MsiX, 66), Err(Error::Unsupported(_))));
        assert!(matches!(device.irqs(IrqKind::Msi, 1), Err(Error::Unsupported(_))));
    }

    fn a_reset_disables_the_controller_and_keeps_its_vectors() {
        let (mut controller, irqs) = Controller::enable(IrqKind::MsiX, 1);
        controller.identify();
        irqs[0].wait(soon()).unwrap();
        controller.device.reset().unwrap();
        assert_eq!(controller.registers.read(CSTS).ready(), 0);
        assert!(command_in_sysfs("NVME") & ring3_spec::pci::COMMAND_BUS_MASTER != 0);
        controller.submissions.reset();
        controller.completions.reset();
        controller.start();
        controller.identify();
        assert!(irqs[0].wait(soon()).unwrap() > 0);
    }

    fn an_access_beyond_the_bar_reads_all_ones() {
        let bar = claim("NVME").bar(0).unwrap();
        assert_eq!(bar.read32(bar.len()), u32::MAX);
        assert_eq!(bar.read64(u64::MAX - 3), u64::MAX);
        bar.write64(u64::MAX - 3, 0);
    }
}
