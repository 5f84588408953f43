//! A disk of zeroes: reads give zeroes, writes go nowhere. As root, with the modules vduse,
//! virtio_vdpa and virtio_blk: `cargo run -p ring3-vduse --example zeroes`.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_vduse::{
    Begin, Chain, Control, Device, Memory, Queue, Request, Shape, features, status, vdpa,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

const NAME: &str = "zeroes";
/// virtio's number of disks, its configuration's bytes, and the type of a read. [virtio 5.2]
const DISK: u32 = 2;
const CONFIG: usize = 60;
const READ: u32 = 0;
const SECTORS: u64 = 1 << 21;

fn main() -> Result<(), Box<dyn Error>> {
    let control = Control::open()?;
    if Device::exists(NAME) {
        control.destroy(NAME)?;
    }
    let mut config = [0; CONFIG];
    config[..8].copy_from_slice(&SECTORS.to_le_bytes());
    control.create(&Shape {
        name: NAME,
        kind: DISK,
        vendor: 0,
        features: features::ALL,
        queues: 1,
        config: &config,
    })?;
    let device = Arc::new(Device::open(NAME, Duration::ZERO)?);
    device.set_up(0, 128)?;
    let kicks = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let serving = device.clone();
    thread::spawn(move || {
        let (mut queue, mut chain) = (None, Chain::with_capacity(1024));
        loop {
            let mut fds =
                [PollFd::new(&*serving, PollFlags::IN), PollFd::new(&kicks, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            if let Ok(Some(message)) = serving.message() {
                match message.request {
                    Request::Status(0) => queue = None,
                    Request::Status(now) if now & status::DRIVER_OK != 0 => {
                        queue = open(&serving, &kicks).ok()
                    }
                    _ => {}
                }
                let _ = serving.answer(&message, Ok(0));
            }
            let _ = rustix::io::read(&kicks, &mut [0; 8]);
            if let Some(queue) = &mut queue {
                serve(&serving, queue, &mut chain);
            }
        }
    });
    vdpa::attach(NAME)?;
    println!(
        "/dev/{} is there; Enter takes it away",
        vdpa::found_as(NAME, "block").unwrap_or_default()
    );
    std::io::stdin().read_line(&mut String::new())?;
    vdpa::detach(NAME)?;
    println!(
        "the device stays until it is closed, which is now, and destroyed: run this again and it \
        does that first"
    );
    Ok(())
}

fn open(device: &Arc<Device>, kicks: &impl std::os::fd::AsFd) -> Result<Queue, Box<dyn Error>> {
    let vring = device.vring(0)?;
    device.kicks(0, kicks.as_fd())?;
    Ok(Queue::open(Memory::new(device.clone()), &vring, device.features()?, None, Begin::Fresh)?)
}

/// Ends all that is there: zeroes for reads, and a status of zero, which says that it was done.
fn serve(device: &Device, queue: &mut Queue, chain: &mut Chain) {
    loop {
        while let Ok(true) = queue.take(chain) {
            let mut kind = [0; 4];
            chain.read(queue.memory(), 0, &mut kind);
            let zeroes = if u32::from_le_bytes(kind) == READ { chain.writable() } else { 1 };
            let from = chain.writable().saturating_sub(zeroes);
            chain.write(queue.memory(), from, &vec![0; zeroes as usize]);
            queue.put(chain.head(), zeroes);
        }
        if queue.publish() {
            device.interrupt(0);
        }
        if !queue.want_kicks() {
            return;
        }
    }
}
