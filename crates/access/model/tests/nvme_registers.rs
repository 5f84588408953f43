//! What every NVMe controller does, register by register: the model and QEMU's say the same.

mod raw;

use raw::{Client, ENTRIES};
use ring3_device::irq::IrqKind;
use ring3_spec::nvme::feature::{self, QueueCounts};
use ring3_spec::nvme::identify::{Controller, Namespace, cns};
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::registers::{self, Cap, Csts};
use ring3_spec::nvme::{CLASS, DsmRange, Status, Submission};
use ring3_spec::pci;

/// Each controller of two queues and 1 MiB, disabled.
fn controllers(test: impl Fn(Client)) {
    for uri in ["sim:nvme,size=1M,queues=2", "qtest:nvme,size=1M,queues=2"] {
        println!("{uri}");
        test(Client::open(uri, Some((IrqKind::MsiX, 2))));
    }
}

/// The same, with I/O queue 1.
fn ready(test: impl Fn(Client)) {
    controllers(|mut client| {
        client.enable();
        client.create_queue(1);
        test(client);
    });
}

#[test]
fn the_function_is_an_nvme_controller_with_msix_and_express_capabilities() {
    controllers(|client| {
        assert_eq!(client.device.config_read(8, 4) >> 8, CLASS);
        let mut found = Vec::new();
        let mut at = client.device.config_read(pci::CAPABILITIES, 1);
        while at != 0 {
            found.push(client.device.config_read(at.into(), 1) as u8);
            at = client.device.config_read(u64::from(at) + 1, 1);
        }
        assert!(found.contains(&pci::CAP_MSIX) && found.contains(&pci::CAP_EXPRESS), "{found:?}");
    });
}

#[test]
fn capabilities_read_in_halves_are_the_same() {
    controllers(|client| {
        let cap = Cap(client.bar.read64(registers::CAP.offset()));
        assert_eq!(cap.command_sets() & Cap::CSS_NVM, Cap::CSS_NVM);
        let halves = u64::from(client.bar.read32(0)) | u64::from(client.bar.read32(4)) << 32;
        assert_eq!(halves, cap.0);
    });
}

#[test]
fn ready_follows_enable_in_both_directions() {
    controllers(|mut client| {
        client.enable();
        assert_eq!(client.status().ready(), 1);
        client.bar.write32(registers::CC.offset(), 0);
        client.wait_for(|client| client.status() == Csts(0));
    });
}

#[test]
fn a_namespace_that_does_not_exist_is_refused() {
    ready(|mut client| {
        let data = client.buffer.iova();
        // Beyond the number of namespaces; one that is only inactive is refused in another way.
        let absent = Submission::transfer(nvm::READ, 0xffff_0000, 0, 1, false).with_data(data, 0);
        assert_eq!(client.io(absent).plain(), Status::INVALID_NAMESPACE);
        let broadcast = Submission::transfer(nvm::READ, 0, 0, 1, false).with_data(data, 0);
        assert_eq!(client.io(broadcast).plain(), Status::INVALID_NAMESPACE);
    });
}

#[test]
fn queues_that_cannot_be_are_refused_one_by_one() {
    controllers(|mut client| {
        client.enable();
        let page = client.buffer.iova();
        let mut status = |command| client.admin(command).status().plain();
        assert_eq!(status(Submission::create_cq(0, 16, page, None)), Status::INVALID_QUEUE_ID);
        assert_eq!(status(Submission::create_cq(3, 16, page, None)), Status::INVALID_QUEUE_ID);
        assert_eq!(status(Submission::create_cq(1, 4096, page, None)), Status::INVALID_QUEUE_SIZE);
        assert_eq!(
            status(Submission::create_cq(1, 16, page + 8, None)),
            Status::INVALID_PRP_OFFSET
        );
        assert_eq!(
            status(Submission::create_cq(1, 16, page, Some(2000))),
            Status::INVALID_INTERRUPT_VECTOR
        );
        assert_eq!(status(Submission::create_sq(1, 16, page, 1)), Status::INVALID_CQ);
        assert_eq!(status(Submission::create_cq(1, 16, page, None)), Status::SUCCESS);
        assert_eq!(status(Submission::create_cq(1, 16, page, None)), Status::INVALID_QUEUE_ID);
        assert_eq!(status(Submission::create_sq(1, 16, page, 1)), Status::SUCCESS);
        assert_eq!(status(Submission::delete_cq(1)), Status::INVALID_QUEUE_DELETION);
        assert_eq!(status(Submission::delete_sq(1)), Status::SUCCESS);
        assert_eq!(status(Submission::delete_cq(1)), Status::SUCCESS);
    });
}

#[test]
fn no_more_queues_are_granted_than_exist() {
    controllers(|mut client| {
        client.enable();
        let asked = QueueCounts { submission: 8, completion: 8 };
        let granted = QueueCounts { submission: 2, completion: 2 };
        assert_eq!(client.admin(Submission::set_queue_counts(asked)).result(), granted.to_dword());
        assert_eq!(
            client.admin(Submission::get_feature(feature::NUMBER_OF_QUEUES)).result(),
            granted.to_dword()
        );
    });
}

#[test]
fn unknown_commands_are_refused() {
    ready(|mut client| {
        assert_eq!(client.admin(Submission::new(0x7f, 0)).status().plain(), Status::INVALID_OPCODE);
        assert_eq!(client.io(Submission::new(0x7f, 1)).plain(), Status::INVALID_OPCODE);
    });
}

#[test]
fn a_block_that_was_written_is_read_back() {
    ready(|mut client| {
        client.write(7, 1, 0x5a);
        client.buffer.fill(0);
        assert_eq!(client.read(7, 1), Status::SUCCESS);
        assert_eq!((client.byte(0), client.byte(511), client.byte(512)), (0x5a, 0x5a, 0));
    });
}

#[test]
fn data_may_start_within_a_page_and_go_on_in_the_second_entry() {
    ready(|mut client| {
        client.write(0, 8, 0x33);
        client.buffer.fill(0);
        let data = client.buffer.iova();
        let command = Submission::transfer(nvm::READ, 1, 0, 8, false)
            .with_data(data + 4096 - 512, data + 4096);
        assert_eq!(client.io(command), Status::SUCCESS);
        assert_eq!(
            (client.byte(3583), client.byte(3584), client.byte(7679), client.byte(7680)),
            (0, 0x33, 0x33, 0)
        );
    });
}

#[test]
fn a_list_of_pages_may_lead_to_a_second_list() {
    ready(|mut client| {
        client.write(0, 40, 0x44);
        client.buffer.fill(0);
        let data = client.buffer.iova();
        // Five pages: one in the command, one in the last entry but one of the first list, three in
        // the second list.
        let (first, second) = (data + 0xf000 - 16, data + 0xf000);
        let entries = [data + 4096, second, data + 2 * 4096, data + 3 * 4096, data + 4 * 4096];
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        client.buffer.write(0xf000 - 16, &bytes).unwrap();
        assert_eq!(
            client.io(Submission::transfer(nvm::READ, 1, 0, 40, false).with_data(data, first)),
            Status::SUCCESS
        );
        assert!((0..5 * 4096).step_by(512).all(|at| client.byte(at) == 0x44));
        assert_eq!(client.byte(5 * 4096), 0);
    });
}

#[test]
fn entries_of_a_list_must_be_whole_pages() {
    ready(|mut client| {
        let data = client.buffer.iova();
        let command =
            Submission::transfer(nvm::READ, 1, 0, 16, false).with_data(data, data + 4096 + 8);
        assert_eq!(client.io(command).plain(), Status::INVALID_PRP_OFFSET);
    });
}

/// Reads 16 blocks, which hold 0x44, by a list of segments that begin where the first descriptor
/// says.
fn by_list(client: &mut Client, list: &[[u64; 2]], first: [u64; 2]) -> Status {
    client.write(0, 16, 0x44);
    client.buffer.fill(0);
    let bytes: Vec<u8> = list.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect();
    client.buffer.write(0xf000, &bytes).unwrap();
    let mut command = Submission::transfer(nvm::READ, 1, 0, 16, false).with_block(0, 0);
    (command.0[3], command.0[4]) = (first[0], first[1]);
    client.io(command).plain()
}

const SEGMENT: u64 = 0x20 << 56;
const LAST_SEGMENT: u64 = 0x30 << 56;

#[test]
fn data_in_one_piece_is_where_the_command_says_itself() {
    ready(|mut client| {
        let at = client.buffer.iova() + 516;
        assert_eq!(by_list(&mut client, &[], [at, 8192]), Status::SUCCESS);
        assert_eq!([515, 516, 8707, 8708].map(|at| client.byte(at)), [0, 0x44, 0x44, 0]);
    });
}

#[test]
fn a_list_of_pieces_may_lead_to_another_one() {
    ready(|mut client| {
        let data = client.buffer.iova();
        let list = [
            [data + 8192, 512],
            [data + 0xf020, LAST_SEGMENT | 32],
            [data, 4096],
            [data + 4096, 3584],
        ];
        assert_eq!(by_list(&mut client, &list, [data + 0xf000, SEGMENT | 32]), Status::SUCCESS);
        assert_eq!(
            [0, 7679, 7680, 8192, 8703].map(|at| client.byte(at)),
            [0x44, 0x44, 0, 0x44, 0x44]
        );
    });
}

#[test]
fn a_list_that_is_shorter_than_the_data_is_refused() {
    ready(|mut client| {
        let data = client.buffer.iova();
        for bytes in [0, 4096, 8191] {
            assert_eq!(by_list(&mut client, &[], [data, bytes]), Status::SGL_LENGTH, "{bytes}");
        }
        let list = [[data, 4096], [data + 4096, 2048]];
        assert_eq!(
            by_list(&mut client, &list, [data + 0xf000, LAST_SEGMENT | 32]),
            Status::SGL_LENGTH
        );
    });
}

#[test]
fn a_list_that_is_none_is_refused() {
    ready(|mut client| {
        let data = client.buffer.iova();
        // Of a type that there is none of, QEMU says that it is no segment.
        let refused = by_list(&mut client, &[], [data, 0x40 << 56 | 8192]);
        assert!([Status::SGL_TYPE, Status::SGL_SEGMENT].contains(&refused), "{refused}");
        assert_eq!(
            by_list(&mut client, &[], [data + 0xf000, LAST_SEGMENT | 24]),
            Status::SGL_SEGMENT
        );
    });
}

#[test]
fn a_list_that_leads_back_to_itself_ends() {
    let mut client = Client::ready("sim:nvme,size=1M");
    let data = client.buffer.iova();
    let list = [[data, 0], [data + 0xf000, SEGMENT | 32]];
    assert_eq!(by_list(&mut client, &list, [data + 0xf000, SEGMENT | 32]), Status::SGL_SEGMENT);
}

#[test]
fn a_list_that_is_longer_than_the_data_is_refused_where_the_controller_does_not_say_that_it_may_be()
{
    let mut client = Client::ready("sim:nvme,size=1M");
    let data = client.buffer.iova();
    for bytes in [8193, 1 << 31] {
        assert_eq!(by_list(&mut client, &[], [data, bytes]), Status::SGL_LENGTH, "{bytes}");
    }
}

#[test]
fn a_controller_without_lists_refuses_them() {
    let mut client = Client::ready("sim:nvme,size=1M,sgl=off");
    let command =
        Submission::transfer(nvm::READ, 1, 0, 16, false).with_block(client.buffer.iova(), 8192);
    assert_eq!(client.io(command).plain(), Status::INVALID_FIELD);
}

#[test]
fn blocks_beyond_the_end_are_refused() {
    ready(|mut client| {
        assert_eq!(client.read(2047, 1), Status::SUCCESS);
        assert_eq!(client.read(2047, 2).plain(), Status::LBA_OUT_OF_RANGE);
        assert_eq!(client.read(u64::MAX, 2).plain(), Status::LBA_OUT_OF_RANGE);
    });
}

#[test]
fn zeroed_blocks_read_as_zeroes_and_their_neighbours_as_before() {
    ready(|mut client| {
        client.write(0, 8, 0x55);
        assert_eq!(client.io(Submission::write_zeroes(1, 1, 2, false, true)), Status::SUCCESS);
        assert_eq!(client.read(0, 4), Status::SUCCESS);
        assert_eq!([0, 512, 1024, 1536].map(|at| client.byte(at)), [0x55, 0, 0, 0x55]);
    });
}

#[test]
fn a_range_that_is_not_needed_may_be_given_up() {
    ready(|mut client| {
        let range = DsmRange { lba: 4, blocks: 1 }.to_words();
        client.buffer.write(0, &range[0].to_le_bytes()).unwrap();
        client.buffer.write(8, &range[1].to_le_bytes()).unwrap();
        let data = client.buffer.iova();
        assert_eq!(client.io(Submission::deallocate(1, 1).with_data(data, 0)), Status::SUCCESS);
    });
}

#[test]
fn the_phase_changes_with_every_lap() {
    ready(|mut client| {
        assert!((0..5 * ENTRIES).all(|_| client.io(Submission::flush(1)) == Status::SUCCESS))
    });
}

#[test]
fn a_full_completion_queue_is_not_overwritten() {
    ready(|mut client| {
        // As many as fit into the submission queue at a time.
        let mut ids: Vec<u16> =
            (0..ENTRIES - 1).map(|_| client.submit(false, Submission::flush(1))).collect();
        let mut ends = Vec::new();
        client.wait_for(|client| {
            ends.extend(client.pop(false));
            ends.len() as u32 == ENTRIES - 1
        });
        // The queue is full and not acknowledged: what comes now waits.
        ids.push(client.submit(false, Submission::flush(1)));
        assert!(client.pop(false).is_none());
        client.acknowledge(false);
        client.wait_for(|client| {
            ends.extend(client.pop(false));
            ends.len() as u32 == ENTRIES
        });
        let mut ended: Vec<u16> = ends.iter().map(|end| end.id()).collect();
        // In any order.
        ended.sort();
        assert_eq!(ended, ids);
    });
}

#[test]
fn identify_says_how_large_the_namespace_is_and_how_many_there_are() {
    ready(|mut client| {
        let controller = Controller(client.identify(cns::CONTROLLER, 0).try_into().unwrap());
        let namespace = Namespace(client.identify(cns::NAMESPACE, 1).try_into().unwrap());
        assert!(controller.namespaces() >= 1);
        assert_eq!(namespace.size(), 2048);
        let ids = client.identify(cns::ACTIVE_NAMESPACES, 0);
        assert_eq!(ids[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    });
}

#[test]
fn each_queue_signals_its_own_msix_vector() {
    ready(|mut client| {
        client.irqs[0].take().unwrap();
        client.io(Submission::flush(1));
        let mut count = 0;
        client.wait_for(|client| {
            count += client.irqs[1].take().unwrap();
            count > 0
        });
        assert_eq!((client.irqs[0].take().unwrap(), count), (0, 1));
    });
}

#[test]
fn after_a_function_reset_the_controller_is_disabled_and_starts_again() {
    ready(|mut client| {
        client.write(3, 1, 0x66);
        client.device.reset().unwrap();
        assert_eq!(client.status(), Csts(0));
        client.restart();
        assert_eq!(client.read(3, 1), Status::SUCCESS);
        assert_eq!(client.byte(0), 0x66);
    });
}
