//! Which drive is signalled by which vector.
//!
//! A channel in compatibility mode has an interrupt of its own where the backend delivers it;
//! channels in native mode share the pin. A vector that only one drive uses is its queue's; one
//! that several use is shared through a [`FanOut`].

use std::sync::Arc;

use ring3_device::irq::{FanOut, Irq, IrqKind};
use ring3_device::{Device, Error};
use ring3_spec::ide::{CHANNELS, Interface};

use super::super::options::Options;
use super::channel::Channels;
use crate::lifetime::lock;

/// The interrupts of a function.
pub(super) struct Vectors {
    vectors: Vec<Vector>,
    /// The vector of each channel; `None` for one whose ends are found by looking.
    of_channel: [Option<u16>; CHANNELS as usize],
    kind: Option<IrqKind>,
}

enum Vector {
    Own(Arc<Irq>),
    Shared(FanOut),
}

impl Vectors {
    /// Enables what `options` ask for and the function has, for the channels that have drives.
    pub(super) fn enable(
        device: &dyn Device,
        options: &Options,
        interface: Interface,
        channels: &Arc<Channels>,
    ) -> Result<Self, Error> {
        let none = Self { vectors: Vec::new(), of_channel: [None; CHANNELS as usize], kind: None };
        let Some((kind, count)) = options.interrupts.choose(device.irq_limits())? else {
            return Ok(none);
        };
        let drives: Vec<usize> = channels
            .iter()
            .map(|channel| channel.as_ref().map_or(0, |channel| lock(channel).drives()))
            .collect();
        let of_channel = [0u8, 1].map(|channel| {
            vector_of(channel, kind, count, interface).filter(|_| drives[usize::from(channel)] > 0)
        });
        let Some(last) = of_channel.iter().flatten().max() else { return Ok(none) };
        let irqs = device.irqs(kind, last + 1)?;
        let sharers = |vector: u16| {
            of_channel
                .iter()
                .zip(&drives)
                .filter(|(of, _)| **of == Some(vector))
                .map(|(_, drives)| drives)
                .sum()
        };
        let vectors = irqs
            .into_iter()
            .zip(0..)
            .map(|(irq, vector)| share(irq, sharers(vector), channels))
            .collect::<Result<_, _>>()?;
        Ok(Self { vectors, of_channel, kind: Some(kind) })
    }

    /// How they are signalled.
    pub(super) fn kind(&self) -> Option<IrqKind> {
        self.kind
    }

    /// Whether the drives of `channel` have an interrupt.
    pub(super) fn reach(&self, channel: u8) -> bool {
        self.of_channel[usize::from(channel & 1)].is_some()
    }

    /// Wakes the owners of drives that share `channel`'s interrupt: one of them has found another's
    /// end, whose interrupt it has taken back with that, perhaps before anyone saw it.
    pub(super) fn wake(&self, channel: u8) {
        let vector = self.of_channel[usize::from(channel & 1)]
            .and_then(|vector| self.vectors.get(usize::from(vector)));
        if let Some(Vector::Shared(fan_out)) = vector {
            fan_out.wake();
        }
    }

    /// The interrupt of a queue of `channel`.
    pub(super) fn of_queue(&self, channel: u8) -> Result<Option<Arc<Irq>>, Error> {
        let Some(vector) = self.of_channel[usize::from(channel & 1)] else { return Ok(None) };
        match self.vectors.get(usize::from(vector)) {
            Some(Vector::Own(irq)) => Ok(Some(irq.clone())),
            Some(Vector::Shared(fan_out)) => fan_out.subscribe().map(|irq| Some(Arc::new(irq))),
            None => Err(Error::Protocol(format!("vector {vector} did not come"))),
        }
    }
}

/// The vector of `channel`: with two of the pin, each channel has one; with one, channels in
/// compatibility mode have none, because the ISA bus delivers theirs; a message is sent for both.
fn vector_of(channel: u8, kind: IrqKind, count: u16, interface: Interface) -> Option<u16> {
    match (kind, count) {
        (IrqKind::Intx, 2..) => Some(channel.into()),
        (IrqKind::Intx, _) => interface.is_native(channel).then_some(0),
        (IrqKind::Msi | IrqKind::MsiX, _) => Some(0),
    }
}

fn share(irq: Irq, drives: usize, channels: &Arc<Channels>) -> Result<Vector, Error> {
    if drives < 2 {
        return Ok(Vector::Own(Arc::new(irq)));
    }
    let channels = channels.clone();
    let fan_out = FanOut::new(irq, move || {
        // Whoever holds a channel moves it on; otherwise a drive whose owner does not look would
        // keep the pin asserted.
        for channel in channels.iter().flatten() {
            if let Ok(mut channel) = channel.try_lock() {
                channel.advance();
            }
        }
    })?;
    Ok(Vector::Shared(fan_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_in_compatibility_mode_has_a_vector_of_its_own() {
        assert_eq!(
            [0, 1].map(|channel| vector_of(channel, IrqKind::Intx, 2, Interface(0x80))),
            [Some(0), Some(1)]
        );
    }

    #[test]
    fn channels_in_native_mode_share_the_pin() {
        assert_eq!(
            [0, 1].map(|channel| vector_of(channel, IrqKind::Intx, 1, Interface(0x85))),
            [Some(0), Some(0)]
        );
    }

    #[test]
    fn the_channel_in_compatibility_mode_of_a_mixed_function_is_polled() {
        assert_eq!(
            [0, 1].map(|channel| vector_of(channel, IrqKind::Intx, 1, Interface(0x81))),
            [Some(0), None]
        );
    }
}
