//! Whom the server tells when a disk has lost what clients had written.

mod served;

use std::sync::Arc;

use ring3_backend::OpenOptions;
use ring3_broker::client::RemoteDisk;
use ring3_broker::server::Options;
use ring3_class::Deadline;
use ring3_class::block::{Disk, IoError, Queue, Request, execute};
use ring3_driver::registry::{Controller, Driver, Offer, Settings};
use served::{SOON, Served};

/// An NVMe disk whose power fails at the first read.
fn disk() -> (Arc<dyn Disk>, Box<dyn Controller>) {
    let uri = "sim:nvme,size=8M,fault=lose-power:read".parse().unwrap();
    let device =
        ring3_backend::open(&uri, OpenOptions { arena: 64 << 20, ..OpenOptions::default() })
            .unwrap();
    let opened =
        Driver::open(device, None, &Settings { queues: 1, ..Settings::default() }).unwrap();
    let Some(Offer::Disk(disk)) = opened.offers.into_iter().next() else { panic!("it is a disk") };
    (disk, opened.controller)
}

/// A client with a queue.
struct User {
    disk: RemoteDisk,
    queue: Box<dyn Queue>,
}

impl User {
    fn of(served: &Served) -> Self {
        let disk = served.client(0);
        let queue = disk.open_queue(4).unwrap();
        Self { disk, queue }
    }

    fn run(&mut self, request: Request) -> Result<(), IoError> {
        execute(&mut *self.queue, request, Deadline::after(SOON)).unwrap().result
    }

    fn write(&mut self, lba: u64) {
        let buffer = self.disk.dma().arena().alloc_pages(512).unwrap();
        self.run(Request::write(1, lba, 1, buffer)).unwrap();
    }

    fn read(&mut self) {
        let buffer = self.disk.dma().arena().alloc_pages(512).unwrap();
        self.run(Request::read(1, 0, 1, buffer)).unwrap();
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.run(Request::flush(2))
    }
}

#[test]
fn every_client_that_has_written_since_its_last_flush_is_told_of_a_loss_and_no_other() {
    let (disk, _controller) = disk();
    let served = Served::start(disk, &[""], Options::default());
    let [mut first, mut second, mut idle, mut careful] = [(); 4].map(|()| User::of(&served));
    // Of the client whose flush meets the loss, and of one that is told by the server.
    let mut others = [&first, &second].map(|user| user.disk.open_queue(4).unwrap());
    careful.write(24);
    careful.flush().unwrap();
    first.write(8);
    second.write(16);
    idle.read();
    for user in [&mut first, &mut second] {
        assert_eq!((user.flush(), user.flush()), (Err(IoError::Transport), Ok(())));
    }
    for other in &mut others {
        let mut flush =
            || execute(&mut **other, Request::flush(2), Deadline::after(SOON)).unwrap().result;
        assert_eq!(
            (flush(), flush()),
            (Err(IoError::Transport), Ok(())),
            "each queue of a client is told"
        );
    }
    assert_eq!((idle.flush(), careful.flush()), (Ok(()), Ok(())));
}
