//! Has lulls of a block device of ublk's, and says how many requests have ended in them: there is
//! to be none.
//!
//!     lull ID COUNT MILLISECONDS

use std::error::Error;
use std::fs;
use std::thread;
use std::time::Duration;

use ring3_export::ublk::FrozenQueue;

fn main() -> Result<(), Box<dyn Error>> {
    let words =
        std::env::args().skip(1).map(|word| word.parse::<u32>()).collect::<Result<Vec<_>, _>>()?;
    let &[id, count, milliseconds] = &words[..] else {
        return Err("usage: lull ID COUNT MILLISECONDS".into());
    };
    let (mut had, mut passed) = (0, 0);
    for _ in 0..count {
        let Some(lull) = FrozenQueue::of(id, &|| false) else { continue };
        let before = ended(id)?;
        thread::sleep(Duration::from_millis(milliseconds.into()));
        passed += ended(id)? - before;
        drop(lull);
        had += 1;
        // So that something is in flight before the next one.
        thread::sleep(Duration::from_millis(20));
    }
    println!("{had} lulls, {passed} requests ended in them");
    Ok(())
}

/// Reads and writes that have ended. [Linux, Documentation/block/stat.rst]
fn ended(id: u32) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/sys/block/ublkb{id}/stat"))?;
    let fields = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    Ok(fields
        .first()
        .zip(fields.get(4))
        .map(|(reads, writes)| reads + writes)
        .ok_or("no figures")?)
}
