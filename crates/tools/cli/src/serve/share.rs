//! What clients share of a device whose driver is a confined process: the sockets are this one's,
//! and who comes to them is the driver's.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ring3_broker::server::{Access, Listener, card};
use ring3_class::net::Mac;
use ring3_control::drive::{self, DriverCommand, Offered};
use ring3_control::status::DiskStatus;
use ring3_host::serve::{AccessPaths, ServedInfo, Shares};
use ring3_supervisor::export::ublk::Ublk;
use ring3_supervisor::export::{
    CancelFlags, EventSender, Export, Refusal, ServeRequest, StatusSource,
};
use serde_json::Value;

/// The sockets of one disk or card, which go with this value.
pub struct Share {
    wanted: drive::Share,
    /// Clients of each socket, and bytes that all of them together may have.
    places: Vec<usize>,
    memory: u64,
    /// Microseconds for which the server polls.
    pub poll_us: u64,
    listeners: Vec<Listener>,
    board: Board,
}

/// What there is, once the driver shares it. Its copies are the same one.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Option<ServedInfo>>>);

impl Board {
    /// What users are told.
    pub fn shared(&self) -> Option<ServedInfo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut ServedInfo)) {
        if let Some(shared) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            change(shared);
        }
    }

    fn show(&self, name: &str, facts: Value, sockets: Vec<String>) {
        let shared =
            ServedInfo { name: name.into(), facts, ways: AccessPaths { sockets, mapped: false } };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
    }
}

impl Share {
    /// Listens at the sockets of `shares`, which are `texts` as users write them.
    pub fn bind(
        shares: &Shares,
        texts: &[String],
        (poll_us, copy): (u64, bool),
    ) -> Result<Self, ring3_class::Error> {
        let disk = |access: &Access| {
            (access.clients.into(), access.memory, Listener::bind(&access.path, access.mode))
        };
        let port = |access: &card::Access| {
            (access.places().into(), access.memory, Listener::bind(&access.path, access.mode))
        };
        let (all, depth, card): (Vec<(usize, u64, _)>, u16, bool) = match shares {
            Shares::Disk { accesses, depth } => {
                (accesses.iter().map(disk).collect(), *depth, false)
            }
            Shares::Card { accesses } => (accesses.iter().map(port).collect(), 0, true),
        };
        let wanted = drive::Share { card, sockets: texts.to_vec(), depth, copy };
        let mut share = Self {
            wanted,
            places: Vec::new(),
            memory: 0,
            poll_us,
            listeners: Vec::new(),
            board: Board::default(),
        };
        for (places, memory, listener) in all {
            share.places.push(places);
            share.memory += places as u64 * memory;
            share.listeners.push(listener?);
        }
        Ok(share)
    }

    /// The paths of its sockets.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.listeners.iter().map(Listener::path)
    }

    /// Whether it is a network card that is shared.
    pub fn is_card(&self) -> bool {
        self.wanted.card
    }

    /// Bytes that all clients together may have.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Where it says what there is.
    pub fn board(&self) -> Board {
        self.board.clone()
    }
}

/// Nobody waits for it as for the kernel's.
struct Served;

impl StatusSource for Served {
    fn in_flight(&self) -> u64 {
        0
    }

    fn disks(&self) -> Vec<DiskStatus> {
        Vec::new()
    }
}

impl Export for Share {
    fn create(&mut self, offered: &Offered, _: &CancelFlags) -> Result<(), Refusal> {
        let sockets =
            self.listeners.iter().map(|listener| listener.path().display().to_string()).collect();
        match (&offered.disks[..], &offered.nics[..]) {
            ([disk], _) if !self.wanted.card => {
                let bytes = disk.blocks * u64::from(disk.block_size);
                self.board.show(
                    &disk.name,
                    ServedInfo::disk(&disk.name, bytes, disk.block_size),
                    sockets,
                );
            }
            (_, [card]) if self.wanted.card => {
                self.board.show(
                    &card.name,
                    ServedInfo::card(&card.name, &card.model, Mac(card.mac), &[]),
                    sockets,
                );
            }
            // The driver says by which option one of them is chosen.
            _ => {}
        }
        Ok(())
    }

    fn recover(&mut self, _: &CancelFlags) -> Result<(), String> {
        Ok(())
    }

    fn serve(&mut self, _: &Offered) -> Result<Vec<ServeRequest>, String> {
        let sockets: Result<Vec<OwnedFd>, _> =
            self.listeners.iter().map(Listener::try_clone).collect();
        let fds = sockets.map_err(|error| error.to_string())?;
        Ok(vec![ServeRequest { place: 0, order: DriverCommand::Share(self.wanted.clone()), fds }])
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        Ok(Arc::new(Served))
    }

    fn handle_shared(&mut self, mapped: bool, addresses: Vec<[u8; 6]>) {
        let mut addresses = addresses.into_iter().map(Mac);
        let of_sockets: Vec<Vec<Mac>> =
            self.places.iter().map(|&places| addresses.by_ref().take(places).collect()).collect();
        self.board.change(|shared| {
            shared.ways.mapped = mapped;
            if let Some(known) = shared.facts.get_mut("addresses") {
                *known = serde_json::json!(of_sockets);
            }
        });
    }

    fn stop(&mut self, _: bool) -> Result<(), Refusal> {
        // Who comes from now on finds no socket.
        self.listeners.clear();
        Ok(())
    }
}

/// The one disk of a device as the kernel's, and shared with clients beside: users of the block
/// device wait while a driver is followed by the next one, and clients connect again.
pub struct Beside {
    disk: Ublk,
    share: Share,
}

impl Beside {
    /// `share` of `disk`.
    pub fn new(disk: Ublk, share: Share) -> Self {
        Self { disk, share }
    }
}

impl Export for Beside {
    fn speak(&mut self, voice: EventSender) {
        self.disk.speak(voice);
    }

    fn create(&mut self, offered: &Offered, vain: &CancelFlags) -> Result<(), Refusal> {
        self.share.create(offered, vain)?;
        self.disk.create(offered, vain)
    }

    fn recover(&mut self, vain: &CancelFlags) -> Result<(), String> {
        self.disk.recover(vain)
    }

    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String> {
        // The driver's answer to the disk is the one that is waited for.
        let mut requests = self.share.serve(offered)?;
        requests.extend(self.disk.serve(offered)?);
        Ok(requests)
    }

    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String> {
        self.disk.start()
    }

    fn handle_shared(&mut self, mapped: bool, addresses: Vec<[u8; 6]>) {
        self.share.handle_shared(mapped, addresses);
    }

    fn handle_registration(&mut self, number: u64, refused: Option<String>) {
        self.disk.handle_registration(number, refused);
    }

    fn hold_clients(&mut self) {
        self.disk.hold_clients();
    }

    fn stop(&mut self, force: bool) -> Result<(), Refusal> {
        self.disk.stop(force)?;
        self.share.stop(force)
    }
}
