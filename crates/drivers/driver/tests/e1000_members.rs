//! The members of the family that are programmed as the 82574L is, each with its errata.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_class::net::{Nic, QueueSettings};
use ring3_device::{Bar, Device};
use ring3_driver::e1000::{E1000, Options};
use ring3_model::e1000::{self as sim, E1000Handle};
use ring3_spec::e1000::BAR;
use ring3_spec::e1000::general::{self, ControlExtended, NvmControl, Semaphore};

const MEMORY: OpenOptions =
    OpenOptions { arena: 8 << 20, below: u64::MAX, unprotected: false, memory: None };
const KIN: [&str; 5] = ["82573e", "82573l", "82574l", "82574la", "82583v"];

/// A member that is driven, with one queue.
struct Rig {
    card: E1000,
    handle: E1000Handle,
    bar: Bar,
    device: Arc<dyn Device>,
}

impl Rig {
    fn new(options: &str) -> Self {
        Self::after(options, |_| {})
    }

    /// One of which `before` was done before its driver came.
    fn after(options: &str, before: impl FnOnce(&Bar)) -> Self {
        let device = sim::open(&format!("sim:e1000{options}").parse().unwrap(), MEMORY).unwrap();
        let (handle, bar) = (device.handle(), device.bar(BAR).unwrap());
        before(&bar);
        let device: Arc<dyn Device> = Arc::new(device);
        let card = E1000::open(device.clone(), Options::default()).unwrap();
        Self { card, handle, bar, device }
    }

    fn start(&self) {
        drop(self.card.open_queues(1, &QueueSettings::default()).unwrap());
    }

    fn semaphore(&self) -> Semaphore {
        // What this reads before sets SMBI.
        Semaphore(self.bar.read32(general::SEMAPHORE.offset()))
    }
}

#[test]
fn each_member_is_known_by_its_id_and_started_with_the_bits_that_its_errata_take() {
    let known = KIN.map(|member| {
        let rig = Rig::new(&format!(",card={member}"));
        rig.start();
        assert_eq!(rig.handle.violations(), Vec::<String>::new(), "{member}");
        rig.card.info().model.clone()
    });
    assert_eq!(known, ["82573E/V", "82573L", "82574L", "82574LA", "82583V"]);
}

#[test]
fn an_82573_and_an_82583_have_no_msix() {
    let has_msix = KIN.map(|member| {
        let rig = Rig::new(&format!(",card={member}"));
        rig.device.irq_limits().msix > 0
    });
    assert_eq!(has_msix, [false, false, true, true, false]);
}

#[test]
fn an_82573_offers_neither_long_frames_nor_large_sends() {
    let offers = KIN.map(|member| {
        let rig = Rig::new(&format!(",card={member}"));
        let info = rig.card.info();
        (info.mtu.1, info.max_segmented > 0, info.offloads.tso4, info.offloads.tso6)
    });
    let all = (9000, true, true, true);
    assert_eq!(offers, [(1500, false, false, false), (1500, false, false, false), all, all, all]);
}

#[test]
fn an_82573_waits_for_firmware_and_holds_swsm_while_it_uses_phy_and_nvm() {
    let begin = Instant::now();
    let rig = Rig::new(",card=82573l,firmware=150ms");
    assert!(begin.elapsed() >= Duration::from_millis(150), "firmware had them");
    assert_eq!(rig.handle.violations(), Vec::<String>::new());
    assert_eq!((rig.semaphore().driver(), rig.semaphore().software()), (0, 0));
}

#[test]
fn swsm_of_an_82573_is_taken_from_a_driver_that_has_died_with_it() {
    let rig = Rig::after(",card=82573l", |bar| {
        // Reading it takes it.
        assert_eq!(bar.read32(general::SEMAPHORE.offset()), 0);
    });
    assert_eq!(rig.handle.violations(), Vec::<String>::new());
    assert_eq!(rig.semaphore().driver(), 0);
}

#[test]
fn firmware_of_an_82573_sees_in_swsm_that_a_driver_came_and_that_it_has_gone() {
    let Rig { card, bar, .. } = Rig::new(",card=82573e");
    let loaded = || Semaphore(bar.read32(general::SEMAPHORE.offset())).driver_loaded();
    assert_eq!(loaded(), 1);
    drop(card);
    assert_eq!(loaded(), 0);
}

#[test]
fn firmware_of_an_82583_sees_its_driver_in_ctrl_ext_and_only_there() {
    let rig = Rig::new(",card=82573l");
    let extended = ControlExtended(rig.bar.read32(general::CONTROL_EXTENDED.offset()));
    assert_eq!((extended.driver_loaded(), extended.pending_clear()), (0, 0));
    let rig = Rig::new(",card=82583v");
    let extended = ControlExtended(rig.bar.read32(general::CONTROL_EXTENDED.offset()));
    assert_eq!((extended.driver_loaded(), extended.pending_clear()), (1, 0));
}

#[test]
fn no_member_is_reset_while_firmware_may_use_its_phy() {
    for member in KIN {
        let rig = Rig::new(&format!(",card={member}"));
        rig.start();
        let counters = rig.handle.counters();
        assert!(counters.resets > 0);
        assert_eq!(counters.unowned_resets, 0, "{member}");
    }
}

#[test]
fn a_flash_is_read_after_a_reset_and_the_card_does_not_update_it_by_itself() {
    for member in ["82573l", "82574l", "82583v"] {
        let rig = Rig::new(&format!(",card={member},nvm=flash,mac=02:00:00:00:00:07"));
        assert_eq!(rig.card.info().mac.to_string(), "02:00:00:00:00:07");
        assert_eq!(rig.handle.violations(), Vec::<String>::new(), "{member}");
        let control = NvmControl(rig.bar.read32(general::NVM_CONTROL.offset()));
        assert_eq!((control.auto_read_done(), control.auto_update()), (1, 0));
    }
}
