//! Every fault hook does what it says, seen by a raw client that is not the driver.

mod raw;

use std::time::Duration;

use raw::Client;
use ring3_device::irq::IrqKind;
use ring3_model::fault::{Action, Rule};
use ring3_model::nvme;
use ring3_spec::nvme::opcode::{admin, nvm};
use ring3_spec::nvme::registers::{self, Csts};
use ring3_spec::nvme::{Status, Submission};

/// A client whose first flush meets `action`.
fn client(action: Action) -> Client {
    let client = Client::ready("sim:nvme");
    client.irqs[1].take().unwrap();
    client.handle().plan().add(Rule::io(action, nvm::FLUSH));
    client
}

fn flush(client: &mut Client) -> u16 {
    client.submit(false, Submission::flush(1))
}

#[test]
fn a_dropped_completion_never_comes_and_the_next_one_does() {
    let mut client = client(Action::Drop);
    flush(&mut client);
    assert_eq!(client.pop(false), None);
    let next = flush(&mut client);
    assert_eq!(client.wait(false).id(), next);
    assert_eq!(client.handle().plan().fired(), 1);
}

#[test]
fn the_data_of_a_dropped_completion_was_moved() {
    let mut client = Client::ready("sim:nvme,fault=drop:write");
    client.buffer.fill(0x61);
    client.submit(
        false,
        Submission::transfer(nvm::WRITE, 1, 0, 1, false).with_data(client.buffer.iova(), 0),
    );
    assert_eq!((client.pop(false), client.peek(0)), (None, 0x61));
}

#[test]
fn a_delayed_completion_comes_later() {
    let mut client = client(Action::Delay(Duration::from_millis(3)));
    let id = flush(&mut client);
    assert_eq!(client.pop(false), None);
    assert_eq!(client.wait(false).id(), id);
}

#[test]
fn a_command_that_hangs_comes_back_when_it_is_aborted() {
    let mut client = client(Action::Hang);
    let id = flush(&mut client);
    assert_eq!((client.pop(false), client.handle().held()), (None, 1));
    assert_eq!(client.admin(Submission::abort(1, id)).result(), 0);
    assert_eq!(client.wait(false).status(), Status::ABORTED);
}

#[test]
fn a_duplicated_completion_comes_twice() {
    let mut client = client(Action::Duplicate);
    let id = flush(&mut client);
    assert_eq!(
        (client.wait(false).id(), client.wait(false).id(), client.pop(false)),
        (id, id, None)
    );
}

#[test]
fn a_reordered_completion_comes_after_the_next() {
    let mut client = client(Action::Reorder);
    let (first, second) = (flush(&mut client), flush(&mut client));
    assert_eq!((client.wait(false).id(), client.wait(false).id()), (second, first));
}

#[test]
fn a_reordered_completion_comes_by_itself_if_there_is_no_next() {
    let mut client = client(Action::Reorder);
    let id = flush(&mut client);
    assert_eq!(client.pop(false), None);
    assert_eq!(client.wait(false).id(), id);
}

#[test]
fn a_wrong_id_comes_instead_of_the_right_one() {
    let mut client = client(Action::WrongId(0xffff));
    let id = flush(&mut client);
    assert_eq!((client.wait(false).id(), client.pop(false)), (!id, None));
}

#[test]
fn an_invented_completion_comes_before_the_right_one() {
    let mut client = client(Action::Invent(0x8000));
    let id = flush(&mut client);
    assert_eq!((client.wait(false).id(), client.wait(false).id()), (id ^ 0x8000, id));
}

#[test]
fn a_completion_of_the_wrong_phase_is_not_seen_and_hides_the_next() {
    let mut client = client(Action::WrongPhase);
    flush(&mut client);
    flush(&mut client);
    assert_eq!(client.pop(false), None);
}

#[test]
fn a_status_ends_the_command_without_doing_it() {
    let mut client = Client::ready("sim:nvme,fault=status/0x281:write:1:all");
    let data = client.buffer.iova();
    client.buffer.fill(1);
    let command = Submission::transfer(nvm::WRITE, 1, 0, 1, false).with_data(data, 0);
    assert_eq!(
        (client.io(command), client.io(command), client.peek(0)),
        (Status(0x281), Status(0x281), 0)
    );
}

#[test]
fn a_status_can_stick_to_blocks() {
    let mut client = Client::ready("sim:nvme,fault=status/0x281:read@100-100:1:all");
    assert_eq!(
        [99, 93, 101].map(|lba| client.read(lba, 8)),
        [Status(0x281), Status(0x281), Status::SUCCESS]
    );
}

#[test]
fn a_stuck_ready_bit_does_not_rise() {
    let mut client = Client::open("sim:nvme,fault=stuck-ready", None);
    client.enable();
    assert_eq!(client.status(), Csts(0));
    client.bar.write32(registers::CC.offset(), 0);
    client.enable();
    assert_eq!(client.status().ready(), 1);
}

#[test]
fn a_stuck_ready_bit_does_not_fall_until_the_function_is_reset() {
    let client = Client::ready("sim:nvme,fault=stuck-ready:enable:2");
    client.bar.write32(registers::CC.offset(), 0);
    assert_eq!(client.status().ready(), 1);
    client.device.reset().unwrap();
    assert_eq!(client.status().ready(), 0);
}

#[test]
fn a_fatal_controller_does_nothing_until_it_is_reset() {
    let mut client = client(Action::Fatal);
    flush(&mut client);
    flush(&mut client);
    assert_eq!((client.pop(false), client.status().fatal()), (None, 1));
    client.restart();
    assert_eq!((client.status().fatal(), client.io(Submission::flush(1))), (0, Status::SUCCESS));
}

#[test]
fn a_device_that_is_pulled_out_reads_all_ones_and_writes_nothing() {
    let mut client = client(Action::Remove);
    flush(&mut client);
    assert_eq!((client.pop(false), client.status().0), (None, u32::MAX));
    assert_eq!(client.irqs[1].take().unwrap(), 0);
}

#[test]
fn a_storm_raises_the_vector_again_and_again() {
    let mut client = client(Action::Storm(1000));
    flush(&mut client);
    let mut count = 0;
    client.wait_for(|client| {
        count += client.irqs[1].take().unwrap();
        count >= 1001
    });
    assert_eq!(client.wait(false).status(), Status::SUCCESS);
}

#[test]
fn a_storm_holds_the_pin_asserted() {
    let mut client = Client::ready_with(
        "sim:nvme,vectors=0,fault=storm/10000000:flush",
        Some((IrqKind::Intx, 1)),
        0,
    );
    flush(&mut client);
    client.wait(false);
    let mut fired = 0;
    client.wait_for(|client| {
        fired += client.irqs[0].take().unwrap();
        client.irqs[0].unmask().unwrap();
        fired >= 10
    });
}

#[test]
fn a_lost_interrupt_leaves_the_completion() {
    let mut client = client(Action::LoseInterrupt);
    flush(&mut client);
    assert_eq!(client.irqs[1].take().unwrap(), 0);
    assert_eq!(client.wait(false).status(), Status::SUCCESS);
    flush(&mut client);
    assert_eq!(client.irqs[1].take().unwrap(), 1);
}

#[test]
fn corrupted_data_come_with_success() {
    let mut client = Client::ready("sim:nvme,fault=corrupt:read+corrupt:write:2");
    client.write(0, 1, 0x0f);
    assert_eq!((client.read(0, 1), client.byte(0), client.byte(1)), (Status::SUCCESS, 0xf0, 0x0f));
    client.write(1, 1, 0x0f);
    assert_eq!((client.peek(512), client.peek(513)), (0xf0, 0x0f));
}

#[test]
fn a_stray_access_is_blocked_and_the_command_is_done() {
    let mut client = Client::ready("sim:nvme,fault=stray-dma/0xbad000:flush");
    assert_eq!(client.io(Submission::flush(1)), Status::SUCCESS);
    assert_eq!(client.handle().faults()[0].iova, 0xbad000);
}

#[test]
fn faults_meet_admin_commands_too() {
    let mut client = Client::open("sim:nvme", None);
    client.enable();
    client.handle().plan().add(Rule::admin(Action::Drop, admin::IDENTIFY));
    client.submit(true, Submission::identify(1, 0).with_data(client.buffer.iova(), 0));
    assert_eq!(client.pop(true), None);
}

#[test]
fn a_plan_that_is_cleared_does_nothing() {
    let mut client = client(Action::Drop);
    client.handle().plan().clear();
    assert_eq!(client.io(Submission::flush(1)), Status::SUCCESS);
}

#[test]
fn a_rule_that_makes_no_sense_is_refused_when_the_device_is_opened() {
    let error = nvme::open(&"sim:nvme,fault=explode:read".parse().unwrap(), Default::default())
        .err()
        .unwrap();
    assert!(error.to_string().contains("drop, delay/TIME"), "{error}");
}
