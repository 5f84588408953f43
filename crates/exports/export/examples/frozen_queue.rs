//! Freezes the queue of a block device of ublk's again and again, and says how many requests have
//! completed while it was frozen: there are to be none.
//!
//!     frozen_queue ID COUNT MILLISECONDS

use std::error::Error;
use std::fs;
use std::thread;
use std::time::Duration;

use ring3_export::ublk::FrozenQueue;

fn main() -> Result<(), Box<dyn Error>> {
    let words =
        std::env::args().skip(1).map(|word| word.parse::<u32>()).collect::<Result<Vec<_>, _>>()?;
    let &[id, count, milliseconds] = &words[..] else {
        return Err("usage: frozen_queue ID COUNT MILLISECONDS".into());
    };
    let (mut had, mut passed) = (0, 0);
    for _ in 0..count {
        let Some(frozen) = FrozenQueue::of(id, &|| false) else { continue };
        let before = completed(id)?;
        thread::sleep(Duration::from_millis(milliseconds.into()));
        passed += completed(id)? - before;
        drop(frozen);
        had += 1;
        // So that something is in flight before the next one.
        thread::sleep(Duration::from_millis(20));
    }
    println!("frozen {had} times, {passed} requests completed meanwhile");
    Ok(())
}

/// Reads and writes that have completed. [Linux, Documentation/block/stat.rst]
fn completed(id: u32) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/sys/block/ublkb{id}/stat"))?;
    let fields = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    Ok(fields
        .first()
        .zip(fields.get(4))
        .map(|(reads, writes)| reads + writes)
        .ok_or("no figures")?)
}
