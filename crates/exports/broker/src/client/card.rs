//! A network card whose driver is another process, as any other card.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ring3_class::dma::Dma;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::net::{Counters, Filter, Info, Link, Nic, Queue, QueueSettings};
use ring3_class::wait::{DEFAULT_POLL, Source, Waiter};
use ring3_class::{Deadline, Error};

use super::connection::Connection;
use super::port::RemotePort;
use super::{BASE, Remote, arena};
use crate::memory::{self, StatusPage};
use crate::protocol::{Answer, ClientRequest, OpenPort, Port};

/// One client's part of a card, with an address of its own: it is [`shared`](Info::shared).
pub struct RemoteCard {
    connection: Arc<Connection>,
    name: String,
    info: Info,
    dma: Dma,
    memory: u64,
    mapped: bool,
    news: Arc<LinkStatus>,
}

/// What the server shows of the link.
struct LinkStatus {
    board: StatusPage,
    irq: Arc<Irq>,
    /// How often the link had changed when it was last asked for.
    heard: AtomicU64,
    /// There is a watch.
    watched: AtomicBool,
}

impl RemoteCard {
    /// The card that is served at `path`, with `memory` bytes for packets, or as many as are
    /// granted.
    pub fn connect(path: &Path, memory: usize) -> Result<Self, Error> {
        match Remote::connect(path, memory)? {
            Remote::Card(card) => Ok(card),
            Remote::Disk(_) => Err(Error::Invalid(format!(
                "{}: a disk is served there, and no network card",
                path.display()
            ))),
        }
    }

    pub(super) fn new(
        connection: Connection,
        path: &Path,
        port: Port,
        fds: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let [file, board, woken] =
            <[_; 3]>::try_from(fds).map_err(|_| connection.protocol_error())?;
        let Port { card, info, memory, mapped, .. } = port;
        let len = usize::try_from(memory).map_err(|_| connection.protocol_error())?;
        if len < 4096
            || info.headroom > 4096
            || info.max_pieces == 0
            || info.mtu.0 > info.mtu.1
            || info.max_queues != 1
        {
            return Err(connection.protocol_error());
        }
        memory::check(&board, StatusPage::BYTES)?;
        let irq = Arc::new(Irq::new(woken, IrqKind::MsiX, 0, None));
        let news = LinkStatus {
            board: StatusPage::map(board.as_fd())?,
            irq,
            heard: AtomicU64::new(0),
            watched: AtomicBool::new(false),
        };
        let name = format!("remote:{} ({card})", path.display());
        Ok(Self {
            connection: Arc::new(connection),
            name,
            info,
            dma: arena(file, len)?,
            memory,
            mapped,
            news: Arc::new(news),
        })
    }

    /// Whether the card reads what is sent from the arena by itself; otherwise the server copies.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    fn check(&self) -> Result<(), Error> {
        if self.connection.is_lost() { Err(self.connection.disconnect_reason()) } else { Ok(()) }
    }
}

impl Nic for RemoteCard {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn link(&self) -> Result<Link, Error> {
        self.check()?;
        self.news.heard.store(self.news.board.changes(), Ordering::Release);
        Ok(self.news.board.link())
    }

    fn link_watch(&self) -> Result<Box<dyn Source + Send>, Error> {
        if self.news.watched.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("the link is watched already: drop the other watch".into()));
        }
        Ok(Box::new(Watch {
            waiter: Waiter::new(Some(self.news.irq.clone()), DEFAULT_POLL),
            news: self.news.clone(),
        }))
    }

    fn set_filter(&self, filter: &Filter) -> Result<(), Error> {
        self.info.check_filter(filter)?;
        match self.connection.ask(&ClientRequest::Filter { multicast: filter.multicast.clone() })? {
            (Answer::Filtered, _) => Ok(()),
            _ => Err(self.connection.protocol_error()),
        }
    }

    fn counters(&self) -> Result<Counters, Error> {
        self.check()?;
        Ok(self.news.board.counters())
    }

    fn open_queues(
        &self,
        count: u16,
        settings: &QueueSettings,
    ) -> Result<Vec<Box<dyn Queue>>, Error> {
        self.info.check_settings(count, settings)?;
        let QueueSettings { rx_depth, tx_depth, mtu, .. } = *settings;
        let (answer, fds) =
            self.connection.ask(&ClientRequest::OpenPort(OpenPort { rx_depth, tx_depth, mtu }))?;
        let Answer::PortOpened { rx_depth, tx_depth } = answer else {
            return Err(self.connection.protocol_error());
        };
        let fds = fds.try_into().map_err(|_| self.connection.protocol_error())?;
        let settings = QueueSettings { rx_depth, tx_depth, ..*settings };
        let reach = BASE..BASE + self.memory;
        Ok(vec![Box::new(RemotePort::new(
            self.connection.clone(),
            settings,
            fds,
            &self.info,
            reach,
        )?)])
    }
}

/// Pending when the link has changed since it was asked for.
struct Watch {
    news: Arc<LinkStatus>,
    waiter: Waiter,
}

impl LinkStatus {
    fn is_new(&self) -> bool {
        self.board.changes() != self.heard.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.news.watched.store(false, Ordering::Release);
    }
}

impl Source for Watch {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        self.news.is_new()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let news = &self.news;
        self.waiter.arm(|| news.is_new())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.waiter.tick(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        let news = &self.news;
        self.waiter.wait(deadline, || news.is_new())
    }
}
