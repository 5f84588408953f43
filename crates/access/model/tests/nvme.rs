//! The simulated NVMe controller, seen by a raw client that is not the driver.

mod raw;

use std::time::Duration;

use raw::{Client, ENTRIES};
use ring3_device::Deadline;
use ring3_device::irq::IrqKind;
use ring3_model::{Blocked, Timing};
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::feature;
use ring3_spec::nvme::identify::{self, Controller, Namespace, cns};
use ring3_spec::nvme::log::{self, ErrorEntry, Smart};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::registers::{self, Cap, Cc, Csts};
use ring3_spec::nvme::{ALL_NAMESPACES, DsmRange, Status, Submission};

/// The status without the advice not to try again.
fn plain(status: Status) -> Status {
    status.plain()
}

#[test]
fn capabilities_say_what_was_asked_for() {
    let client = Client::open("sim:nvme,entries=256,stride=2", None);
    let cap = Cap(client.bar.read64(registers::CAP.offset()));
    assert_eq!((cap.max_queue_entries(), cap.stride(), cap.command_sets()), (256, 2, Cap::CSS_NVM));
    let halves = u64::from(client.bar.read32(0)) | u64::from(client.bar.read32(4)) << 32;
    assert_eq!(halves, cap.0);
}

#[test]
fn ready_can_take_its_time() {
    let mut client = Client::open("sim:nvme,ready=5ms", None);
    client.enable();
    assert_eq!(client.status().ready(), 0);
    client.wait_for(|client| client.status().ready() == 1);
}

#[test]
fn a_controller_without_an_admin_queue_fails() {
    let client = Client::open("sim:nvme", None);
    client.bar.write32(registers::CC.offset(), Cc(0).with_enable(1).0);
    assert_eq!((client.status().fatal(), client.status().ready()), (1, 0));
}

#[test]
fn a_shutdown_is_complete_and_keeps_what_was_in_the_cache() {
    let mut client = Client::ready("sim:nvme");
    client.write(0, 1, 0x77);
    let cc = Cc(client.bar.read32(registers::CC.offset())).with_shutdown(Cc::SHN_NORMAL);
    client.bar.write32(registers::CC.offset(), cc.0);
    assert_eq!(client.status().shutdown(), Csts::SHUTDOWN_DONE);
    client.handle().lose_power();
    assert_eq!(client.peek(0), 0x77);
}

#[test]
fn identify_says_what_the_uri_asked_for() {
    let mut client =
        Client::ready("sim:nvme,namespaces=3,block=512+4096+512m8,size=1M,mdts=3,cache=off");
    let controller = Controller::from_bytes(&client.identify(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(
        (controller.namespaces(), controller.max_transfer(4096), controller.volatile_cache()),
        (3, Some(32 << 10), 0)
    );
    let formats = [1, 2, 3].map(|id| {
        let namespace = Namespace::from_bytes(&client.identify(cns::NAMESPACE, id)).unwrap();
        let format = namespace.current_format().unwrap();
        (namespace.size(), format.block_size().unwrap(), format.metadata())
    });
    assert_eq!(formats, [(2048, 512, 0), (256, 4096, 0), (2048, 512, 8)]);
    let list = client.identify(cns::ACTIVE_NAMESPACES, 1);
    assert!(identify::namespace_list(&list.try_into().unwrap()).eq([2, 3]));
}

#[test]
fn the_last_entry_of_a_page_of_a_list_is_data_if_nothing_follows() {
    let mut client = Client::ready("sim:nvme");
    client.handle().poke(1, 0, &[0x45; 3 * 4096]);
    let data = client.buffer.iova();
    let entries = [data + 4096, data + 2 * 4096].map(u64::to_le_bytes).concat();
    client.buffer.write(0xf000 - 16, &entries).unwrap();
    let command =
        Submission::transfer(nvm::READ, 1, 0, 24, false).with_data(data, data + 0xf000 - 16);
    assert_eq!(client.io(command), Status::SUCCESS);
    assert_eq!((client.byte(3 * 4096 - 1), client.byte(3 * 4096)), (0x45, 0));
}

#[test]
fn a_queue_that_is_not_there_cannot_be_deleted() {
    let mut client = Client::open("sim:nvme", None);
    client.enable();
    // [NVMe 5.2.3]; QEMU has another status.
    assert_eq!(plain(client.admin(Submission::delete_cq(1)).status()), Status::INVALID_QUEUE_ID);
}

#[test]
fn a_transfer_above_mdts_is_refused() {
    let mut client = Client::ready("sim:nvme,mdts=1");
    assert_eq!(client.read(0, 16), Status::SUCCESS);
    assert_eq!(plain(client.read(0, 17)), Status::INVALID_FIELD);
}

#[test]
fn zeroed_and_deallocated_blocks_read_as_zeroes() {
    let mut client = Client::ready("sim:nvme");
    client.handle().poke(1, 0, &[0x55; 4096]);
    assert_eq!(client.io(Submission::write_zeroes(1, 1, 2, false, true)), Status::SUCCESS);
    let range = DsmRange { lba: 4, blocks: 1 }.to_words();
    client.buffer.write(0, &range[0].to_le_bytes()).unwrap();
    client.buffer.write(8, &range[1].to_le_bytes()).unwrap();
    let data = client.buffer.iova();
    assert_eq!(client.io(Submission::deallocate(1, 1).with_data(data, 0)), Status::SUCCESS);
    let seen: Vec<u8> = (0..6).map(|lba| client.peek(lba * 512)).collect();
    assert_eq!(seen, [0x55, 0, 0, 0x55, 0, 0x55]);
}

#[test]
fn without_power_only_what_is_durable_stays() {
    let mut client = Client::ready("sim:nvme");
    client.write(0, 1, 1);
    assert_eq!(client.io(Submission::flush(1)), Status::SUCCESS);
    client.write(0, 1, 2);
    client.write(1, 1, 3);
    let data = client.buffer.iova();
    client.buffer.fill(4);
    assert_eq!(
        client.io(Submission::transfer(nvm::WRITE, 1, 2, 1, true).with_data(data, 0)),
        Status::SUCCESS
    );
    client.handle().lose_power();
    assert_eq!([0, 512, 1024].map(|at| client.peek(at)), [1, 0, 4]);
    assert_eq!(client.status(), Csts(0));
}

#[test]
fn with_the_cache_off_every_write_is_durable() {
    let mut client = Client::ready("sim:nvme");
    client.admin(Submission::set_feature(feature::VOLATILE_WRITE_CACHE, 0));
    client.write(0, 1, 9);
    client.handle().lose_power();
    assert_eq!(client.peek(0), 9);
}

#[test]
fn a_flush_of_all_namespaces_reaches_each() {
    let mut client = Client::ready("sim:nvme,namespaces=2");
    client.write(0, 1, 7);
    assert_eq!(client.io(Submission::flush(ALL_NAMESPACES)), Status::SUCCESS);
    client.handle().lose_power();
    assert_eq!(client.peek(0), 7);
}

#[test]
fn a_read_only_namespace_refuses_writes() {
    let mut client = Client::ready("sim:nvme,readonly=on");
    let data = client.buffer.iova();
    let command = Submission::transfer(nvm::WRITE, 1, 0, 1, false).with_data(data, 0);
    assert_eq!(plain(client.io(command)), Status::NAMESPACE_WRITE_PROTECTED);
}

#[test]
fn metadata_travel_in_a_buffer_of_their_own() {
    let mut client = Client::ready("sim:nvme,block=512m8");
    let (data, metadata) = (client.buffer.iova(), client.buffer.iova() + 4096);
    client.buffer.write(4096, &[0xab; 8]).unwrap();
    let mut command = Submission::transfer(nvm::WRITE, 1, 3, 1, false).with_data(data, 0);
    command.0[2] = metadata;
    assert_eq!(client.io(command), Status::SUCCESS);
    client.buffer.fill(0);
    let mut command = Submission::transfer(nvm::READ, 1, 3, 1, false).with_data(data, 0);
    command.0[2] = metadata;
    assert_eq!(client.io(command), Status::SUCCESS);
    assert_eq!((client.byte(4096), client.byte(4103), client.byte(4104)), (0xab, 0xab, 0));
}

#[test]
fn the_smart_log_counts_commands_and_units() {
    let mut client = Client::ready("sim:nvme");
    client.write(0, 8, 1);
    client.read(0, 8);
    client.read(0, 8);
    client.handle().lose_power();
    client.restart();
    let smart = Smart::from_bytes(&client.log(log::SMART, 512)).unwrap();
    assert_eq!((smart.host_writes(), smart.host_reads(), smart.data_units_read()), (1, 2, 1));
    assert_eq!((smart.power_cycles(), smart.unsafe_shutdowns()), (2, 1));
}

#[test]
fn the_error_log_begins_with_the_newest() {
    let mut client = Client::ready("sim:nvme,size=1M");
    client.read(5000, 1);
    client.read(6000, 1);
    let page = client.log(log::ERRORS, 192);
    let entries: Vec<_> =
        page.chunks_exact(64).map(|entry| ErrorEntry::from_bytes(entry).unwrap()).collect();
    assert_eq!(
        entries.iter().map(|entry| (entry.count(), entry.lba())).collect::<Vec<_>>(),
        [(2, 6000), (1, 5000), (0, 0)]
    );
    assert_eq!((entries[0].status().plain(), entries[0].queue()), (Status::LBA_OUT_OF_RANGE, 1));
}

#[test]
fn a_log_page_that_does_not_exist_is_refused() {
    let mut client = Client::ready("sim:nvme");
    let data = client.buffer.iova();
    let command = Submission::get_log_page(0x55, 512, false).with_data(data, 0);
    assert_eq!(plain(client.admin(command).status()), Status::INVALID_LOG_PAGE);
}

#[test]
fn an_event_ends_a_request_and_is_silent_until_its_log_is_read() {
    let mut client = Client::ready("sim:nvme");
    let event = |info| AsyncEvent::new(AsyncEvent::HEALTH, info, log::SMART);
    client.submit(true, Submission::async_event());
    client.submit(true, Submission::async_event());
    client.handle().event(event(AsyncEvent::TEMPERATURE));
    client.handle().event(event(AsyncEvent::SPARE));
    assert_eq!(client.wait(true).result(), event(AsyncEvent::TEMPERATURE).0);
    assert_eq!(client.pop(true), None);
    client.submit(
        true,
        Submission::get_log_page(log::SMART, 512, false).with_data(client.buffer.iova(), 0),
    );
    assert_eq!(client.wait(true).result(), event(AsyncEvent::SPARE).0);
}

#[test]
fn one_event_request_too_many_is_refused() {
    let mut client = Client::ready("sim:nvme");
    for _ in 0..4 {
        client.submit(true, Submission::async_event());
    }
    assert_eq!(plain(client.admin(Submission::async_event()).status()), Status::EVENT_LIMIT);
}

#[test]
fn a_doorbell_of_a_queue_that_is_not_there_is_an_event() {
    let mut client = Client::ready("sim:nvme");
    client.submit(true, Submission::async_event());
    client.bar.write32(registers::submission_doorbell(2, 0).offset(), 1);
    let event = AsyncEvent(client.wait(true).result());
    assert_eq!((event.kind(), event.info()), (AsyncEvent::ERROR, AsyncEvent::INVALID_DOORBELL));
}

#[test]
fn a_doorbell_value_beyond_the_queue_is_an_event() {
    let mut client = Client::ready("sim:nvme");
    client.submit(true, Submission::async_event());
    client.bar.write32(registers::submission_doorbell(1, 0).offset(), ENTRIES);
    let event = AsyncEvent(client.wait(true).result());
    assert_eq!(event.info(), AsyncEvent::INVALID_DOORBELL_VALUE);
    assert_eq!(client.read(0, 1), Status::SUCCESS);
}

#[test]
fn a_command_that_waits_can_be_aborted_and_one_that_is_done_cannot() {
    let mut client = Client::ready("sim:nvme");
    client.handle().set_timing(Timing::Held);
    let id = client.submit(false, Submission::flush(1));
    assert_eq!(client.admin(Submission::abort(1, id)).result(), 0);
    assert_eq!(client.wait(false).status(), Status::ABORTED);
    assert_eq!(client.admin(Submission::abort(1, id)).result(), 1);
}

#[test]
fn deleting_a_queue_ends_what_it_had() {
    let mut client = Client::ready("sim:nvme");
    client.handle().set_timing(Timing::Held);
    client.submit(false, Submission::flush(1));
    assert_eq!(client.admin(Submission::delete_sq(1)).status(), Status::SUCCESS);
    assert_eq!(client.wait(false).status(), Status::ABORTED_SQ_DELETION);
}

#[test]
fn a_full_completion_queue_is_not_overwritten() {
    let mut client = Client::ready("sim:nvme");
    let ids: Vec<u16> =
        (0..ENTRIES + 8).map(|_| client.submit(false, Submission::flush(1))).collect();
    let first: Vec<u16> =
        std::iter::from_fn(|| client.pop(false)).map(|completion| completion.id()).collect();
    assert_eq!(first.len() as u32, ENTRIES - 1);
    assert_eq!(
        client.handle().counters().commands,
        u64::from(ENTRIES),
        "no further command is taken while an end waits for room"
    );
    client.acknowledge(false);
    let rest: Vec<u16> =
        std::iter::from_fn(|| client.pop(false)).map(|completion| completion.id()).collect();
    assert_eq!([first, rest].concat(), ids);
}

#[test]
fn a_completion_says_how_far_its_queue_was_read() {
    let mut client = Client::ready("sim:nvme");
    client.submit(false, Submission::flush(1));
    client.submit(false, Submission::flush(1));
    assert_eq!((client.wait(false).head(), client.wait(false).head()), (1, 2));
}

#[test]
fn a_masked_msix_vector_shows_its_pending_bit_and_fires_when_it_is_unmasked() {
    let mut client = Client::ready("sim:nvme,queues=1");
    let (table, pba) = (0x2000, 0x3000);
    client.irqs[1].mask().unwrap();
    client.io(Submission::flush(1));
    assert_eq!((client.bar.read32(table + 16 + 12), client.bar.read32(pba)), (1, 0b10));
    assert_eq!(client.irqs[1].take().unwrap(), 0);
    client.irqs[1].unmask().unwrap();
    assert_eq!((client.bar.read32(table + 16 + 12), client.bar.read32(pba)), (0, 0));
    assert_eq!(client.irqs[1].take().unwrap(), 1);
}

#[test]
fn the_mask_bit_of_the_table_can_be_written_and_addresses_cannot() {
    let mut client = Client::ready("sim:nvme,queues=1");
    client.bar.write32(0x2000 + 16 + 12, 1);
    client.bar.write32(0x2000 + 16, 0xfee0_0000);
    client.io(Submission::flush(1));
    assert_eq!((client.bar.read32(0x2000 + 16), client.irqs[1].take().unwrap()), (0, 0));
    client.bar.write32(0x2000 + 16 + 12, 0);
    assert_eq!(client.irqs[1].take().unwrap(), 1);
}

#[test]
fn the_pin_is_asserted_until_the_host_has_taken_everything() {
    let mut client = Client::ready_with("sim:nvme,vectors=0", Some((IrqKind::Intx, 1)), 0);
    client.irqs[0].take().unwrap();
    client.irqs[0].unmask().unwrap();
    client.submit(false, Submission::flush(1));
    assert_eq!(client.irqs[0].take().unwrap(), 1);
    client.irqs[0].unmask().unwrap();
    assert_eq!(client.irqs[0].take().unwrap(), 1);
    client.wait(false);
    client.irqs[0].unmask().unwrap();
    assert_eq!(client.irqs[0].take().unwrap(), 0);
}

#[test]
fn the_interrupt_mask_register_holds_the_pin_back() {
    let mut client = Client::ready_with("sim:nvme,vectors=0", Some((IrqKind::Intx, 1)), 0);
    client.irqs[0].take().unwrap();
    client.irqs[0].unmask().unwrap();
    client.bar.write32(registers::INTMS.offset(), 1);
    client.submit(false, Submission::flush(1));
    assert_eq!(client.irqs[0].take().unwrap(), 0);
    client.bar.write32(registers::INTMC.offset(), 1);
    assert_eq!(client.irqs[0].take().unwrap(), 1);
}

#[test]
fn a_transfer_outside_of_the_arena_is_an_error_and_reported() {
    let mut client = Client::ready("sim:nvme");
    let outside = 0xdead_0000;
    assert_eq!(
        client.io(Submission::transfer(nvm::READ, 1, 0, 8, false).with_data(outside, 0)),
        Status::DATA_TRANSFER
    );
    let faults = client.handle().faults();
    assert_eq!((faults[0].iova, faults[0].reason), (outside, Blocked::Unmapped));
}

#[test]
fn a_controller_that_may_not_start_transfers_stops_with_fatal_status() {
    let mut client = Client::ready("sim:nvme");
    client.device.set_bus_master(false).unwrap();
    client.submit(false, Submission::flush(1));
    assert_eq!((client.pop(false), client.status().fatal()), (None, 1));
    assert_eq!(client.handle().faults()[0].reason, Blocked::BusMasterOff);
}

#[test]
fn after_a_function_reset_nothing_that_waited_is_done() {
    let mut client = Client::ready("sim:nvme");
    client.handle().poke(1, 0, &[0x66; 512]);
    client.handle().set_timing(Timing::After(Duration::from_millis(2)));
    client.submit(
        false,
        Submission::transfer(nvm::READ, 1, 0, 1, false).with_data(client.buffer.iova(), 0),
    );
    client.device.reset().unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(
        (client.handle().held(), client.handle().release(), client.byte(0), client.pop(false)),
        (0, 0, 0, None)
    );
}

#[test]
fn after_a_controller_reset_nothing_that_waited_is_done() {
    let mut client = Client::ready("sim:nvme");
    client.handle().poke(1, 0, &[0x66; 512]);
    client.handle().set_timing(Timing::Held);
    client.submit(
        false,
        Submission::transfer(nvm::READ, 1, 0, 1, false).with_data(client.buffer.iova(), 0),
    );
    client.bar.write32(registers::CC.offset(), 0);
    assert_eq!((client.handle().release(), client.byte(0)), (0, 0));
}

#[test]
fn a_held_command_moves_its_data_when_it_is_released() {
    let mut client = Client::ready("sim:nvme");
    client.handle().set_timing(Timing::Held);
    client.submit(
        false,
        Submission::transfer(nvm::READ, 1, 0, 1, false).with_data(client.buffer.iova(), 0),
    );
    client.handle().poke(1, 0, &[0x66; 512]);
    assert_eq!((client.byte(0), client.handle().release(), client.byte(0)), (0, 1, 0x66));
    assert_eq!(client.wait(false).status(), Status::SUCCESS);
}

#[test]
fn a_delayed_command_ends_with_an_interrupt() {
    let mut client = Client::ready("sim:nvme,delay=2ms");
    client.submit(false, Submission::flush(1));
    assert_eq!(client.pop(false), None);
    assert_eq!(client.irqs[1].wait(Deadline::after(Duration::from_secs(10))).unwrap(), 1);
    assert_eq!(client.wait(false).status(), Status::SUCCESS);
}

#[test]
fn recorded_doorbells_do_nothing_until_they_are_pumped() {
    let mut client = Client::ready("sim:nvme");
    client.handle().record(true);
    client.submit(false, Submission::flush(1));
    assert_eq!(client.pop(false), None);
    assert_eq!(client.handle().pump(), 1);
    assert_eq!(client.wait(false).status(), Status::SUCCESS);
}

#[test]
fn counters_say_what_the_host_did() {
    let mut client = Client::ready("sim:nvme");
    for _ in 0..3 {
        client.io(Submission::flush(1));
    }
    let counters = client.handle().counters();
    assert_eq!(
        (counters.submission_doorbells, counters.completion_doorbells, counters.commands),
        (3, 3, 3)
    );
    assert_eq!(counters.admin_commands, 2);
}

#[test]
fn a_disk_keeps_its_bytes_over_a_change_of_drivers() {
    let mut client = Client::ready("sim:nvme");
    client.write(0, 1, 0x21);
    let handle = client.handle().clone();
    drop(client);
    assert!(handle.claim().is_ok());
    let mut byte = [0];
    assert!(handle.peek(1, 0, &mut byte));
    assert_eq!(byte, [0x21]);
}
