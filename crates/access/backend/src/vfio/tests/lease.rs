//! One claim and several drivers: shown on QEMU's NVMe controller, whose registers each of them
//! maps.

use std::sync::Arc;
use std::time::Duration;

use ring3_device::dma::Region;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Device, Error};
use ring3_lease::Quiesce;
use ring3_spec::nvme::registers::CSTS;
use ring3_spec::pci;

use super::nvme::Controller;
use super::{address, command_in_sysfs, guest_tests, not_long, soon};
use crate::{Claim, OpenOptions, attach, claim};

pub(super) fn claimed() -> Claim {
    claim(
        &format!("vfio:{}", address("NVME")).parse().unwrap(),
        OpenOptions { arena: 1 << 20, ..OpenOptions::default() },
    )
    .unwrap()
}

pub(super) fn start_on(
    claim: &Claim,
    kind: IrqKind,
    count: u16,
) -> (Controller<Arc<dyn Device>>, Vec<Irq>) {
    Controller::on(attach(claim.lease().unwrap(), None).unwrap(), |device| &**device, kind, count)
}

/// As the driver's manifest says; not by a reset.
pub(super) fn fence(claim: &Claim) -> Duration {
    let fenced = claim
        .quiesce(Quiesce::from_manifest(ring3_driver::nvme::DRIVER.manifest).unwrap().as_ref())
        .unwrap();
    assert!(!fenced.reset);
    assert_eq!(command_in_sysfs("NVME") & pci::COMMAND_BUS_MASTER, 0);
    fenced.took
}

guest_tests! {
    fn each_driver_on_a_claim_has_mapped_registers_and_the_interrupts_of_the_last_one() {
        let claim = claimed();
        for _ in 0..3 {
            let (mut controller, irqs) = start_on(&claim, IrqKind::MsiX, 2);
            assert!(controller.device.bar(0).unwrap().mapped_len() > 0x1000);
            assert_eq!(controller.identify(), 0x1b36);
            assert!(irqs[0].wait(soon()).unwrap() > 0);
            irqs[0].mask().unwrap();
            controller.identify();
            assert_eq!(irqs[0].wait(not_long()).unwrap(), 0);
            drop((controller, irqs));
            println!("fenced in {:?}", fence(&claim));
        }
    }

    fn a_pin_that_is_left_masked_signals_the_next_driver() {
        let claim = claimed();
        for _ in 0..3 {
            let (mut controller, irqs) = start_on(&claim, IrqKind::Intx, 1);
            for _ in 0..2 {
                controller.identify();
                assert!(irqs[0].wait(soon()).unwrap() > 0);
                irqs[0].unmask().unwrap();
                // What was raised before the completion was taken may come once more.
                irqs[0].wait(not_long()).unwrap();
                irqs[0].unmask().unwrap();
            }
            controller.identify();
            irqs[0].wait(soon()).unwrap();
            drop((controller, irqs));
            fence(&claim);
        }
    }

    fn a_driver_that_goes_leaves_the_controller_enabled_and_the_claim_disables_it() {
        let claim = claimed();
        drop(start_on(&claim, IrqKind::MsiX, 1));
        let next = attach(claim.hand_over().unwrap(), None).unwrap();
        assert_eq!(next.bar(0).unwrap().read32(CSTS.offset()) & 1, 1);
        assert_ne!(command_in_sysfs("NVME") & pci::COMMAND_BUS_MASTER, 0);
        drop(next);
        drop(claim);
        assert_eq!(command_in_sysfs("NVME") & pci::COMMAND_BUS_MASTER, 0);
    }

    fn what_a_dead_driver_has_mapped_is_free_after_the_fence() {
        let claim = claimed();
        let pages = || Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap();
        let device = attach(claim.lease().unwrap(), None).unwrap();
        let mapping = device.dma().map(pages()).unwrap();
        let iova = mapping.iova();
        // It dies with it.
        std::mem::forget(mapping);
        drop(claim.quiesce(None));
        assert!(matches!(device.dma().map(pages()), Err(Error::Claim(_))));
        let next = attach(claim.lease().unwrap(), None).unwrap();
        next.dma().map_at(pages(), iova).unwrap();
    }
}
