//! What a process gives up.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use caps::CapSet;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetStatus,
    Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    Gid, Uid, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::{Error, MAX_FILES, Sandbox, child, filter, root};

/// What of a sandbox the machine cannot give, in words for its log.
pub type MissingFeatures = Vec<String>;

/// Confines the calling process, for good. It has one thread, namespaces of its own
/// ([`spawn`](crate::spawn())) and the right to mount and to change its user.
///
/// After an error the process is neither what it was nor confined: it ends.
pub fn enter(sandbox: &Sandbox) -> Result<MissingFeatures, Error> {
    let filters = filter::compile(sandbox)?;
    check_alone()?;
    close_others(&sandbox.keep)?;
    limit()?;
    // What drops rights by looks into /proc does so as long as there is one.
    caps::clear(None, CapSet::Ambient).map_err(capabilities)?;
    caps::clear(None, CapSet::Bounding).map_err(capabilities)?;
    root::empty()?;
    set_no_new_privs(true).map_err(|error| Error::step("no new privileges", error))?;
    change_user(sandbox.user, sandbox.group)?;
    let mut lacking = MissingFeatures::new();
    lacking.extend(restrict_files()?);
    drop_capabilities()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::step("hiding its memory", error))?;
    filter::apply(&filters)?;
    Ok(lacking)
}

fn capabilities(error: caps::errors::CapsError) -> Error {
    Error::step("dropping capabilities", io::Error::other(error.to_string()))
}

/// Another thread would keep what this one gives up, and share its memory.
fn check_alone() -> Result<(), Error> {
    let step =
        |source| Error::step("counting the threads of the process (/proc/self/task)", source);
    let threads = fs::read_dir("/proc/self/task").map_err(step)?.count();
    if threads == 1 {
        Ok(())
    } else {
        Err(step(io::Error::other(format!(
            "{threads} instead of one; start them behind the sandbox"
        ))))
    }
}

/// Closes all descriptors but `keep`.
fn close_others(keep: &[RawFd]) -> Result<(), Error> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).collect();
    keep.sort_unstable();
    let mut first = 0;
    for fd in keep {
        if first < fd {
            child::close(first, fd - 1)
                .map_err(|error| Error::step("closing descriptors", error))?;
        }
        first = fd + 1;
    }
    child::close(first, u32::MAX).map_err(|error| Error::step("closing descriptors", error))
}

fn limit() -> Result<(), Error> {
    for (resource, most) in [(Resource::Nofile, MAX_FILES), (Resource::Core, 0)] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limit)
            .map_err(|error| Error::step(format!("limiting {resource:?} to {most}"), error))?;
    }
    Ok(())
}

/// All rights of root's go with it.
fn change_user(user: u32, group: u32) -> Result<(), Error> {
    if user == 0 || group == 0 {
        return Err(Error::Manifest(
            "a driver's process is not root's: name another user, or none".into(),
        ));
    }
    let step = |error| Error::step(format!("becoming user {user}, group {group}"), error);
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
    set_thread_groups(&[]).map_err(step)?;
    set_thread_res_gid(gid, gid, gid).map_err(step)?;
    set_thread_res_uid(uid, uid, uid).map_err(step)
}

fn drop_capabilities() -> Result<(), Error> {
    for set in [CapSet::Ambient, CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::clear(None, set).map_err(capabilities)?;
        // Seen, not believed.
        if !caps::read(None, set).map_err(capabilities)?.is_empty() {
            return Err(Error::step(
                "dropping capabilities",
                io::Error::other(format!("some are left ({set:?})")),
            ));
        }
    }
    Ok(())
}

/// No file, no TCP port, and no socket or signal of others, whatever the root is; in words what the
/// kernel does not know of it.
fn restrict_files() -> Result<Option<String>, Error> {
    let newest = ABI::V6;
    let step = |error: landlock::RulesetError| Error::step("landlock", io::Error::other(error));
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(newest))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::from_all(newest)))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(newest)))
        .map_err(step)?;
    let status = ruleset.create().and_then(|created| created.restrict_self()).map_err(step)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => None,
        RulesetStatus::PartiallyEnforced => Some(
            "this kernel's landlock knows files but not all of ports, signals and sockets".into(),
        ),
        RulesetStatus::NotEnforced => Some(
            "this kernel has no landlock: only the empty root keeps the driver from files".into(),
        ),
    })
}
