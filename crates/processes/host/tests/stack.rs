//! The example `stack`: two stacks in one process, on simulated cards at one cable.

#[path = "../examples/stack/main.rs"]
#[allow(dead_code, reason = "its command line is not what is tested")]
mod example;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use example::open;
use example::stack::Stack;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

#[test]
fn one_stack_pings_another_has_a_datagram_echoed_and_gets_a_page_over_two_kinds_of_cards() {
    for (server, client) in [("e1000", "virtio-net"), ("virtio-net", "e1000")] {
        let card = |model: &str, last: u8| {
            open(&format!("sim:{model},wire=cable/stack,mac=52:54:00:00:00:0{last}")).unwrap()
        };
        let mut server = Stack::new(card(server, 1), SERVER).unwrap();
        let mut client = Stack::new(card(client, 2), CLIENT).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.serve(&stop).map_err(|error| error.to_string()));
            let pings: Vec<_> = (1..=4).map(|number| client.ping(SERVER, number).is_ok()).collect();
            let bytes: Vec<u8> = (0..1400).map(|at| at as u8).collect();
            let echoed = client.echo(SERVER, &bytes).map_err(|error| error.to_string());
            let pages: Vec<_> = (0..2)
                .map(|_| client.get(SERVER, "/").map_err(|error| error.to_string()))
                .collect();
            stop.store(true, Ordering::Relaxed);
            assert_eq!((serving.join().unwrap(), pings), (Ok(()), vec![true; 4]));
            assert_eq!(echoed, Ok(bytes));
            for page in pages {
                let page = page.unwrap();
                assert!(
                    page.starts_with("HTTP/1.0 200 OK") && page.ends_with("out of the kernel\n"),
                    "{page}"
                );
            }
        });
    }
}

#[test]
fn what_is_no_card_is_refused() {
    assert!(open("sim:nvme").err().unwrap().to_string().contains("no network card"));
}
