//! What a confined server may take is known when it starts and only counted then: clients that come
//! and go take nothing for good.

mod served;

use ring3_broker::client::RemoteDisk;
use ring3_broker::region::SharedMemory;
use ring3_class::block::Disk;
use ring3_class::dma::{admit, budget};
use served::Served;

const CLIENT: usize = 64 << 20;

#[test]
fn clients_that_come_and_go_leave_the_budget_of_a_confined_server_as_it_was() {
    let (served, memory) = (Served::ram(&[",memory=256M"]), SharedMemory::new(CLIENT).unwrap());
    budget();
    // All that there is but a little, which a few clients would use up if they left it taken.
    let mut piece: usize = 1 << 50;
    while piece > 8 * CLIENT {
        if admit(piece).is_err() {
            piece /= 2;
        }
    }
    for round in 0..64 {
        let disk = RemoteDisk::connect(&served.path(0), CLIENT)
            .unwrap_or_else(|error| panic!("client {round}: {error}"));
        disk.register_region(memory.region())
            .unwrap_or_else(|error| panic!("client {round}: {error}"));
    }
}
