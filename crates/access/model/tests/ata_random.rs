//! Whatever a host writes into registers and memory, the simulated ATA controllers live, and give
//! each drive back after a reset.

use proptest::prelude::*;
use ring3_device::Device;
use ring3_device::OpenOptions;
use ring3_device::dma::DmaBuffer;
use ring3_model::{SimDevice, ahci, ide};

#[derive(Clone, Debug)]
enum Step {
    /// A register, counted over all BARs; the value, and whether it is to be an address in memory.
    Write {
        register: usize,
        width: usize,
        value: u32,
        address: bool,
    },
    Read {
        register: usize,
        width: usize,
    },
    /// Random bytes in memory, from a seed.
    Scribble(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let width = || prop_oneof![Just(1usize), Just(2), Just(4), Just(8)];
    let value = prop_oneof![
        Just(0u32),
        Just(1),
        Just(u32::MAX),
        0u32..0x100,
        any::<u32>(),
        (0u32..32).prop_map(|bit| 1 << bit)
    ];
    prop_oneof![
        8 => (0usize..256, width(), value, any::<bool>())
            .prop_map(
                |(register, width, value, address)| Step::Write { register, width, value, address }
            ),
        3 => (0usize..256, width()).prop_map(|(register, width)| Step::Read { register, width }),
        1 => any::<u64>().prop_map(Step::Scribble),
    ]
}

fn scribble(buffer: &DmaBuffer, seed: u64) {
    let mut state = seed | 1;
    let bytes: Vec<u8> = (0..buffer.len())
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Many zeroes, so that there are short lists and small numbers.
            if state >> 60 < 8 { 0 } else { (state >> 32) as u8 }
        })
        .collect();
    buffer.write(0, &bytes).unwrap();
}

/// Does the steps on the registers at `places`: BAR and offset.
fn abuse<M: ring3_model::Model>(device: &SimDevice<M>, places: &[(u8, u64)], steps: Vec<Step>) {
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(64 << 10).unwrap();
    let place = |register: usize| places[register % places.len()];
    for step in steps {
        match step {
            Step::Write { register, width, value, address } => {
                let (bar, offset) = place(register);
                let (bar, value) = (
                    device.bar(bar).unwrap(),
                    if address { buffer.iova() as u32 + (value & 0xffff) } else { value },
                );
                match width {
                    1 => bar.write8(offset, value as u8),
                    2 => bar.write16(offset, value as u16),
                    4 => bar.write32(offset, value),
                    _ => bar.write64(offset, u64::from(value) | (buffer.iova() & !0xffff_ffff)),
                }
            }
            Step::Read { register, width } => {
                let (bar, offset) = place(register);
                let bar = device.bar(bar).unwrap();
                match width {
                    1 => u64::from(bar.read8(offset)),
                    2 => u64::from(bar.read16(offset)),
                    4 => u64::from(bar.read32(offset)),
                    _ => bar.read64(offset),
                };
            }
            Step::Scribble(seed) => scribble(&buffer, seed),
        }
    }
    device.reset().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn an_ahci_controller_outlives_whatever_is_written(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let options = OpenOptions { arena: 1 << 20, ..OpenOptions::default() };
        let device =
            ahci::open(&"sim:ahci,ports=2,disks=2,size=1M".parse().unwrap(), options).unwrap();
        let global = (0..0x2c).step_by(4);
        let places: Vec<_> =
            global.chain((0x100..0x180).step_by(4)).map(|offset| (5, offset)).collect();
        abuse(&device, &places, steps);
        prop_assert_eq!(device.bar(5).unwrap().read32(0x128), 0x133);
    }

    #[test]
    fn an_ide_controller_outlives_whatever_is_written(
        steps in proptest::collection::vec(step(), 1..200), chip in 0usize..3,
    ) {
        let options = OpenOptions { arena: 1 << 20, below: 1 << 32, ..OpenOptions::default() };
        let uri = format!("sim:ide,disks=2,size=1M,chip={}", ["piix3", "piix4", "cmd646"][chip]);
        let device = ide::open(&uri.parse().unwrap(), options).unwrap();
        let ports =
            (0..8).map(|port| (0, port)).chain([(1, 2)]).chain((0..8).map(|port| (4, port)));
        abuse(&device, &ports.collect::<Vec<_>>(), steps);
        prop_assert_eq!(device.bar(1).unwrap().read8(2), 0x50);
    }
}
