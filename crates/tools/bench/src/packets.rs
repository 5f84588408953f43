//! `bench instructions` for network cards: how many instructions of the driver a packet costs that
//! is sent, and comes back and is received.
//!
//! As for disks, [`drive`] runs under callgrind over a model whose wire is a mirror, and calls back
//! where the model does its work. The model's doorbells are stores to memory meanwhile.

use std::mem;

use ring3_class::net::{Nic, Packet, Queue, QueueSettings};

use crate::Error;

/// Packets of a batch.
pub const BATCH: usize = 32;
/// Bytes of a packet, its check sequence included.
pub const BYTES: usize = 64;
/// Bytes of the check sequence, which the card makes.
const CHECK_SEQUENCE: usize = 4;

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// The 82574L's.
    E1000,
    /// virtio's, with split virtqueues.
    VirtioSplit,
    /// virtio's, with packed virtqueues.
    VirtioPacked,
}

impl Card {
    /// All.
    pub const ALL: [Self; 3] = [Self::E1000, Self::VirtioSplit, Self::VirtioPacked];
    /// What is counted: all that runs below the methods of the class's [`Queue`].
    pub const FUNCTIONS: [&str; 1] = ["*as ring3_class::net::Queue>::*"];
    /// The workload's name in reports.
    pub const WORKLOAD: &str = "packet-64-batch32";

    /// Its name in reports, among placements.
    pub fn placement(self) -> &'static str {
        match self {
            Self::E1000 => "process-e1000",
            Self::VirtioSplit => "process-virtio-split",
            Self::VirtioPacked => "process-virtio-packed",
        }
    }

    /// The one with this name.
    pub fn named(placement: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|card| card.placement() == placement)
    }

    /// The model, whose wire is a mirror.
    pub fn model(self) -> &'static str {
        match self {
            Self::E1000 => "sim:e1000,wire=mirror",
            Self::VirtioSplit => "sim:virtio-net,wire=mirror",
            Self::VirtioPacked => "sim:virtio-net,wire=mirror,packed=on",
        }
    }

    /// How many instructions of a packet that is sent and of one that is received the driver shall
    /// take at most, together.
    pub fn wanted(self) -> f64 {
        match self {
            Self::E1000 => 120.0,
            Self::VirtioSplit | Self::VirtioPacked => 100.0,
        }
    }
}

/// Puts `rounds` batches through a new queue of `nic`, out and back in. `work` lets the card do
/// what it was told to.
pub fn drive(nic: &dyn Nic, rounds: u64, work: &mut dyn FnMut()) -> Result<(), Error> {
    let failed = |source| Error::Device { name: nic.name(), source };
    let depth = 2 * BATCH as u16;
    let settings = QueueSettings { rx_depth: depth, tx_depth: depth, ..QueueSettings::default() };
    let mut queues = nic.open_queues(1, &settings).map_err(failed)?;
    let queue = &mut *queues[0];
    let start = nic.info().headroom.next_multiple_of(64);
    let buffer = || {
        Ok(Packet::new(nic.dma().arena().alloc((start + settings.rx_room) as usize, 64)?, start))
    };
    let buffers =
        |count| (0..count).map(|_| buffer()).collect::<Result<Vec<_>, _>>().map_err(failed);
    let mut received = buffers(usize::from(depth))?;
    if queue.rx_provide(&mut received).count != received.len() {
        return Err(missing(nic, "buffers to receive into were not taken"));
    }
    let mut out = buffers(BATCH)?;
    let frame = [&[2, 0, 0, 0, 0, 9][..], &nic.info().mac.0, &[0x88, 0xb5]].concat();
    for packet in &mut out {
        packet
            .fill(&[frame.clone(), vec![0; BYTES - CHECK_SEQUENCE - frame.len()]].concat())
            .map_err(failed)?;
    }
    received.truncate(BATCH);
    for _ in 0..rounds {
        let sent = queue.tx_provide(&mut out).count;
        work();
        round_trip(queue, &mut received, &mut out).map_err(failed)?;
        if sent != BATCH || out.iter().any(|packet| packet.buffer.is_none()) {
            return Err(missing(nic, "packets did not come back"));
        }
        for packet in &mut received {
            mem::take(&mut packet.meta);
        }
        if queue.rx_provide(&mut received).count != BATCH {
            return Err(missing(nic, "packets were not received"));
        }
    }
    Ok(())
}

/// Takes what has come, and the buffers of what was sent.
fn round_trip(
    queue: &mut dyn Queue,
    received: &mut [Packet],
    out: &mut [Packet],
) -> Result<(), ring3_device::Error> {
    let (mut came, mut back) = (0, 0);
    // The end of a ring's memory ends a batch.
    for _ in 0..2 {
        if came < BATCH {
            came += queue.rx_return(&mut received[came..])?;
        }
        if back < BATCH {
            back += queue.tx_return(&mut out[back..])?;
        }
    }
    Ok(())
}

fn missing(nic: &dyn Nic, what: &str) -> Error {
    Error::Invalid(format!("{}: {what}", nic.name()))
}
