//! Keeps the calling thread on the CPUs of its queue.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Runs the calling thread on `cpus` only. Best effort: CPUs that this process may not use are the
/// kernel's to refuse, and a thread elsewhere is slower and not wrong.
pub fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    if set.count() > 0
        && let Err(error) = sched_setaffinity(None, &set)
    {
        tracing::debug!(?cpus, %error, "queue thread not pinned");
    }
}
