//! Memory near the device, on machines whose memory is in several nodes.

use std::ptr;

use crate::Error;

/// Nodes that a mask here has room for: as many as Linux has at most on x86-64, and more than on
/// arm64. [Linux, NODES_SHIFT]
const NODES: usize = 1024;
const WORD: usize = libc::c_ulong::BITS as usize;

/// A policy of a thread: where the memory lies that it is the first to touch. [set_mempolicy(2)]
struct Policy {
    mode: libc::c_int,
    nodes: [libc::c_ulong; NODES / WORD],
}

impl Policy {
    /// `node` while it has free memory, others after that.
    fn preferring(node: u32) -> Option<Self> {
        let node = node as usize;
        let mut policy = Self { mode: libc::MPOL_PREFERRED, nodes: [0; NODES / WORD] };
        *policy.nodes.get_mut(node / WORD)? |= 1 << (node % WORD);
        Some(policy)
    }

    /// This thread's.
    fn current() -> Result<Self, Error> {
        let mut policy = Self { mode: 0, nodes: [0; NODES / WORD] };
        // SAFETY: the kernel writes an integer and a mask of at most NODES bits, which are ours.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                NODES,
                ptr::null::<libc::c_void>(),
                0,
            )
        };
        ended(result, "reading the memory policy")?;
        Ok(policy)
    }

    /// Makes it this thread's.
    fn set(&self) -> Result<(), Error> {
        // One more: the kernel takes the number of bits to be one larger than it is.
        let bits = NODES + 1;
        // SAFETY: the kernel reads a mask of NODES bits, which are ours.
        let result =
            unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, self.nodes.as_ptr(), bits) };
        ended(result, "setting the memory policy")
    }
}

fn ended(result: libc::c_long, doing: &str) -> Result<(), Error> {
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Error::os(doing, rustix::io::Errno::from_raw_os_error(error.raw_os_error().unwrap_or(0))))
}

/// Does `make`, and takes the memory that it is the first to touch from `node`, as long as that has
/// some: for memory of a device there, which each of its transfers reaches without crossing to
/// another node. Without a node, or where the kernel refuses, as without this.
pub fn on_node<T>(node: Option<u32>, make: impl FnOnce() -> T) -> T {
    let Some((node, wanted)) = node.and_then(|node| Some((node, Policy::preferring(node)?))) else {
        return make();
    };
    let entered = Policy::current().and_then(|before| wanted.set().map(|()| before));
    let made = make();
    // A thread cannot be left with another policy than it had: what was read is valid.
    if let Err(error) = entered.and_then(|before| before.set()) {
        tracing::debug!("memory of node {node}: {error}");
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_preferred_from_a_node_while_it_is_made_and_no_longer() {
        let mode = || Policy::current().unwrap().mode;
        let before = mode();
        let (mut inside, mut first) = (0, 0);
        on_node(Some(0), || {
            let policy = Policy::current().unwrap();
            (inside, first) = (policy.mode, policy.nodes[0]);
        });
        assert_eq!((inside, first), (libc::MPOL_PREFERRED, 1));
        assert_eq!(mode(), before);
    }

    #[test]
    fn a_node_that_there_is_not_changes_nothing() {
        let before = Policy::current().unwrap().mode;
        for node in [None, Some(1023), Some(u32::MAX)] {
            assert_eq!(on_node(node, || 7), 7);
            assert_eq!(Policy::current().unwrap().mode, before);
        }
    }
}
