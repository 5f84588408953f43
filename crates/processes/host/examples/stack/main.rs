//! A network card and a TCP/IP stack in one process: no kernel is on the way of a packet.
//!
//!     cargo run -p ring3-host --example stack -- vfio:0000:01:00.0 10.7.0.1 serve
//!     cargo run -p ring3-host --example stack -- vfio:0000:02:00.0 10.7.0.2 get 10.7.0.1
//!     cargo run -p ring3-host --example stack -- \
//!         sim:e1000,wire=cable/a 10.7.0.1 demo \
//!         sim:virtio-net,wire=cable/a,mac=52:54:00:00:00:07
//!
//! [`card`] makes a card of the class API a device of smoltcp's, which is all that joins the two;
//! [`stack`] is what any program does with smoltcp.

pub mod card;
pub mod stack;

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ring3_class::net::Nic;
use ring3_host::open::{Claim, Requirements};
use stack::Stack;

const USAGE: &str = "stack DEVICE ADDRESS serve | ping PEER | echo PEER | get PEER | demo DEVICE";

/// Bytes of DMA memory: buffers both ways, and rings.
const ARENA: usize = 8 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [device, address, "serve"] => {
            Stack::new(open(device)?, address.parse()?)?.serve(&AtomicBool::new(false))
        }
        [device, address, "demo", other] => demo(open(device)?, open(other)?, address.parse()?),
        [device, address, what, peer] => {
            ask(&mut Stack::new(open(device)?, address.parse()?)?, what, peer.parse()?)
        }
        _ => Err(USAGE.into()),
    }
}

/// Claims a card. It sleeps until its interrupt; given back when the last of it is dropped.
pub fn open(device: &str) -> Result<Arc<dyn Nic>, Box<dyn Error>> {
    let needs =
        Requirements { queues: 1, arena: ARENA, max_transfer: None, poll: Some(Duration::ZERO) };
    let card = Claim::new(device.parse()?).open(&needs)?.nics.into_iter().next();
    card.ok_or_else(|| format!("{device} is no network card that ring3 drives").into())
}

fn ask(stack: &mut Stack, what: &str, peer: Ipv4Addr) -> Result<(), Box<dyn Error>> {
    match what {
        "ping" => (1..=4).try_for_each(|number| {
            println!("{peer} has answered ping {number} in {:?}", stack.ping(peer, number)?);
            Ok(())
        }),
        "echo" => {
            let echoed = stack.echo(peer, b"hello")?;
            println!("{peer} has echoed {:?}", String::from_utf8_lossy(&echoed));
            Ok(())
        }
        "get" => {
            print!("{}", stack.get(peer, "/")?);
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

/// One card serves, the other one asks: two stacks at one cable.
pub fn demo(
    server: Arc<dyn Nic>,
    client: Arc<dyn Nic>,
    address: Ipv4Addr,
) -> Result<(), Box<dyn Error>> {
    let (mut server, stop) = (Stack::new(server, address)?, AtomicBool::new(false));
    let mut client = Stack::new(client, Ipv4Addr::from(u32::from(address) ^ 1 << 7))?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(&stop).map_err(|error| error.to_string()));
        let asked = ["ping", "echo", "get"]
            .into_iter()
            .try_for_each(|what| ask(&mut client, what, address));
        stop.store(true, Ordering::Relaxed);
        asked?;
        serving.join().map_err(|_| "the server has panicked")?.map_err(Into::into)
    })
}
