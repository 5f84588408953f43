//! What a fault does to the process that it is done in.
//!
//! Memory and code are changed through `/proc/self/mem`, which reaches pages whatever their protection is: a driver's own pages, and no others.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

use crate::spec::Spec;

/// Words of memory that one fault changes.
const WORDS: u64 = 64;
/// Bytes of code that one fault changes.
const BYTES: u64 = 32;
/// Words that are looked at for one that is in use.
const TRIES: u64 = 64;
/// Of a stack, what lies above its top is not in use; so much below its end is.
const STACK: u64 = 16 << 10;
/// Of memory that the device has, too, the rings and lists lie at its begin.
const SHARED: u64 = 256 << 10;

/// Where some kind of memory is.
type Range = std::ops::Range<u64>;

/// Changes words of this process's heap, stacks, data and DMA memory.
pub fn memory(spec: &Spec) -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = std::env::current_exe()?.display().to_string();
    let ranges: Vec<Range> = maps.lines().filter_map(|line| writable(line, &program)).collect();
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    for number in 0..WORDS {
        if let Some(at) = word_in_use(&memory, &ranges, spec, number) {
            change(&memory, at, 8, spec.word(1000 + number))?;
        }
    }
    Ok(())
}

/// What a line of /proc/self/maps names, if a driver would write there. [proc_pid_maps(5)]
fn writable(line: &str, program: &str) -> Option<Range> {
    let mut parts = line.split_ascii_whitespace();
    let (place, rights) = (parts.next()?, parts.next()?);
    let name = parts.nth(3).unwrap_or_default();
    let (start, end) = place.split_once('-')?;
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    match name {
        _ if !rights.starts_with("rw") => None,
        "[stack]" => Some(end.saturating_sub(STACK).max(start)..end),
        "[heap]" | "" => Some(start..end),
        _ if name.contains("ring3-dma") => Some(start..end.min(start + SHARED)),
        name => (name == program).then_some(start..end),
    }
}

fn word_in_use(memory: &File, ranges: &[Range], spec: &Spec, number: u64) -> Option<u64> {
    let range = ranges.get(spec.word(2000 + number).checked_rem(ranges.len() as u64)? as usize)?;
    (0..TRIES).find_map(|attempt| {
        let at = range.start + spec.word((number + 1) << 32 | attempt) % (range.end - range.start) / 8 * 8;
        let mut bytes = [0; 8];
        let read = memory.read_exact_at(&mut bytes, at);
        (read.is_ok() && bytes != [0; 8]).then_some(at)
    })
}

/// Changes bytes at the addresses of this program's code that `addresses` gives, as its file numbers them.
pub fn code(spec: &Spec, addresses: &[u64]) -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = std::env::current_exe()?.display().to_string();
    let base = maps.lines().find(|line| line.ends_with(&program)).and_then(|line| line.split('-').next());
    let base = base.and_then(|start| u64::from_str_radix(start, 16).ok());
    let base = base.ok_or_else(|| io::Error::other("this program is not where it should be"))?;
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    (0..).zip(addresses).try_for_each(|(number, at)| change(&memory, base + at, 1, spec.word(3000 + number)))
}

/// How many addresses [`code`] wants.
pub fn code_addresses(spec: &Spec, pick: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
    (0..BYTES).filter_map(|number| pick(spec.word(4000 + number))).collect()
}

/// A flipped bit, or one more or less; of a word, also by the size of a pointer.
fn change(memory: &File, at: u64, len: usize, random: u64) -> io::Result<()> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes[..len], at)?;
    let word = u64::from_le_bytes(bytes);
    let changed = match random % 6 {
        0..3 => word ^ 1 << ((random >> 8) % (len as u64 * 8)),
        3 => word.wrapping_add(1),
        4 => word.wrapping_sub(1),
        _ => word.wrapping_add(8),
    };
    memory.write_all_at(&changed.to_le_bytes()[..len], at)
}

/// This process gets no more memory than it has, and `spare` bytes; with nothing to spare, what it has free is used up, too.
pub fn no_memory(spare: u64) -> io::Result<Vec<Vec<u8>>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))?;
    limit(Resource::As, kib * 1024 + spare)?;
    let mut hog = Vec::new();
    if spare == 0 {
        for len in [1 << 20, 1 << 16, 1 << 12, 256] {
            let mut more = Vec::new();
            while more.try_reserve_exact(len).is_ok() && hog.try_reserve(1).is_ok() {
                hog.push(std::mem::take(&mut more));
            }
        }
    }
    Ok(hog)
}

/// This process gets no more than `spare` further descriptors.
pub fn no_descriptors(spare: u64) -> io::Result<()> {
    let used = fs::read_dir("/proc/self/fd")?.count() as u64;
    limit(Resource::Nofile, used.saturating_sub(1) + spare)
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let before = getrlimit(resource);
    Ok(setrlimit(resource, Rlimit { current: Some(most), ..before })?)
}

/// Ends or stops this process as somebody else would, at once.
pub fn signal(signal: rustix::process::Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(getpid(), signal)?)
}

/// Messages to a supervisor that make no sense, or are lies; each a packet.
pub fn lies(spec: &Spec) -> Vec<Vec<u8>> {
    let word = spec.word(5000);
    let packet = match word % 10 {
        0 => (0..word >> 8 & 0x3ff).map(|at| spec.word(6000 + at) as u8).collect(),
        1 => Vec::new(),
        2 => vec![b'{'; 4000],
        3 => format!("{{\"map\":{{\"iova\":0,\"offset\":0,\"len\":{}}}}}", u64::MAX).into_bytes(),
        4 => format!("{{\"unmap\":{{\"iova\":{},\"len\":{}}}}}", word, spec.word(5001)).into_bytes(),
        5 => b"{\"irqs\":{\"kind\":\"msi_x\",\"count\":65535}}".to_vec(),
        6 => format!("{{\"write\":{{\"bar\":255,\"offset\":{word},\"width\":8,\"value\":1,\"posted\":true}}}}").into_bytes(),
        7 => b"{\"hello\":{\"version\":77}}".to_vec(),
        8 => format!("{{\"config_write\":{{\"offset\":{},\"width\":255,\"value\":1}}}}", word % 9000).into_bytes(),
        _ => b"{\"mask\":{\"vector\":65535,\"masked\":true}}".to_vec(),
    };
    vec![packet; 1 + (word >> 40 & 3) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_writes_is_found_among_its_mappings() {
        let find = |line| writable(line, "/x/ring3");
        assert_eq!(find("7f00-8f00 rw-s 00000000 00:01 7 /memfd:ring3-dma (deleted)"), Some(0x7f00..0x8f00));
        assert_eq!(find("7f00-8f00 rw-p 00000000 00:00 0 [heap]"), Some(0x7f00..0x8f00));
        assert_eq!(find("7f00-8f00 rw-p 00000000 00:00 0"), Some(0x7f00..0x8f00));
        assert_eq!(find("7f00-8f00 rw-p 00000000 08:01 9 /x/ring3"), Some(0x7f00..0x8f00));
        for not in
            ["7f00-8f00 r--p 00000000 08:01 9 /x/ring3", "7f00-8f00 rw-s 0 00:01 7 /memfd:ring3-stats (deleted)", "nonsense"]
        {
            assert_eq!(find(not), None, "{not}");
        }
    }

    #[test]
    fn a_byte_is_changed_wherever_it_lies() {
        static HERE: [u8; 64] = [7; 64];
        let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
        // A constant lies in a page that cannot be written.
        change(&memory, HERE.as_ptr() as u64 + 8, 1, 3).unwrap();
        let mut seen = [0; 64];
        memory.read_exact_at(&mut seen, HERE.as_ptr() as u64).unwrap();
        assert_eq!((seen[7], seen[8], seen[9]), (7, 8, 7));
    }
}
