//! One fault.

use std::fmt;
use std::str::FromStr;

use ring3_bench::load::stamp::mix;
use serde::{Deserialize, Serialize};

/// What is done to a driver or its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// SIGKILL at some request, or while it starts.
    Kill,
    /// SIGSTOP: it hangs.
    Stop,
    /// Words of its memory change: heap, stack, data, and what it shares with the device.
    Memory,
    /// Bytes of its code change.
    Code,
    /// Registers read wrong: flipped and stuck bits, all ones.
    Registers,
    /// Words of memory change when the device has written there: completions, what the device says
    /// of itself, data.
    Dma,
    /// The device lies in memory or does not do what it should: completions, answers, interrupts.
    Device,
    /// It gets no more memory.
    NoMemory,
    /// It gets no more descriptors.
    NoDescriptors,
    /// It sends its supervisor what is no message, or messages that lie.
    Protocol,
}

impl Kind {
    /// All, each with how many of a hundred faults it has.
    pub const ALL: [(Self, u64); 10] = [
        (Self::Kill, 30),
        (Self::Stop, 4),
        (Self::Memory, 18),
        (Self::Code, 14),
        (Self::Registers, 10),
        (Self::Dma, 6),
        (Self::Device, 8),
        (Self::NoMemory, 3),
        (Self::NoDescriptors, 3),
        (Self::Protocol, 4),
    ];

    /// Whether driver and device do nothing wrong as long as the driver lives, so that nothing may
    /// be lost.
    pub fn is_promised(self) -> bool {
        !matches!(self, Self::Memory | Self::Code | Self::Registers | Self::Dma | Self::Device)
    }

    /// Whether somebody beside the driver can do it to one that is as it always is, on a device
    /// that is no model of ours.
    pub fn is_outer(self) -> bool {
        !matches!(self, Self::Registers | Self::Dma | Self::Device)
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Memory => "memory",
            Self::Code => "code",
            Self::Registers => "registers",
            Self::Dma => "dma",
            Self::Device => "device",
            Self::NoMemory => "no-memory",
            Self::NoDescriptors => "no-descriptors",
            Self::Protocol => "protocol",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|(kind, _)| kind.name()).join(", ");
        Self::ALL
            .iter()
            .map(|(kind, _)| *kind)
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("one of {}", names()))
    }
}

/// Whose driver it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// An NVMe controller.
    Nvme,
    /// An AHCI controller.
    Ahci,
    /// An IDE controller.
    Ide,
    /// A virtio disk.
    Virtio,
}

impl Model {
    /// All.
    pub const ALL: [Self; 4] = [Self::Nvme, Self::Ahci, Self::Ide, Self::Virtio];
}

/// One fault; the same for the same seed, number and choice of kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The campaign's.
    pub seed: u64,
    /// Its number in the campaign.
    pub index: u64,
    /// What.
    pub kind: Kind,
    /// Whose.
    pub model: Model,
    /// Before which request of its load; `None` for a fault while it starts.
    pub at: Option<u32>,
    /// Chooses the rest.
    pub random: u64,
}

/// The `number`th random word that follows from `seed`.
pub fn random(seed: u64, number: u64) -> u64 {
    mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95)))
}

/// A kind that follows from `word`, among those that `fits` takes.
fn drawn(word: u64, fits: impl Fn(Kind) -> bool) -> Option<Kind> {
    let kinds = || Kind::ALL.into_iter().filter(|(kind, _)| fits(*kind));
    let mut share = word.checked_rem(kinds().map(|(_, weight)| weight).sum())?;
    let mut kinds = kinds();
    let drawn = kinds.find(|(_, weight)| {
        let here = share < *weight;
        share = share.saturating_sub(*weight);
        here
    });
    drawn.map(|(kind, _)| kind)
}

/// Requests before a fault, at most.
const REQUESTS: u64 = 64;

impl Spec {
    /// Fault number `index` of the campaign with `seed`, of `only` that kind if one is named.
    pub fn of(seed: u64, index: u64, only: Option<Kind>) -> Self {
        let word = |number| random(random(seed, index), number);
        let kind = only.or(drawn(word(0), |_| true)).unwrap_or(Kind::Kill);
        let model = Model::ALL[(word(1) % Model::ALL.len() as u64) as usize];
        let early = match kind {
            Kind::Kill => 8,
            Kind::NoMemory | Kind::NoDescriptors | Kind::Registers | Kind::Dma => 2,
            _ => u64::MAX,
        };
        let at = (!word(2).is_multiple_of(early) || early == u64::MAX)
            .then(|| (word(3) % REQUESTS) as u32);
        Self { seed, index, kind, model, at, random: word(4) }
    }

    /// The same of a campaign in a guest: of a kind that is [done from outside](Kind::is_outer), to
    /// a device that a guest has by VFIO.
    pub fn in_guest(seed: u64, index: u64, only: Option<Kind>) -> Self {
        let word = |number| random(random(seed, index), number);
        let spec = Self::of(seed, index, only.or(drawn(word(0), Kind::is_outer)));
        Self { model: [Model::Nvme, Model::Ahci][(word(1) % 2) as usize], ..spec }
    }

    /// The `number`th of its random words.
    pub fn word(&self, number: u64) -> u64 {
        random(self.random, number)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = format!("{:?}", self.model).to_lowercase();
        match self.at {
            Some(at) => {
                write!(f, "{}:{} {} of {model} at request {at}", self.seed, self.index, self.kind)
            }
            None => write!(f, "{}:{} {} of {model} at its start", self.seed, self.index, self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_follows_from_seed_and_number() {
        assert_eq!(Spec::of(7, 12, None), Spec::of(7, 12, None));
        assert_ne!(Spec::of(7, 12, None).random, Spec::of(8, 12, None).random);
        assert_eq!(Spec::of(7, 12, Some(Kind::Stop)).kind, Kind::Stop);
    }

    #[test]
    fn in_a_guest_no_device_lies_and_every_other_kind_comes() {
        let specs: Vec<_> = (0..1000).map(|index| Spec::in_guest(1, index, None)).collect();
        assert!(
            specs.iter().all(
                |spec| spec.kind.is_outer() && [Model::Nvme, Model::Ahci].contains(&spec.model)
            )
        );
        for (kind, _) in Kind::ALL.into_iter().filter(|(kind, _)| kind.is_outer()) {
            assert!(specs.iter().any(|spec| spec.kind == kind), "{kind}");
        }
        assert_eq!(Spec::in_guest(7, 12, Some(Kind::Stop)).kind, Kind::Stop);
    }

    #[test]
    fn every_kind_comes_as_often_as_its_share() {
        assert_eq!(Kind::ALL.iter().map(|(_, weight)| weight).sum::<u64>(), 100);
        for (kind, weight) in Kind::ALL {
            let count =
                (0..10_000).filter(|index| Spec::of(1, *index, None).kind == kind).count() as u64;
            assert!(count.abs_diff(weight * 100) < 200, "{kind}: {count}");
            assert_eq!(kind.name().parse(), Ok(kind));
        }
    }
}
