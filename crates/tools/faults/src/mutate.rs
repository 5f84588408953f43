//! What a fault does to a process: to this one, or to another one from outside.
//!
//! Memory and code are changed through `/proc/PID/mem`, which reaches pages whatever their
//! protection is: the process's own pages, and no others.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Resource, Rlimit, getpid, getrlimit, prlimit};

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

/// How long an answer to a lie is waited for.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where some kind of memory is.
type Range = std::ops::Range<u64>;

/// The process that a fault is done to.
#[derive(Clone, Copy, Debug)]
pub struct Victim(Option<Pid>);

impl Victim {
    /// This process. Never by its number, which in a namespace of its own is somebody else's in
    /// `/proc`: 1 is the machine's init there.
    pub fn own() -> Self {
        Self(None)
    }

    /// Another one, which the caller may trace.
    pub fn other(pid: Pid) -> Self {
        Self(Some(pid))
    }

    fn file(self, name: &str) -> PathBuf {
        match self.0 {
            Some(pid) => format!("/proc/{}/{name}", pid.as_raw_nonzero()).into(),
            None => format!("/proc/self/{name}").into(),
        }
    }

    fn memory(self) -> io::Result<File> {
        File::options().read(true).write(true).open(self.file("mem"))
    }

    /// Its mappings, and what its program is called among them.
    fn maps(self) -> io::Result<(String, String)> {
        Ok((
            fs::read_to_string(self.file("maps"))?,
            fs::read_link(self.file("exe"))?.display().to_string(),
        ))
    }
}

/// Changes words of the victim's heap, stacks, data and DMA memory.
pub fn memory(victim: Victim, spec: &Spec) -> io::Result<()> {
    let (maps, program) = victim.maps()?;
    let ranges: Vec<Range> = maps.lines().filter_map(|line| writable(line, &program)).collect();
    let memory = victim.memory()?;
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
        let at = range.start
            + spec.word((number + 1) << 32 | attempt) % (range.end - range.start) / 8 * 8;
        let mut bytes = [0; 8];
        let read = memory.read_exact_at(&mut bytes, at);
        (read.is_ok() && bytes != [0; 8]).then_some(at)
    })
}

/// Changes bytes at the addresses of the victim's code that `addresses` gives, as its program's
/// file numbers them.
pub fn code(victim: Victim, spec: &Spec, addresses: &[u64]) -> io::Result<()> {
    let (maps, program) = victim.maps()?;
    let base =
        maps.lines().find(|line| line.ends_with(&program)).and_then(|line| line.split('-').next());
    let base = base.and_then(|start| u64::from_str_radix(start, 16).ok());
    let base = base.ok_or_else(|| io::Error::other("the program is not where it should be"))?;
    let memory = victim.memory()?;
    (0..)
        .zip(addresses)
        .try_for_each(|(number, at)| change(&memory, base + at, 1, spec.word(3000 + number)))
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

/// The victim gets no more memory than it has, and `spare` bytes.
pub fn no_memory(victim: Victim, spare: u64) -> io::Result<()> {
    let status = fs::read_to_string(victim.file("status"))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.and_then(|size| size.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/PID/status has no VmSize"))?;
    limit(victim, Resource::As, kib * 1024 + spare)
}

/// Uses up what this process has free, once it [gets no more](no_memory).
pub fn hog() -> Vec<Vec<u8>> {
    let mut hog = Vec::new();
    for len in [1 << 20, 1 << 16, 1 << 12, 256] {
        let mut more = Vec::new();
        while more.try_reserve_exact(len).is_ok() && hog.try_reserve(1).is_ok() {
            hog.push(std::mem::take(&mut more));
        }
    }
    hog
}

/// The victim gets no more than `spare` further descriptors.
pub fn no_descriptors(victim: Victim, spare: u64) -> io::Result<()> {
    let used = fs::read_dir(victim.file("fd"))?.count() as u64;
    // The folder that was just read is one of this process's.
    let own = u64::from(victim.0.is_none());
    limit(victim, Resource::Nofile, used.saturating_sub(own) + spare)
}

fn limit(victim: Victim, resource: Resource, most: u64) -> io::Result<()> {
    // Nobody asks for more afterwards, so that the upper limit may be this process's.
    let before = getrlimit(resource);
    prlimit(victim.0, resource, Rlimit { current: Some(most), ..before })?;
    Ok(())
}

/// Ends or stops this process as somebody else would, at once.
pub fn signal(signal: rustix::process::Signal) -> io::Result<()> {
    Ok(rustix::process::kill_process(getpid(), signal)?)
}

/// Messages to a supervisor that make no sense, or are lies; each a packet.
fn lies(spec: &Spec) -> Vec<Vec<u8>> {
    let word = spec.word(5000);
    let packet = match word % 10 {
        0 => (0..word >> 8 & 0x3ff).map(|at| spec.word(6000 + at) as u8).collect(),
        1 => Vec::new(),
        2 => vec![b'{'; 4000],
        3 => format!("{{\"map\":{{\"iova\":0,\"offset\":0,\"len\":{}}}}}", u64::MAX).into_bytes(),
        4 => {
            format!("{{\"unmap\":{{\"iova\":{},\"len\":{}}}}}", word, spec.word(5001)).into_bytes()
        }
        5 => b"{\"irqs\":{\"kind\":\"msi_x\",\"count\":65535}}".to_vec(),
        6 => format!(
            "{{\"write\":{{\"bar\":255,\"offset\":{word},\"width\":8,\"value\":1,\
                 \"posted\":true}}}}"
        )
        .into_bytes(),
        7 => b"{\"hello\":{\"version\":77}}".to_vec(),
        8 => format!(
            "{{\"config_write\":{{\"offset\":{},\"width\":255,\"value\":1}}}}",
            word % 9000,
        )
        .into_bytes(),
        _ => b"{\"mask\":{\"vector\":65535,\"masked\":true}}".to_vec(),
    };
    vec![packet; 1 + (word >> 40 & 3) as usize]
}

/// Tells them over `socket`. If they are questions there, an answer that comes is taken: the driver
/// would take it for that to its next question, and lie to its user.
pub fn lie(socket: impl AsFd, spec: &Spec, is_asked: bool) {
    for packet in lies(spec) {
        // An end that is closed takes no more lies.
        let _ = send(&socket, &packet, SendFlags::NOSIGNAL);
        if is_asked {
            let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&ANSWER));
            let _ = recv(&socket, &mut [0; 4096][..], RecvFlags::DONTWAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_writes_is_found_among_its_mappings() {
        let find = |line| writable(line, "/x/ring3");
        assert_eq!(
            find("7f00-8f00 rw-s 00000000 00:01 7 /memfd:ring3-dma (deleted)"),
            Some(0x7f00..0x8f00)
        );
        assert_eq!(find("7f00-8f00 rw-p 00000000 00:00 0 [heap]"), Some(0x7f00..0x8f00));
        assert_eq!(find("7f00-8f00 rw-p 00000000 00:00 0"), Some(0x7f00..0x8f00));
        assert_eq!(find("7f00-8f00 rw-p 00000000 08:01 9 /x/ring3"), Some(0x7f00..0x8f00));
        for not in [
            "7f00-8f00 r--p 00000000 08:01 9 /x/ring3",
            "7f00-8f00 rw-s 0 00:01 7 /memfd:ring3-stats (deleted)",
            "nonsense",
        ] {
            assert_eq!(find(not), None, "{not}");
        }
    }

    #[test]
    fn this_process_is_never_named_by_its_number() {
        assert_eq!(Victim::own().file("mem").to_str(), Some("/proc/self/mem"));
    }

    #[test]
    fn another_process_gets_no_more_descriptors_and_this_one_does() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let victim = Victim::other(Pid::from_child(&child));
        no_descriptors(victim, 2).unwrap();
        no_memory(victim, 1 << 20).unwrap();
        let limits = fs::read_to_string(victim.file("limits")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let limit = |name: &str| {
            limits
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .split_whitespace()
                .nth(3)
                .map(str::to_owned)
        };
        assert!(limit("Max open files").unwrap().parse::<u64>().unwrap() < 64, "{limits}");
        assert!(limit("Max address space").unwrap().parse::<u64>().unwrap() < 1 << 30, "{limits}");
        assert!(getrlimit(Resource::Nofile).current.is_none_or(|own| own >= 64));
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
