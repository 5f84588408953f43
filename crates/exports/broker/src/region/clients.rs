//! Clients that register memory with an export: the socket, and the requests of clients.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ring3_lease::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::protocol::{Answer, ClientRequest, VERSION};
use crate::server::{Listener, PAUSE};

/// Clients at the same time.
const MOST: usize = 64;

/// How long a client may take to take an answer, which nobody waits for: its socket has room for
/// many.
const PATIENCE: Duration = Duration::from_millis(5);

/// Between two looks whether clients may be accepted again.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What is done with clients' memory.
pub trait Register {
    /// Memory that is shared.
    type Shared;
    /// The block devices that it is shared with.
    fn names(&self) -> Vec<String>;
    /// Lets requests lie in the memory behind `fd`, or says why not; then nothing has changed.
    fn register(&mut self, fd: &OwnedFd, bytes: u64) -> Result<Self::Shared, String>;
    /// `client` has heard that its memory is shared: if this process dies, the next one hears it by
    /// that socket.
    fn keep(&mut self, shared: &Self::Shared, client: BorrowedFd<'_>);
    /// Takes it back. When this returns, no device reaches it, unless the log says otherwise.
    fn revoke(&mut self, shared: Self::Shared);
}

/// Clients of an export, each with one region at most.
pub struct Clients<R: Register> {
    listener: Listener,
    /// Nobody is accepted before, as that has failed.
    deaf_until: Option<Instant>,
    registrar: R,
    clients: Vec<Client<R::Shared>>,
}

struct Client<S> {
    channel: Channel,
    /// For the log.
    who: String,
    memory: Option<S>,
}

/// What woke the thread.
enum Woken {
    Stop,
    Listener,
    Client(usize),
}

impl<R: Register> Clients<R> {
    /// Who comes to `listener`.
    pub fn new(listener: Listener, registrar: R) -> Self {
        Self { listener, registrar, clients: Vec::new(), deaf_until: None }
    }

    /// Hears who has shared memory with a server that has died, by the same socket. It has not
    /// noticed.
    pub fn adopt(&mut self, socket: OwnedFd, memory: R::Shared) -> io::Result<()> {
        let channel = Channel::of_stranger(socket, PATIENCE, self.listener.closer())?;
        self.clients.push(Client {
            channel,
            who: "a client of the server before".into(),
            memory: Some(memory),
        });
        Ok(())
    }

    /// Takes back what a server that has died shared with nobody who knows of it.
    pub fn revoke(&mut self, memory: R::Shared) {
        self.registrar.revoke(memory);
    }

    /// Hears clients until `stop` is readable; then gives back what is left, with what is shared
    /// still.
    pub fn serve(mut self, stop: BorrowedFd<'_>) -> (R, Vec<R::Shared>) {
        loop {
            match self.wait(stop) {
                Woken::Stop => break,
                Woken::Listener => self.accept(),
                Woken::Client(place) => self.handle_message(place),
            }
        }
        let part = |client: Client<R::Shared>| {
            let _ = client
                .channel
                .send(&Answer::Ended { reason: "the export was stopped".into() }, &[]);
            client.memory
        };
        (self.registrar, self.clients.into_iter().filter_map(part).collect())
    }

    fn wait(&self, stop: BorrowedFd<'_>) -> Woken {
        loop {
            // Each who comes may have sent what is not taken, and what of others was not is still
            // being closed.
            let full = self.listener.closer().is_full()
                || self.deaf_until.is_some_and(|until| Instant::now() < until);
            let wanted = if full { PollFlags::empty() } else { PollFlags::IN };
            let mut fds =
                vec![PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.listener, wanted)];
            fds.extend(
                self.clients.iter().map(|client| PollFd::new(&client.channel, PollFlags::IN)),
            );
            // A signal is not for this thread.
            let _ = poll(&mut fds, full.then_some(&LOOK));
            match fds.iter().position(|fd| !fd.revents().is_empty()) {
                None => {}
                Some(0) => return Woken::Stop,
                Some(1) => return Woken::Listener,
                Some(place) => return Woken::Client(place - 2),
            }
        }
    }

    fn accept(&mut self) {
        let (socket, who) = match self.listener.accept() {
            Ok(Some(client)) => client,
            Ok(None) => return,
            Err(error) => {
                // Who waits is still there: without a pause, this thread would do nothing else.
                self.deaf_until = Some(Instant::now() + PAUSE);
                tracing::warn!("nobody is accepted for {PAUSE:?}: {error}");
                return;
            }
        };
        let channel = match Channel::of_stranger(socket, PATIENCE, self.listener.closer()) {
            Ok(channel) => channel,
            Err(error) => {
                tracing::warn!(%error, "{who} cannot be heard");
                return;
            }
        };
        if self.clients.len() >= MOST {
            let reason = format!("{MOST} clients share memory already: let one go first");
            let _ = channel.send(&Answer::Refused { reason }, &[]);
            return;
        }
        self.clients.push(Client { channel, who, memory: None });
    }

    /// Does what a client asks. One that says nonsense, does not take its answer or has gone is
    /// parted with.
    fn handle_message(&mut self, place: usize) {
        let answer = match self.clients[place].channel.receive_untrusted::<ClientRequest>() {
            Ok(Some((ask, fd))) => self.answer(place, ask, fd),
            Ok(None) => None,
            Err(error) => {
                let Client { channel, who, .. } = &self.clients[place];
                tracing::warn!("{who} is cut off: no message: {error}");
                let _ =
                    channel.send(&Answer::Ended { reason: format!("no message: {error}") }, &[]);
                None
            }
        };
        let is_shared = matches!(answer, Some(Answer::Shared { .. }));
        let told =
            answer.is_some_and(|answer| self.clients[place].channel.send(&answer, &[]).is_ok());
        if let Some(Client { channel, memory: Some(memory), .. }) =
            self.clients.get(place).filter(|_| told && is_shared)
        {
            self.registrar.keep(memory, channel.as_fd());
        }
        if !told {
            // Whoever has its socket beside parts with it without a wait afterwards.
            let Client { channel, memory, .. } = self.clients.swap_remove(place);
            drop(channel);
            memory.into_iter().for_each(|memory| self.registrar.revoke(memory));
        }
    }

    /// `None` for nonsense.
    fn answer(&mut self, place: usize, ask: ClientRequest, fd: Option<OwnedFd>) -> Option<Answer> {
        let refused = |reason: String| Some(Answer::Refused { reason });
        let client = &mut self.clients[place];
        match (ask, fd) {
            (ClientRequest::Offer { version, .. }, _) if version != VERSION => refused(format!(
                "it speaks version {version}, and this export {VERSION}: both must \
                 be of one release of ring3"
            )),
            (ClientRequest::Offer { .. }, Some(_)) if client.memory.is_some() => refused(
                "it shares a region already, and a connection has one: revoke it, or \
                 connect once more"
                    .into(),
            ),
            (ClientRequest::Offer { bytes, .. }, Some(fd)) => {
                match self.registrar.register(&fd, bytes) {
                    Ok(memory) => {
                        client.memory = Some(memory);
                        Some(Answer::Shared { disks: self.registrar.names() })
                    }
                    Err(reason) => refused(reason),
                }
            }
            (ClientRequest::Revoke, None) => match client.memory.take() {
                Some(memory) => {
                    self.registrar.revoke(memory);
                    Some(Answer::Revoked)
                }
                None => refused("there is nothing to revoke".into()),
            },
            _ => {
                tracing::warn!(
                    "{} is cut off: an offer comes with one descriptor, and nothing else with any",
                    client.who
                );
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::region::{Loan, SharedMemory, check};
    use ring3_lease::MOST_CLOSING;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send,
        socket_with,
    };

    const LONG: Duration = Duration::from_secs(20);
    const LINGER: Duration = Duration::from_secs(20);

    /// A TCP socket over loopback whose close waits, and who does not read it.
    fn lingering() -> (OwnedFd, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        set_socket_linger(&stream, Some(LINGER)).unwrap();
        (stream.into(), listener)
    }

    /// Checks as the real one does, and says what it has done.
    struct Recorder(Sender<&'static str>, Kept);

    /// Sockets of clients that a next server would have.
    type Kept = Arc<Mutex<Vec<OwnedFd>>>;

    impl Register for Recorder {
        type Shared = u64;
        fn names(&self) -> Vec<String> {
            vec!["/dev/ublkb7".into()]
        }
        fn register(&mut self, fd: &OwnedFd, bytes: u64) -> Result<u64, String> {
            check(fd, bytes).map_err(|error| error.to_string())?;
            let _ = self.0.send("shared");
            Ok(bytes)
        }
        fn keep(&mut self, _: &u64, client: BorrowedFd<'_>) {
            self.1.lock().unwrap().push(client.try_clone_to_owned().unwrap());
        }
        fn revoke(&mut self, _: u64) {
            let _ = self.0.send("revoked");
        }
    }

    /// A thread that handles clients, and what it has done. It ends with this value.
    struct Served {
        _folder: tempfile::TempDir,
        path: PathBuf,
        done: Receiver<&'static str>,
        kept: Kept,
        stop: OwnedFd,
        thread: Option<thread::JoinHandle<usize>>,
    }

    fn served() -> Served {
        served_with(&[], |_| {})
    }

    /// The same, after a server that has died and left the sockets of `clients`, and after what
    /// comes to its own socket `before` it hears anybody.
    fn served_with(clients: &[OwnedFd], before: impl FnOnce(&Path)) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("share");
        let ((tell, done), kept) = (channel(), Kept::default());
        let left = clients.iter().map(|socket| socket.try_clone().unwrap());
        let mut clients =
            Clients::new(Listener::bind(&path, 0o600).unwrap(), Recorder(tell, kept.clone()));
        left.for_each(|socket| clients.adopt(socket, 8192).unwrap());
        before(&path);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let heard = stop.try_clone().unwrap();
        let thread = Some(thread::spawn(move || clients.serve(heard.as_fd()).1.len()));
        Served { _folder: folder, path, done, kept, stop, thread }
    }

    impl Served {
        fn did(&self) -> &'static str {
            self.done.recv_timeout(LONG).expect("something is done")
        }

        /// Ends it, and says how many regions were shared still.
        fn end(mut self) -> usize {
            rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
            self.thread.take().unwrap().join().unwrap()
        }
    }

    fn lent(served: &Served) -> (SharedMemory, Loan) {
        let memory = SharedMemory::new(8192).unwrap();
        let loan = memory.register(&served.path).unwrap();
        (memory, loan)
    }

    fn raw(path: &Path) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    fn channel_to(path: &Path) -> Channel {
        Channel::new(raw(path), LONG, true).unwrap()
    }

    fn answer(channel: &Channel) -> Option<Answer> {
        channel.receive().unwrap().map(|(answer, _)| answer)
    }

    #[test]
    fn memory_is_shared_until_its_client_revokes_it_and_another_region_may_follow() {
        let served = served();
        let memory = SharedMemory::new(8192).unwrap();
        let loan = memory.register(&served.path).unwrap();
        assert_eq!((served.did(), loan.disks()), ("shared", &["/dev/ublkb7".to_owned()][..]));
        loan.revoke().unwrap();
        assert_eq!(served.did(), "revoked");
        let channel = channel_to(&served.path);
        channel.send(&ClientRequest::Revoke, &[]).unwrap();
        assert!(matches!(
            answer(&channel),
            Some(Answer::Refused { reason }) if reason.contains("nothing to revoke")
        ));
        let offer = ClientRequest::Offer { version: VERSION, bytes: memory.len() as u64 };
        channel.send(&offer, &[memory.as_fd()]).unwrap();
        assert!(matches!(answer(&channel), Some(Answer::Shared { .. })));
        assert_eq!((served.did(), served.end()), ("shared", 1));
    }

    #[test]
    fn memory_of_a_client_that_has_gone_is_taken_back() {
        let served = served();
        drop(lent(&served));
        assert_eq!((served.did(), served.did(), served.end()), ("shared", "revoked", 0));
    }

    #[test]
    fn a_client_hears_that_the_export_has_ended() {
        let served = served();
        let (_memory, loan) = lent(&served);
        assert!(!loan.is_lost());
        assert_eq!(served.end(), 1);
        assert!(loan.is_lost());
        assert!(loan.revoke().unwrap_err().to_string().contains("was stopped"));
    }

    #[test]
    fn a_second_region_of_a_client_and_another_version_are_refused_and_the_first_stays() {
        let served = served();
        let ((memory, _loan), channel) = (lent(&served), channel_to(&served.path));
        for version in [VERSION, VERSION + 1] {
            channel
                .send(
                    &ClientRequest::Offer { version, bytes: memory.len() as u64 },
                    &[memory.as_fd()],
                )
                .unwrap();
            assert_eq!(
                matches!(answer(&channel), Some(Answer::Refused { .. })),
                version != VERSION
            );
        }
        channel
            .send(
                &ClientRequest::Offer { version: VERSION, bytes: memory.len() as u64 },
                &[memory.as_fd()],
            )
            .unwrap();
        let Some(Answer::Refused { reason }) = answer(&channel) else { panic!("a second region") };
        assert!(reason.contains("connection has one"), "{reason}");
        assert_eq!(served.end(), 2);
    }

    #[test]
    fn memory_that_is_not_what_it_should_be_is_refused_and_the_client_may_try_again() {
        let served = served();
        let file = memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        // Sealed as it must be but for what it could be sealed against later.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let channel = channel_to(&served.path);
        for _ in 0..2 {
            channel
                .send(&ClientRequest::Offer { version: VERSION, bytes: 4096 }, &[file.as_fd()])
                .unwrap();
            let Some(Answer::Refused { reason }) = answer(&channel) else {
                panic!("memory that is not sealed")
            };
            assert!(reason.contains("memory file"), "{reason}");
        }
        assert_eq!(served.end(), 0);
    }

    /// Sends `asks`, the last with a lingering socket `count` times beside it, which only the other
    /// end has when this returns.
    fn lingers(
        path: &Path,
        (asks, count): (&[ClientRequest], usize),
        held: &mut Vec<TcpListener>,
    ) -> Channel {
        let (channel, (fd, unread), (last, others)) =
            (channel_to(path), lingering(), asks.split_last().unwrap());
        others.iter().for_each(|ask| channel.send(ask, &[]).unwrap());
        channel.send(last, &vec![fd.as_fd(); count]).unwrap();
        held.push(unread);
        channel
    }

    #[test]
    fn a_socket_that_is_slow_to_close_stalls_nobody_but_its_client() {
        let (mut held, mut clients) = (Vec::new(), Vec::new());
        let offer = || ClientRequest::Offer { version: VERSION, bytes: 4096 };
        // Before anybody hears them: the close of the last who has a socket is the one that waits,
        // and that must not be this thread's.
        let served = served_with(&[], |path| {
            clients.extend([1, 2].map(|count| lingers(path, (&[offer()], count), &mut held)));
            // Behind a message that ends the client.
            lingers(
                path,
                (&[ClientRequest::Open { depth: 1 }, ClientRequest::Revoke], 1),
                &mut held,
            );
        });
        let since = Instant::now();
        for channel in &clients {
            assert!(matches!(
                answer(channel),
                Some(Answer::Ended { reason }) if reason.contains("descriptor")
            ));
        }
        drop(lent(&served).1);
        assert_eq!((served.did(), served.did()), ("shared", "revoked"));
        assert_eq!(served.end(), 0);
        assert!(since.elapsed() < LINGER, "{:?}", since.elapsed());
    }

    #[test]
    fn clients_that_nobody_has_accepted_when_the_server_ends_are_waited_for_by_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let (path, mut held) = (folder.path().join("share"), Vec::new());
        let listener = Listener::bind(&path, 0o600).unwrap();
        lingers(&path, (&[ClientRequest::Revoke], 1), &mut held);
        let since = Instant::now();
        drop(listener);
        assert!(since.elapsed() < LINGER, "{:?}", since.elapsed());
    }

    #[test]
    fn nobody_is_accepted_while_too_much_of_others_is_being_closed() {
        let (mut first, mut held) = (Vec::new(), Vec::new());
        let offer = ClientRequest::Offer { version: VERSION, bytes: 4096 };
        let served = served_with(&[], |path| {
            lingers(path, (std::slice::from_ref(&offer), 1), &mut first);
        });
        // Behind the first, whatever they are.
        for _ in 1..2 * MOST_CLOSING {
            let (fd, _) = std::io::pipe().unwrap();
            let channel = channel_to(&served.path);
            channel.send(&offer, &[fd.as_fd()]).unwrap();
            held.push(channel);
        }
        // Nobody is there any more for whom a close would wait.
        let since = Instant::now();
        drop((first, held));
        drop(lent(&served));
        assert_eq!((served.did(), served.did()), ("shared", "revoked"));
        assert!(since.elapsed() < LINGER, "{:?}", since.elapsed());
    }

    #[test]
    fn nonsense_ends_its_client_and_nobody_else() {
        let served = served();
        let (memory, loan) = lent(&served);
        let fd = memory.as_fd();
        for (ask, fds) in [
            (ClientRequest::Offer { version: VERSION, bytes: 4096 }, vec![]),
            (ClientRequest::Offer { version: VERSION, bytes: 4096 }, vec![fd, fd]),
            (ClientRequest::Revoke, vec![fd]),
            (ClientRequest::Open { depth: 1 }, vec![]),
        ] {
            let channel = channel_to(&served.path);
            channel.send(&ask, &fds).unwrap();
            assert!(matches!(answer(&channel), None | Some(Answer::Ended { .. })), "{ask:?}");
        }
        for bytes in [&b"{"[..], b"{\"offer\":{}}", &[0xff; 300], b"[]"] {
            let socket = raw(&served.path);
            send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
            let reason = answer(&Channel::new(socket, LONG, true).unwrap());
            assert!(matches!(reason, None | Some(Answer::Ended { .. })), "{reason:?}");
        }
        assert!(!loan.is_lost());
        assert_eq!(served.end(), 1);
    }

    #[test]
    fn a_client_goes_on_with_the_next_server_by_the_socket_that_was_kept_once_it_was_answered() {
        let before = served();
        let memory = SharedMemory::new(8192).unwrap();
        let (loan, idle) = (memory.register(&before.path).unwrap(), channel_to(&before.path));
        idle.send(&ClientRequest::Revoke, &[]).unwrap();
        assert!(matches!(answer(&idle), Some(Answer::Refused { .. })));
        let kept = std::mem::take(&mut *before.kept.lock().unwrap());
        assert_eq!(kept.len(), 1);
        assert!(!loan.is_lost());
        let by_it = Channel::new(kept[0].try_clone().unwrap(), LONG, true).unwrap();
        by_it.send(&Answer::Ended { reason: "by the socket that is kept".into() }, &[]).unwrap();
        assert!(loan.revoke().unwrap_err().to_string().contains("that is kept"));
        // The server heard that, too.
        assert_eq!((before.did(), before.did(), before.end()), ("shared", "revoked", 0));
        let (ours, theirs) = Channel::pair().unwrap();
        let next = served_with(&[theirs], |_| {});
        let client = Channel::new(ours, LONG, true).unwrap();
        client.send(&ClientRequest::Revoke, &[]).unwrap();
        assert_eq!((answer(&client), next.did()), (Some(Answer::Revoked), "revoked"));
    }

    #[test]
    fn a_client_that_has_gone_while_nobody_served_is_parted_with_by_the_next_server() {
        let (ours, theirs) = Channel::pair().unwrap();
        drop(ours);
        let next = served_with(&[theirs], |_| {});
        assert_eq!((next.did(), next.end()), ("revoked", 0));
    }

    #[test]
    fn more_clients_than_there_are_places_are_told_so() {
        let served = served();
        let clients: Vec<_> = (0..MOST).map(|_| channel_to(&served.path)).collect();
        // Each is heard, so that it has its place.
        for client in &clients {
            client.send(&ClientRequest::Revoke, &[]).unwrap();
            assert!(matches!(answer(client), Some(Answer::Refused { .. })));
        }
        let refused = SharedMemory::new(8192)
            .unwrap()
            .register(&served.path)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(refused.starts_with("busy: 64 clients share memory already"), "{refused}");
        drop(clients);
        assert_eq!(served.end(), 0);
    }
}
