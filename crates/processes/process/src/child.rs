//! Children that end with the process that started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::signals::release;

/// Has the kernel kill the child when the *thread* that starts it ends (PR_SET_PDEATHSIG, SIGKILL):
/// start it from a thread that lives as long as the process. The child takes signals as usual, also
/// if this thread holds them back.
pub fn end_with_this(command: &mut Command) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl and getppid take no pointers here.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before the call above; nothing would kill this child then.
            if libc::getppid() as u32 != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        release()
    };
    // SAFETY: between fork and exec the closure only makes system calls: no allocation, no lock.
    unsafe { command.pre_exec(prepare) };
}
