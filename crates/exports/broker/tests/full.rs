//! A server whose process has no descriptor left for a client. The limit is the process's, so that
//! this file has one test.

mod served;

use std::sync::Arc;
use std::time::Duration;

use ring3_broker::server::Options;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use served::{Gated, SOON, Served};

#[test]
fn who_came_while_no_descriptor_was_left_is_accepted_later_though_nobody_else_comes() {
    let served = Served::start(Arc::new(Gated::new()), &[""], Options::default());
    // Who was served says that the server waits for clients.
    drop(served.client(0));
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    connect(&socket, &SocketAddrUnix::new(served.path(0)).unwrap()).unwrap();
    send(&socket, b"garbage", SendFlags::NOSIGNAL).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    setrlimit(Resource::Nofile, limit).unwrap();
    // It is told why it is cut off.
    let answered =
        poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&Timespec::try_from(SOON).unwrap()));
    assert_eq!(answered, Ok(1));
}
