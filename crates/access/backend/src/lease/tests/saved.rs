//! A claim that goes from one holder to the next.

use ring3_device::dma::Pages;

use super::*;

#[test]
fn a_driver_that_asks_while_there_is_no_holder_is_answered_by_the_next_one() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let saved = claim.save_model();
    claim.detach_holder();
    drop(claim);
    let device = Arc::clone(&driver.device);
    let asks = std::thread::spawn(move || device.config_read(pci::VENDOR_ID, 2));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!asks.is_finished());
    let next = adopted(&model, saved);
    assert_eq!(u64::from(asks.join().unwrap()), u64::from(model.config_read(pci::VENDOR_ID, 2)));
    let mut driver = driver.drive();
    driver.write(3, 7);
    assert!(next.is_leased() && matches!(next.lease(), Err(Error::Busy(_))));
    driver.kill();
    assert!(!next.is_leased() && !next.quiesce(fence()).unwrap().reset);
    Process::start(next.lease().unwrap()).drive().write(4, 8);
}

#[test]
fn a_driver_whose_request_died_with_its_holder_loses_its_lease_and_is_to_be_fenced() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let saved = claim.save_model();
    claim.detach_holder();
    eventfd::signal(&saved.fds.iter().find(|(name, _)| name == "turn").unwrap().1);
    let next = adopted(&model, saved);
    assert!(driver.device.reset().unwrap_err().to_string().contains("its lease has ended"));
    assert!(!next.is_leased());
    assert!(matches!(next.lease(), Err(Error::Busy(text)) if text.contains("fence it first")));
    next.quiesce(fence()).unwrap();
    Process::start(next.lease().unwrap()).drive().write(1, 1);
}

#[test]
fn what_drivers_have_mapped_and_their_interrupts_are_the_next_holders() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let irqs = watch(&*driver.device);
    let pages = || Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap();
    let mapping = driver.device.dma().map(pages()).unwrap();
    let iova = mapping.iova();
    std::mem::forget(mapping);
    let saved = claim.save_model();
    claim.detach_holder();
    let next = adopted(&model, saved);
    // The same eventfds, and not new ones.
    let again = driver.device.irqs(IrqKind::MsiX, 2).unwrap();
    eventfd::signal(&again[1]);
    assert_eq!(irqs[1].take().unwrap(), 1);
    driver.kill();
    assert!(matches!(model.dma().iommu().map(&pages(), iova), Err(Error::Busy(_))));
    next.quiesce(fence()).unwrap();
    model.dma().iommu().map(&pages(), iova).unwrap();
}

#[test]
fn mappings_of_one_file_are_kept_by_one_descriptor_whichever_of_them_goes() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let region = Arc::new(Region::new(256 << 12).unwrap());
    let page = |number: usize| Pages::new(&region, number << 12, 1 << 12).unwrap();
    let part = |number: usize| driver.device.dma().map(page(number)).unwrap();
    let mut mappings: Vec<_> = (0..200).map(part).collect();
    drop(mappings.remove(0));
    let saved = claim.save_model();
    assert_eq!(saved.fds.iter().filter(|(name, _)| name.starts_with("map.")).count(), 1);
    let iovas: Vec<_> = mappings.iter().map(|mapping| mapping.iova()).collect();
    mappings.into_iter().for_each(std::mem::forget);
    claim.detach_holder();
    let next = adopted(&model, saved);
    driver.kill();
    next.quiesce(fence()).unwrap();
    // Each was the next holder's, who has taken it back.
    iovas.iter().for_each(|&iova| model.dma().iommu().map(&page(0), iova).unwrap());
}

#[test]
fn a_mapping_that_was_recorded_and_never_made_hinders_no_fence() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap());
    let mapping =
        driver.device.dma().map(Arc::new(Region::new(1 << 16).unwrap()).pages().unwrap()).unwrap();
    let saved = claim.save_model();
    claim.detach_holder();
    model.dma().iommu().unmap(mapping.iova(), mapping.len()).unwrap();
    std::mem::forget(mapping);
    eventfd::signal(&saved.fds.iter().find(|(name, _)| name == "turn").unwrap().1);
    let next = adopted(&model, saved);
    next.quiesce(fence()).unwrap();
    drop(next.lease().unwrap());
}

#[test]
fn a_claim_whose_holder_detached_is_another_holders_and_its_drop_does_nothing_to_the_device() {
    let (claim, model) = durable();
    let driver = Process::start(claim.lease().unwrap()).drive();
    claim.detach_holder();
    for refused in [claim.lease().map(drop), claim.quiesce(fence()).map(drop)] {
        assert!(matches!(refused, Err(Error::Busy(text)) if text.contains("another holder")));
    }
    drop(claim);
    assert_ne!(model.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER, 0);
    drop(driver);
}

#[test]
fn a_claim_that_ends_with_its_holder_says_so_and_so_does_one_that_is_no_claim() {
    let (_folder, _server, claim, _handle) = served();
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    claim.on_change(move |saved| to.lock().unwrap().push(saved.unwrap_err().to_string()));
    assert!(told.lock().unwrap()[0].contains("ends with its holder"));
    assert!(matches!(claim.save(), Err(Error::Unsupported(_))));
    let saved = claim.save_model();
    assert!(matches!(
        Claim::adopt(saved), Err(Error::Unsupported(text)) if text.contains("claim it anew"),
    ));
    for facts in [serde_json::json!({}), serde_json::json!(7), serde_json::Value::Null] {
        assert!(matches!(
            Claim::adopt(SavedClaim { facts, fds: Vec::new() }),
            Err(Error::Invalid(_))
        ));
    }
}

#[test]
fn a_saved_claim_without_its_descriptors_is_an_error() {
    let (claim, model) = durable();
    let _lease = claim.lease().unwrap();
    for missing in ["turn", "lease.1"] {
        let mut saved = claim.save_model();
        saved.fds.retain(|(name, _)| name != missing);
        let error = Claim::over_model(Arc::clone(&model), saved).err().unwrap().to_string();
        assert!(error.contains(missing), "{error}");
    }
}
