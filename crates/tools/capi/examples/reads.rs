//! Reads 4 KiB blocks in batches by the class in Rust: what reads.c is compared with, see
//! tests/reads.

use std::error::Error;

use ring3_class::block::{Completion, Queue as _, Request, Splitter};
use ring3_host::open::{Claim, Requirements};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args().collect();
    let [_, uri, batch, batches] = &words[..] else { return Err("reads URI BATCH BATCHES".into()) };
    let (batch, batches): (usize, usize) = (batch.parse()?, batches.parse()?);
    let needs = Requirements { queues: 1, arena: 28 << 20, max_transfer: None, poll: None };
    let attached = Claim::new(uri.parse()?).open(&needs)?;
    let disk = attached.disks.first().ok_or("no disk")?;
    let mut queue = Splitter::new(disk.open_queue(64)?);
    let buffer = || disk.dma().arena().alloc_pages(4096);
    let mut free = (0..batch).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
    let mut done: Vec<_> = (0..batch).map(|_| Completion::default()).collect();
    for _ in 0..batches {
        for (nth, buffer) in (0..).zip(free.drain(..)) {
            let request = Request::read(nth, nth * 8, 8, buffer);
            queue.submit(request).map_err(|rejected| format!("{:?}", rejected.error))?;
        }
        queue.ring();
        while free.len() < batch {
            let count = queue.reap(&mut done)?;
            for end in &mut done[..count] {
                end.result?;
                free.extend(std::mem::take(&mut end.data).into_buffer());
            }
        }
    }
    Ok(())
}
