//! The simulated medium holds what a flat array would hold, whatever was written, zeroed,
//! discarded, flushed and lost.

mod raw;

use proptest::prelude::*;
use raw::Client;
use ring3_spec::nvme::opcode::nvm;
use ring3_spec::nvme::{DsmRange, Status, Submission};

/// Two chunks of the medium and a bit, so that requests cross their edge.
const BLOCKS: u64 = 1152;
const BLOCK: usize = 512;

#[derive(Clone, Debug)]
enum Step {
    Write { lba: u64, blocks: u32, byte: u8, fua: bool },
    Read { lba: u64, blocks: u32 },
    Zero { lba: u64, blocks: u32 },
    Discard { lba: u64, blocks: u32 },
    Flush,
    LosePower,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || {
        (0..BLOCKS, 1u32..=128).prop_map(|(lba, blocks)| (lba, blocks.min((BLOCKS - lba) as u32)))
    };
    prop_oneof![
        6 => {
            (place(), 1u8.., any::<bool>()).prop_map(
                |((lba, blocks), byte, fua)| Step::Write { lba, blocks, byte, fua }
            )
        },
        4 => place().prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
        2 => place().prop_map(|(lba, blocks)| Step::Zero { lba, blocks }),
        2 => {
            (0..BLOCKS, 1u32..1152).prop_map(
                |(lba, blocks)| Step::Discard { lba, blocks: blocks.min((BLOCKS - lba) as u32) }
            )
        },
        1 => Just(Step::Flush),
        1 => Just(Step::LosePower),
    ]
}

/// What the medium should hold: now, and after a power loss.
struct Flat {
    now: Vec<u8>,
    durable: Vec<u8>,
}

impl Flat {
    fn set(&mut self, lba: u64, blocks: u32, byte: u8, durable: bool) {
        let range = lba as usize * BLOCK..(lba as usize + blocks as usize) * BLOCK;
        self.now[range.clone()].fill(byte);
        if durable {
            self.durable[range].fill(byte);
        }
    }
}

fn run(client: &mut Client, flat: &mut Flat, step: &Step) -> Result<(), TestCaseError> {
    match *step {
        Step::Write { lba, blocks, byte, fua } => {
            client.buffer.fill(byte);
            prop_assert_eq!(client.transfer(nvm::WRITE, lba, blocks, fua), Status::SUCCESS);
            flat.set(lba, blocks, byte, fua);
        }
        Step::Read { lba, blocks } => {
            client.buffer.fill(0xee);
            prop_assert_eq!(client.transfer(nvm::READ, lba, blocks, false), Status::SUCCESS);
            let mut bytes = vec![0; blocks as usize * BLOCK];
            client.buffer.read(0, &mut bytes).unwrap();
            prop_assert!(bytes == flat.now[lba as usize * BLOCK..][..bytes.len()]);
        }
        Step::Zero { lba, blocks } => {
            prop_assert_eq!(
                client.io(Submission::write_zeroes(1, lba, blocks, false, true)),
                Status::SUCCESS
            );
            flat.set(lba, blocks, 0, false);
        }
        Step::Discard { lba, blocks } => {
            let words = DsmRange { lba, blocks }.to_words();
            client.buffer.write(0, &words[0].to_le_bytes()).unwrap();
            client.buffer.write(8, &words[1].to_le_bytes()).unwrap();
            let command = Submission::deallocate(1, 1).with_data(client.buffer.iova(), 0);
            prop_assert_eq!(client.io(command), Status::SUCCESS);
            flat.set(lba, blocks, 0, false);
        }
        Step::Flush => {
            prop_assert_eq!(client.io(Submission::flush(1)), Status::SUCCESS);
            flat.durable.clone_from(&flat.now);
        }
        Step::LosePower => {
            client.handle().lose_power();
            client.restart();
            flat.now.clone_from(&flat.durable);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_medium_equals_a_flat_array(steps in prop::collection::vec(step(), 1..60)) {
        let mut client = Client::ready("sim:nvme,size=576K");
        let bytes = BLOCKS as usize * BLOCK;
        let mut flat = Flat { now: vec![0; bytes], durable: vec![0; bytes] };
        for step in &steps {
            run(&mut client, &mut flat, step)?;
        }
        let mut seen = vec![0; bytes];
        prop_assert!(client.handle().peek(1, 0, &mut seen));
        prop_assert!(seen == flat.now);
    }
}
