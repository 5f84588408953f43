use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use rustix::net::{SendFlags, connect, send};

use super::*;

struct Bed {
    server: AdminServer,
    folder: tempfile::TempDir,
}

fn bed() -> Bed {
    let folder = tempfile::tempdir().unwrap();
    Bed { server: AdminServer::listen(&folder.path().join("run/control")).unwrap(), folder }
}

impl Bed {
    fn connect(&self) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        connect(&socket, &SocketAddrUnix::new(self.folder.path().join("run/control")).unwrap())
            .unwrap();
        socket
    }

    fn client(&mut self) -> Channel {
        let client = Channel::new(self.connect(), Duration::from_secs(5), true).unwrap();
        client.send(&Command::Hello { version: VERSION }, &[]).unwrap();
        assert!(self.server.take().is_empty());
        assert!(matches!(
            client.receive::<Reply>().unwrap().unwrap().0,
            Reply::Hello { version: VERSION, .. }
        ));
        client
    }

    /// It still answers.
    fn is_well(&mut self) {
        let client = self.client();
        client.send(&Command::Status, &[]).unwrap();
        let requests = self.server.take();
        assert_eq!((requests.len(), &requests[0].command), (1, &Command::Status));
        self.server.answer(requests[0].from, &Reply::Done);
        assert_eq!(client.receive::<Reply>().unwrap().unwrap().0, Reply::Done);
    }
}

#[test]
fn a_command_is_answered_and_later_by_another_thread_too() {
    let mut bed = bed();
    bed.is_well();
    let client = bed.client();
    client.send(&Command::Reload, &[]).unwrap();
    let answer = bed.server.later(bed.server.connections.keys().last().copied().unwrap());
    assert_eq!(bed.server.take().len(), 1);
    std::thread::spawn(move || answer(Reply::Text("x".into()))).join().unwrap();
    bed.server.take();
    assert_eq!(client.receive::<Reply>().unwrap().unwrap().0, Reply::Text("x".into()));
}

#[test]
fn only_its_owner_may_connect() {
    let bed = bed();
    let mode = fs::metadata(bed.folder.path().join("run/control")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700 & mode & 0o777);
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn a_second_supervisor_is_refused_and_what_a_dead_one_has_left_is_not_in_the_way() {
    let bed = bed();
    let path = bed.folder.path().join("run/control");
    let error = AdminServer::listen(&path).err().unwrap().to_string();
    assert!(error.contains("another ring3d"), "{error}");
    drop(bed.server);
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "as a process leaves it that is killed");
    assert!(AdminServer::listen(&path).is_ok());
}

#[test]
fn garbage_and_who_does_not_agree_on_a_version_first_lose_their_connection() {
    let mut bed = bed();
    for packet in [
        &b"garbage"[..],
        b"{\"hello\":",
        b"\"status\"",
        &[0xff; 70_000],
        b"{\"hello\":{\"version\":99}}",
    ] {
        let socket = bed.connect();
        send(&socket, packet, SendFlags::NOSIGNAL).unwrap();
        bed.server.take();
        assert!(bed.server.connections.is_empty(), "{packet:?}");
    }
    bed.is_well();
}

#[test]
fn many_connections_are_survived() {
    let mut bed = bed();
    let sockets: Vec<_> = (0..3 * CONNECTIONS)
        .map(|_| {
            let socket = bed.connect();
            bed.server.take();
            socket
        })
        .collect();
    assert_eq!(bed.server.connections.len(), CONNECTIONS);
    bed.is_well();
    drop(sockets);
    // Those that nobody has accepted yet are, and are seen to be closed then.
    let since = Instant::now();
    while bed.server.connections.len() > 1 {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "{} are left",
            bed.server.connections.len()
        );
        bed.server.take();
    }
}

#[test]
fn who_does_not_read_is_dropped_and_nobody_waits_for_him() {
    let mut bed = bed();
    let deaf = bed.client();
    let id = bed.server.connections.keys().last().copied().unwrap();
    let since = std::time::Instant::now();
    for _ in 0..1000 {
        bed.server.answer(id, &Reply::Text("x".repeat(60_000)));
    }
    assert!(bed.server.connections.is_empty() && since.elapsed() < Duration::from_secs(10));
    drop(deaf);
    bed.is_well();
}

#[test]
fn an_answer_that_is_too_long_for_a_packet_comes_in_a_file_that_nobody_can_change() {
    let mut bed = bed();
    let client = bed.client();
    let id = bed.server.connections.keys().last().copied().unwrap();
    let long = Reply::Text("x".repeat(100_000));
    bed.server.answer(id, &long);
    let (reply, fds) = client.receive::<Reply>().unwrap().unwrap();
    assert_eq!((reply, fds.len()), (Reply::Long, 1));
    assert!(rustix::io::write(&fds[0], b"x").is_err());
    let mut bytes = vec![0; rustix::fs::fstat(&fds[0]).unwrap().st_size as usize];
    rustix::io::pread(&fds[0], &mut bytes, 0).unwrap();
    assert_eq!(serde_json::from_slice::<Reply>(&bytes).unwrap(), long);
}

#[test]
fn two_questions_at_once_are_not_asked_by_our_clients() {
    let mut bed = bed();
    let client = bed.client();
    client.send(&Command::Status, &[]).unwrap();
    client.send(&Command::Status, &[]).unwrap();
    assert_eq!(bed.server.take().len(), 1);
    bed.server.take();
    assert!(bed.server.connections.is_empty());
}

#[test]
fn a_file_that_is_no_socket_is_not_taken_for_one_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    fs::write(&path, "content").unwrap();
    let Err(error) = AdminServer::listen(&path) else { panic!("it listens") };
    assert!(
        error.to_string().contains("no socket") && error.to_string().contains("--socket"),
        "{error}"
    );
    assert_eq!(fs::read(&path).unwrap(), b"content");
}

#[test]
fn who_cannot_be_let_in_for_want_of_descriptors_is_not_looked_at_without_end() {
    const CHILD: &str = "RING3_TEST_FULL";
    if std::env::var_os(CHILD).is_none() {
        // A process of its own: its limit is nobody else's.
        let name = "admin::tests::who_cannot_be_let_in_for_want_of_descriptors_is_not_looked_at_without_end";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .status();
        return assert!(status.unwrap().success());
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut bed = bed();
    let _waits = bed.connect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    bed.server.take();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(bed.server.due().is_some(), "it waits");
    let listener = std::os::fd::AsRawFd::as_raw_fd(&bed.server.listener);
    assert!(bed.server.fds().iter().all(|fd| std::os::fd::AsRawFd::as_raw_fd(fd) != listener));
    std::thread::sleep(FULL + Duration::from_millis(10));
    assert!(bed.server.due().is_none());
    bed.is_well();
}

#[test]
fn who_is_not_root_may_ask_for_the_state_and_commands_nothing() {
    let mut bed = bed();
    let client = bed.client();
    // As if a member of the socket's group had connected: a test has one user.
    bed.server.connections.values_mut().for_each(|connection| connection.commands = false);
    client.send(&Command::Status, &[]).unwrap();
    let asked = bed.server.take();
    assert_eq!((asked.len(), &asked[0].command), (1, &Command::Status));
    bed.server.answer(asked[0].from, &Reply::Done);
    assert_eq!(client.receive::<Reply>().unwrap().unwrap().0, Reply::Done);
    let (name, program) = (String::from("scratch"), None);
    for command in [
        Command::Restart { name: name.clone() },
        Command::Stop { name: name.clone(), force: true },
        Command::Upgrade { name: name.clone(), program },
        Command::Logs { name, lines: 1 },
        Command::Sleep { driven: false },
        Command::Wake,
        Command::Reload,
    ] {
        client.send(&command, &[]).unwrap();
        assert!(bed.server.take().is_empty(), "{command:?}");
        let answer = client.receive::<Reply>().unwrap().unwrap().0;
        assert!(matches!(answer, Reply::Refused(why) if why.contains("only root")));
    }
}
