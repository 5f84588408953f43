use rustix::fs::{MemfdFlags, memfd_create};

use std::collections::BTreeSet;

use super::registrar::{AT_ONCE, EACH, RegistrationRateLimit};
use super::*;

/// No disk has it.
const NOBODYS: u32 = u32::MAX;

fn file() -> OwnedFd {
    memfd_create("client", MemfdFlags::CLOEXEC).unwrap()
}

fn kept(number: u64) -> StoredRegion {
    StoredRegion { number, bytes: 4096, file: Arc::new(file()) }
}

fn table() -> Table {
    let table = Table::default();
    table.lock().regions.extend([((0, 3), kept(10)), ((1, 0), kept(11))]);
    table.lock().merges.insert(0, "0".into());
    table.lock().clients.insert(12, Client { keys: vec![(0, 3), (1, 0)], socket: file() });
    table
}

#[test]
fn a_driver_is_told_of_all_that_lies_in_its_disk_and_of_nothing_else() {
    let given = table().given(1).unwrap();
    let orders: Vec<_> =
        given.iter().map(|given| (given.place, given.order.clone(), given.fds.len())).collect();
    assert_eq!(orders, [(1, DriverCommand::Region(Region { disk: 1, index: 0, number: 0 }), 1)]);
}

#[test]
fn the_next_ring3d_goes_on_with_what_was_registered_and_by_whom() {
    let before = table();
    let mut fds: BTreeMap<_, _> = before.descriptors().into_iter().collect();
    assert_eq!(fds.keys().collect::<Vec<_>>(), ["lender.12", "lent.10", "lent.11"]);
    let after = Table::adopt(before.saved(), &mut fds).unwrap();
    assert_eq!(after.saved(), before.saved());
    assert!(fds.is_empty());
}

#[test]
fn without_the_memory_of_a_client_nobody_goes_on_and_without_its_socket_it_has_gone() {
    let before = table();
    let descriptors = || before.descriptors().into_iter().collect::<BTreeMap<_, _>>();
    let without = |name: &str| {
        let mut fds = descriptors();
        fds.remove(name);
        Table::adopt(before.saved(), &mut fds)
    };
    assert!(without("lent.10").is_err());
    assert!(without("lender.12").unwrap().lock().clients.is_empty());
}

#[test]
fn the_kernel_is_asked_for_nothing_while_no_driver_serves() {
    let (table, voice) = (Arc::new(table()), EventSender::silent());
    let theirs = table.clone();
    let thread =
        thread::spawn(move || theirs.while_served((&voice, NOBODYS), || Ok(Instant::now())));
    thread::sleep(LOOK * 3);
    let opened = Instant::now();
    table.open();
    assert!(thread.join().unwrap().unwrap() >= opened);
}

#[test]
fn a_driver_is_not_told_to_leave_while_the_kernel_waits_for_it() {
    let (table, voice) = (Arc::new(table()), EventSender::silent());
    table.open();
    let (began, begun) = std::sync::mpsc::channel();
    let theirs = table.clone();
    let work = move || {
        began.send(()).unwrap();
        thread::sleep(LOOK * 3);
        Ok(Instant::now())
    };
    let thread = thread::spawn(move || theirs.while_served((&voice, NOBODYS), work));
    begun.recv().unwrap();
    table.close(true);
    let closed = Instant::now();
    assert!(thread.join().unwrap().unwrap() <= closed);
}

#[test]
fn who_waits_for_a_driver_that_never_comes_hears_that_the_disk_is_taken_away() {
    let (table, voice) = (table(), EventSender::silent());
    table.lock().ended = true;
    assert_eq!(table.while_served((&voice, NOBODYS), || Ok(())).unwrap_err(), ENDED);
}

#[test]
fn a_client_that_registers_without_end_keeps_the_disk_waiting_twice_a_second_and_no_more_often() {
    let start = Instant::now();
    let (mut pace, mut now) = (RegistrationRateLimit::new(start), start);
    for _ in 0..AT_ONCE {
        assert_eq!(pace.next(now), now);
    }
    for _ in 0..10 {
        let due = pace.next(now);
        assert!(due >= now + EACH / 2 && due <= now + EACH, "{:?}", due - now);
        now = due;
    }
}

#[test]
fn numbers_are_never_given_twice_by_this_ring3d_or_the_next() {
    let before = table();
    let numbers: BTreeSet<_> = (0..1000).map(|_| before.number()).collect();
    assert_eq!(numbers.len(), 1000);
    let after = Table::adopt(Saved::default(), &mut BTreeMap::new()).unwrap();
    // Whatever the clock on the wall says meanwhile.
    assert!(after.number() > *numbers.last().unwrap() && after.number() < since_boot() + 1_000_000);
}

#[test]
fn a_driver_that_serves_and_does_not_answer_is_not_waited_for_for_ever() {
    let table = Arc::new(table());
    let tell = |table: &Table| {
        table.tell((&EventSender::silent(), AGAIN / 2), DriverCommand::Forget, (0, 3), None)
    };
    table.open();
    assert!(tell(&table).unwrap_err().contains("not answered"));
    // For one that is to come it is waited until the disk is taken away.
    table.close(false);
    let theirs = table.clone();
    let waits = thread::spawn(move || tell(&theirs));
    thread::sleep(AGAIN * 3);
    assert!(!waits.is_finished());
    table.lock().ended = true;
    table.heard.notify_all();
    assert_eq!(waits.join().unwrap().unwrap_err(), ENDED);
}
