//! Which system calls the kernel takes from the process.
//!
//! Several filters, of which the strictest answer counts. One ends the process at a call that no
//! manifest lists, and at one of those below whose arguments are others; the others answer calls
//! that a library tries and can do without. Ending is the safe answer: a driver that makes an
//! unheard-of call is not one that should go on with a disk, and its supervisor restarts it.

use seccompiler::{BpfProgram, TargetArch, compile_from_json};
use serde_json::{Value, json};

use crate::{Error, Sandbox};

/// `argument & mask == value`.
struct Rule {
    argument: u8,
    mask: u64,
    value: u64,
}

const fn rule(argument: u8, mask: u64, value: u64) -> Rule {
    Rule { argument, mask, value }
}

/// A call of which only some forms are allowed.
pub(crate) struct RestrictedCall {
    pub(crate) name: &'static str,
    /// In words.
    pub(crate) only: &'static str,
    /// One of these holds; each is rules that all hold.
    forms: &'static [&'static [Rule]],
}

const ALL: u64 = u32::MAX as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
/// What makes a thread of this process, and no process.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD) as u64;
/// What would make it one of another namespace, or traced.
const ELSEWHERE: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_PTRACE) as u64;
/// The timeouts of a socket, in both forms, are numbers of the level SOL_SOCKET.
/// [asm-generic/socket.h]
const SOCKET: u64 = libc::SOL_SOCKET as u64;

/// What registers something with a ring, and its operations. [io_uring_register(2)]
const REGISTER: &str = "io_uring_register";
const ENABLE_RINGS: u64 = 12;
const REGISTER_RING_FDS: u64 = 20;
const UNREGISTER_RING_FDS: u64 = 21;
const REGISTER_PBUF_RING: u64 = 22;
/// Beside the operation is a bit that says that the ring is named by its registered number.
/// [io_uring_register(2), IORING_REGISTER_USE_REGISTERED_RING]
const OPERATION: u64 = ALL & !(1 << 31);

/// What sets a worker of vhost-net up: its features, owner and memory, a ring's size, place, start
/// and descriptors, and the interface. [linux/vhost.h]
pub(crate) const VHOST: &str = "ioctl";
const VHOST_NET: [&[Rule]; 9] = [
    &[rule(1, ALL, 0x4008_af00)],
    &[rule(1, ALL, 0xaf01)],
    &[rule(1, ALL, 0x4008_af03)],
    &[rule(1, ALL, 0x4008_af10)],
    &[rule(1, ALL, 0x4028_af11)],
    &[rule(1, ALL, 0x4008_af12)],
    &[rule(1, ALL, 0x4008_af20)],
    &[rule(1, ALL, 0x4008_af21)],
    &[rule(1, ALL, 0x4008_af30)],
];

/// Guard pages of stacks, as newer C libraries make them. [madvise(2), Linux 6.13]
const GUARD_INSTALL: u64 = 102;
const GUARD_REMOVE: u64 = 103;

pub(crate) const NARROWED: &[RestrictedCall] = &[
    // The device goes on with pages that were taken out of their file, and the next driver would
    // find others there.
    RestrictedCall {
        name: "madvise",
        only: "what leaves the pages of files in them",
        forms: &[
            &[rule(2, ALL, libc::MADV_DONTNEED as u64)],
            &[rule(2, ALL, libc::MADV_FREE as u64)],
            &[rule(2, ALL, libc::MADV_HUGEPAGE as u64)],
            &[rule(2, ALL, libc::MADV_NOHUGEPAGE as u64)],
            &[rule(2, ALL, libc::MADV_DONTDUMP as u64)],
            &[rule(2, ALL, GUARD_INSTALL)],
            &[rule(2, ALL, GUARD_REMOVE)],
        ],
    },
    RestrictedCall { name: "mmap", only: "nothing to execute", forms: &[&[rule(2, EXEC, 0)]] },
    RestrictedCall { name: "mprotect", only: "nothing to execute", forms: &[&[rule(2, EXEC, 0)]] },
    RestrictedCall {
        name: "clone",
        only: "threads",
        forms: &[&[rule(0, THREAD | ELSEWHERE, THREAD)]],
    },
    RestrictedCall { name: VHOST, only: "what sets vhost-net up", forms: &VHOST_NET },
    RestrictedCall {
        name: "prctl",
        only: "a thread's name",
        forms: &[&[rule(0, ALL, libc::PR_SET_NAME as u64)]],
    },
    RestrictedCall {
        name: "fcntl",
        only: "flags, seals and copies of descriptors",
        forms: &[
            &[rule(1, ALL, libc::F_GETFD as u64)],
            &[rule(1, ALL, libc::F_SETFD as u64)],
            &[rule(1, ALL, libc::F_GETFL as u64)],
            &[rule(1, ALL, libc::F_SETFL as u64)],
            &[rule(1, ALL, libc::F_DUPFD_CLOEXEC as u64)],
            &[rule(1, ALL, libc::F_ADD_SEALS as u64)],
            &[rule(1, ALL, libc::F_GET_SEALS as u64)],
        ],
    },
    RestrictedCall {
        name: "setsockopt",
        only: "time limits, and whether senders are named",
        forms: &[
            &[rule(1, ALL, SOCKET), rule(2, ALL, libc::SO_RCVTIMEO as u64)],
            &[rule(1, ALL, SOCKET), rule(2, ALL, libc::SO_SNDTIMEO as u64)],
            &[rule(1, ALL, SOCKET), rule(2, ALL, 66)],
            &[rule(1, ALL, SOCKET), rule(2, ALL, 67)],
            &[rule(1, ALL, SOCKET), rule(2, ALL, libc::SO_PASSCRED as u64)],
        ],
    },
    RestrictedCall {
        name: REGISTER,
        only: "rings that were made and restricted before",
        forms: &[
            &[rule(1, OPERATION, ENABLE_RINGS)],
            &[rule(1, OPERATION, REGISTER_RING_FDS)],
            &[rule(1, OPERATION, UNREGISTER_RING_FDS)],
        ],
    },
];

/// Calls that no manifest opens: whoever lists one has made a mistake.
const NEVER: [&str; 13] = [
    "ioctl",
    "io_uring_setup",
    "openat",
    "open",
    "execve",
    "execveat",
    "socket",
    "connect",
    "ptrace",
    "kill",
    "mount",
    "bpf",
    "process_vm_writev",
];

/// Calls that libraries try and go on without, and what they hear. The C library makes threads by
/// clone where there is no clone3, whose arguments no filter sees; and it looks for processors in
/// files, where there are none.
const ANSWERED: [(&str, i32); 2] = [("clone3", libc::ENOSYS), ("openat", libc::EACCES)];

/// Calls that not all machines have, and the newer ones that do the same. C libraries make them
/// under the older names. [asm-generic/unistd.h]
const NEWER: [(&str, &str); 2] = [("poll", "ppoll"), ("epoll_wait", "epoll_pwait")];

/// All filters. The one that allows least is the last, so that it need not allow the setting of the
/// others.
pub(crate) fn compile(sandbox: &Sandbox) -> Result<Vec<BpfProgram>, Error> {
    compile_for(std::env::consts::ARCH, sandbox)
}

fn compile_for(arch: &str, sandbox: &Sandbox) -> Result<Vec<BpfProgram>, Error> {
    if let Some(call) = NEVER.iter().find(|call| sandbox.calls.contains(**call)) {
        let why = "which no driver's process gets: the process that holds the device does that";
        return Err(Error::Manifest(format!("a manifest lists {call}, {why}")));
    }
    let answers = ANSWERED.iter().map(|&(name, error)| {
        json!({
            "mismatch_action": "allow", "match_action": { "errno": error },
            "filter": [{ "syscall": name }],
        })
    });
    let named = sandbox.calls().chain(ANSWERED.iter().map(|(name, _)| *name));
    let names = named.map(|name| on(arch, name));
    let buffers =
        sandbox.batches.then(|| form(REGISTER, &[rule(1, OPERATION, REGISTER_PBUF_RING)]));
    let allowed: Vec<Value> = names.flat_map(entries).chain(buffers).collect();
    let allowed =
        json!({ "mismatch_action": "kill_process", "match_action": "allow", "filter": allowed });
    answers.chain([allowed]).map(|filter| one(arch, &filter)).collect()
}

/// What the call `name` is on `arch`.
fn on<'a>(arch: &str, name: &'a str) -> &'a str {
    let newer = NEWER.iter().find(|(older, _)| arch != "x86_64" && *older == name);
    newer.map_or(name, |(_, newer)| newer)
}

fn one(arch: &str, filter: &Value) -> Result<BpfProgram, Error> {
    let failed = |error: String| Error::Manifest(format!("its system calls: {error}"));
    let arch = TargetArch::try_from(arch).map_err(|error| failed(error.to_string()))?;
    let compiled = compile_from_json(json!({ "it": filter }).to_string().as_bytes(), arch)
        .map_err(|error| failed(error.to_string()))?;
    compiled.into_values().next().ok_or_else(|| failed("they make no filter".into()))
}

/// A rule for each form of the call.
fn entries(name: &str) -> Vec<Value> {
    let Some(narrowed) = NARROWED.iter().find(|narrowed| narrowed.name == name) else {
        return vec![json!({ "syscall": name })];
    };
    narrowed.forms.iter().map(|rules| form(name, rules)).collect()
}

/// The rule of one form.
fn form(name: &str, rules: &[Rule]) -> Value {
    let condition = |rule: &Rule| {
        json!({
            "index": rule.argument, "type": "dword", "op": { "masked_eq": rule.mask },
            "val": rule.value,
        })
    };
    let args: Vec<_> = rules.iter().map(condition).collect();
    json!({ "syscall": name, "args": args })
}

/// Sets them. From here on the process ends at any other call.
pub(crate) fn apply(filters: &[BpfProgram]) -> Result<(), Error> {
    for filter in filters {
        seccompiler::apply_filter(filter).map_err(|error| {
            Error::step("filtering its system calls", std::io::Error::other(error))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sandbox(calls: &[&str]) -> Sandbox {
        let calls: BTreeSet<String> = calls.iter().map(|call| (*call).to_owned()).collect();
        Sandbox { user: 1, group: 1, keep: Vec::new(), vhost: false, batches: false, calls }
    }

    #[test]
    fn every_driver_of_ring3_has_a_filter_on_both_machines() {
        for family in ["nvme", "ata", "edu", "e1000", "virtio"] {
            for backend in ["lease", "vfio-user"] {
                let sandbox = Sandbox::new(ring3_manifest::drivers(Some(family)), backend).unwrap();
                let sandbox = Sandbox { batches: true, ..sandbox };
                for arch in ["x86_64", "aarch64"] {
                    compile_for(arch, &sandbox).unwrap_or_else(|error| panic!("{arch}: {error}"));
                }
            }
        }
    }

    #[test]
    fn a_machine_without_poll_takes_the_newer_call_and_nothing_else() {
        assert_eq!(
            (on("x86_64", "poll"), on("aarch64", "poll"), on("aarch64", "read")),
            ("poll", "ppoll", "read")
        );
        let sandbox = sandbox(&["poll"]);
        assert!(compile_for("aarch64", &sandbox).is_ok());
    }

    #[test]
    fn a_manifest_that_lists_what_no_driver_gets_or_what_is_no_call_makes_no_sandbox() {
        for call in NEVER.into_iter().chain(["raed"]) {
            let error = compile(&sandbox(&["read", call])).unwrap_err().to_string();
            assert!(error.contains(call), "{error}");
        }
        assert!(Sandbox::new(ring3_manifest::drivers(Some("unheard-of")), "lease").is_err());
    }

    #[test]
    fn a_card_by_vhost_net_has_a_filter_in_which_ioctl_is_narrowed() {
        let mut sandbox = Sandbox::new(ring3_manifest::drivers(Some("e1000")), "lease").unwrap();
        assert!(sandbox.calls().all(|call| call != VHOST));
        sandbox.vhost = true;
        compile(&sandbox).unwrap();
        assert_eq!(sandbox.calls().filter(|call| *call == VHOST).count(), 1);
        assert_eq!(entries(VHOST).len(), VHOST_NET.len());
    }

    #[test]
    fn the_calls_of_the_vfio_backend_are_none_for_a_driver_in_a_sandbox() {
        let sandbox = Sandbox::new(ring3_manifest::drivers(Some("nvme")), "vfio").unwrap();
        assert!(compile(&sandbox).unwrap_err().to_string().contains("ioctl"));
    }
}
