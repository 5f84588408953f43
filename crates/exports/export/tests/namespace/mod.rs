//! A network namespace of the test's own: what is made in it nobody else sees, and it goes with the
//! test.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A namespace. A closure is run in it, in a thread of its own, as are the programs that it starts.
pub struct Namespace(File);

impl Namespace {
    /// `Err` says what this machine has not, for a test that is skipped.
    pub fn new() -> Result<Self, String> {
        if !std::path::Path::new("/dev/net/tun").exists() {
            return Err("/dev/net/tun is missing".into());
        }
        let ip = Command::new("ip").arg("-V").output();
        ip.map_err(|error| format!("ip, of iproute2: {error}"))?;
        let made = thread::spawn(|| {
            // SAFETY: only this thread's network namespace changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| format!("a network namespace: {error}"))?;
            File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
        });
        let namespace = Self(made.join().unwrap()?);
        namespace.ip("link set lo up");
        Ok(namespace)
    }

    /// By which another process finds it.
    pub fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// What `run` returns, run in it.
    pub fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let run = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run()
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// `ip WORDS`, which must succeed; what it prints.
    pub fn ip(&self, words: &str) -> String {
        self.try_ip(words).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What `ip WORDS` prints, or why it fails.
    pub fn try_ip(&self, words: &str) -> Result<String, String> {
        let output =
            self.within(|| Command::new("ip").args(words.split_whitespace()).output().unwrap());
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(format!("ip {words}: {}", text(output.stderr)))
        }
    }
}
