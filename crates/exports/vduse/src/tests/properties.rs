//! What holds whatever happens.

use proptest::prelude::*;

use super::*;

/// What happens to a queue, in an order that nobody foresees.
#[derive(Clone, Copy, Debug)]
enum Step {
    Offer,
    Take,
    Put(usize),
    Publish,
    Die,
    /// Between what the driver sees and the log.
    DieShowing,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Offer),
        6 => Just(Step::Take),
        6 => any::<usize>().prop_map(Step::Put),
        4 => Just(Step::Publish),
        1 => Just(Step::Die),
        1 => Just(Step::DieShowing),
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whenever servers die, each chain that the driver has offered comes back to it once.
    #[test]
    fn every_chain_comes_back_once_whenever_its_server_dies(steps in steps()) {
        const SIZE: u16 = 8;
        let folder = tempfile::tempdir().unwrap();
        let log = Inflight::create(&folder.path().join("log"), (1, SIZE), b"").unwrap();
        let mut driver = Driver::with_log(SIZE, EVENT, log.queue(0));
        (0..SIZE).for_each(|head| driver.describe(TABLE, head, (DATA, 8, 0, 0)));
        let (mut free, mut held): (Vec<u16>, Vec<u16>) = ((0..SIZE).collect(), Vec::new());
        let (mut offered, mut returned) = (0, 0);
        for step in steps {
            match step {
                Step::Offer => if let Some(head) = free.pop() {
                    driver.offer(head);
                    offered += 1;
                },
                Step::Take => held.extend(driver.take().unwrap().map(|chain| chain.head())),
                Step::Put(which) => if !held.is_empty() {
                    let head = held.swap_remove(which % held.len());
                    driver.queue.put(head, 0);
                },
                Step::Publish => drop(driver.queue.publish()),
                Step::Die | Step::DieShowing => {
                    if matches!(step, Step::DieShowing) {
                        driver.queue.publish_and_die();
                    }
                    driver = driver.reborn(log.queue(0));
                    held = driver.queue.in_flight();
                    let mut chain = Chain::with_capacity(8);
                    held.iter().for_each(|&head| driver.queue.retake(head, &mut chain).unwrap());
                }
            }
            for (head, _) in driver.used() {
                prop_assert!(!free.contains(&(head as u16)), "{head} came back twice");
                free.push(head as u16);
                returned += 1;
            }
        }
        while let Some(chain) = driver.take().unwrap() {
            held.push(chain.head());
        }
        held.drain(..).for_each(|head| driver.queue.put(head, 0));
        driver.queue.publish();
        returned += driver.used().len();
        prop_assert_eq!(offered, returned);
        prop_assert_eq!(driver.queue.in_flight().len(), 0);
    }

    /// Whatever the driver writes is a chain or a fault.
    #[test]
    fn garbage_is_a_chain_or_a_fault(table in proptest::collection::vec(any::<u8>(), 128), near in any::<bool>()) {
        let mut driver = Driver::new(8, EVENT);
        driver.write(TABLE, &table);
        if near {
            // Addresses and numbers that could be true.
            (0..8).for_each(|number| {
                let word = u128::from_le_bytes(driver.read(TABLE + 16 * number));
                let descriptor = (
                    DATA + (word as u64 & 0xfff),
                    (word >> 64) as u32 & 0xfff,
                    (word >> 96) as u16 & 7,
                    (word >> 112) as u16 & 7,
                );
                driver.describe(TABLE, number as u16, descriptor);
            });
        }
        driver.offer(u16::from(table[0]) & 7);
        if let Ok(Some(chain)) = driver.take() {
            let mut bytes = vec![0; chain.readable().min(1 << 16) as usize];
            prop_assert_eq!(chain.read(driver.queue.memory(), 0, &mut bytes) as usize, bytes.len());
        }
    }
}
