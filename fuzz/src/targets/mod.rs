//! The targets.

pub mod ahci;
pub mod broker;
pub mod e1000;
pub mod faulty;
pub mod ide;
pub mod manifests;
pub mod messages;
pub mod nvme;
pub mod partitions;
pub mod recording;
pub mod saved;
pub mod vduse;
pub mod vfio_user_client;
pub mod vfio_user_server;
pub mod virtio_blk;
pub mod virtio_net;

/// A target, as a replay knows it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, also of its corpus.
    pub name: &'static str,
    /// Runs one input. A panic is a find.
    pub run: fn(&[u8]),
    /// Mutated inputs of one replay: about one second of a processor in the tests' build.
    pub mutated: usize,
}

/// All targets.
pub const TARGETS: [Target; 15] = [
    Target { name: "ahci", run: ahci::run, mutated: 2000 },
    Target { name: "broker", run: broker::run, mutated: 1000 },
    Target { name: "e1000", run: e1000::run, mutated: 2000 },
    Target { name: "ide", run: ide::run, mutated: 1000 },
    Target { name: "manifests", run: manifests::run, mutated: 20_000 },
    Target { name: "messages", run: messages::run, mutated: 40_000 },
    Target { name: "nvme", run: nvme::run, mutated: 2000 },
    Target { name: "partitions", run: partitions::run, mutated: 20_000 },
    Target { name: "recording", run: recording::run, mutated: 20_000 },
    Target { name: "saved", run: saved::run, mutated: 2000 },
    Target { name: "vduse", run: vduse::run, mutated: 30_000 },
    Target { name: "vfio_user_client", run: vfio_user_client::run, mutated: 2000 },
    Target { name: "vfio_user_server", run: vfio_user_server::run, mutated: 4000 },
    Target { name: "virtio_blk", run: virtio_blk::run, mutated: 2000 },
    Target { name: "virtio_net", run: virtio_net::run, mutated: 4000 },
];

/// A target that fails on purpose. It runs by name alone.
const FAULTY: Target = Target { name: "faulty", run: faulty::run, mutated: 200 };

impl Target {
    /// The target `name`, the one that fails on purpose included.
    pub fn named(name: &str) -> Option<Self> {
        TARGETS.into_iter().chain([FAULTY]).find(|target| target.name == name)
    }
}
