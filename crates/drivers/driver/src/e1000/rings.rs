//! Queues by their registers: where their rings are, and how they start and stop. [82574 4.6.5,
//! 4.6.6; 8254x 14.4, 14.5; 82576 4.5.9, 4.5.10]

use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::e1000::advanced::{self, QueueControl, Spread, Store};
use ring3_spec::e1000::receive::{self, Checksum, FilterControl};
use ring3_spec::e1000::transmit::{self, Gap};
use ring3_spec::e1000::{DESCRIPTOR_BYTES, FCS_BYTES, STANDARD_FRAME};

use super::card::Card;
use super::interrupts::Vectors;
use super::variant::Family;

/// The key of the hash by which frames are spread. With it both directions of a flow have the same
/// hash.
const KEY: u32 = 0x5a6d_5a6d;

/// Where a queue's rings are, and how frames are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// Device address and descriptors.
    pub(super) receive: (u64, u32),
    pub(super) transmit: (u64, u32),
    /// Bytes of a receive buffer: one of those of RCTL.BSIZE.
    pub(super) buffer_bytes: u32,
    /// Bytes of the longest frame, with a tag and without its FCS.
    pub(super) max_frame: u32,
    /// Descriptors that come back interrupt.
    pub(super) wake_on_tx: bool,
    /// The card has them.
    pub(super) started: bool,
    /// They were left to whoever resumes the queue.
    pub(super) detached: bool,
}

impl Rings {
    pub(super) fn has_long_packets(&self) -> bool {
        self.max_frame as usize > STANDARD_FRAME
    }
}

impl Family {
    /// Offset of the receive tail of queue `index`.
    pub(super) fn receive_tail(self, index: u32) -> u64 {
        if self == Self::I82576 { advanced::receive_tail(index) } else { receive::tail(index) }
            .offset()
    }

    /// Offset of the transmit tail of queue `index`.
    pub(super) fn transmit_tail(self, index: u32) -> u64 {
        if self == Self::I82576 { advanced::transmit_tail(index) } else { transmit::tail(index) }
            .offset()
    }
}

impl Card {
    /// Whether a queue runs.
    pub(super) fn is_started(&self) -> bool {
        self.rings.iter().flatten().any(|rings| rings.started)
    }

    /// The receive descriptor of queue `index` that the card fills next.
    pub(super) fn receive_head(&self, index: u32) -> u32 {
        let head = if self.variant.family == Family::I82576 {
            advanced::receive_head(index)
        } else {
            receive::head(index)
        };
        self.registers().read(head)
    }

    /// Device addresses and bytes of the rings of queue `index`: of the receive ring, of the
    /// transmit ring.
    pub(super) fn ring_registers(&self, index: u32) -> ((u64, u32), (u64, u32)) {
        let read = |low, high, bytes| {
            let registers = self.registers();
            (
                u64::from(registers.read::<u32, _>(high)) << 32
                    | u64::from(registers.read::<u32, _>(low)),
                registers.read(bytes),
            )
        };
        if self.variant.family == Family::I82576 {
            return (
                read(
                    advanced::receive_low(index),
                    advanced::receive_high(index),
                    advanced::receive_bytes(index),
                ),
                read(
                    advanced::transmit_low(index),
                    advanced::transmit_high(index),
                    advanced::transmit_bytes(index),
                ),
            );
        }
        (
            read(receive::ring_low(index), receive::ring_high(index), receive::ring_bytes(index)),
            read(
                transmit::ring_low(index),
                transmit::ring_high(index),
                transmit::ring_bytes(index),
            ),
        )
    }

    /// Starts both directions of queue `index`, with empty rings. What comes from now on is
    /// received.
    pub(super) fn start_queue(&mut self, index: u32, vectors: &Vectors) -> Result<(), Error> {
        let Some(Some(rings)) = self.rings.get_mut(index as usize) else { return Ok(()) };
        rings.started = true;
        let rings = *rings;
        self.start_receiver(index, &rings);
        self.start_transmitter(index, &rings);
        vectors.open_queue(self.registers(), index, rings.wake_on_tx);
        self.program_filter();
        if self.variant.family == Family::I82576 {
            self.enable(index, true)?;
        }
        // Pushes the writes out.
        self.registers().read_alive(ring3_spec::e1000::general::STATUS).map(drop)
    }

    /// Stops queue `index` of an 82576; others lose nothing by it, nor does the link. When this
    /// succeeds, the card knows nothing of its memory. [82576 4.5.9]
    pub(super) fn stop_queue(&mut self, index: u32, vectors: &Vectors) -> Result<(), Error> {
        vectors.close_queue(self.registers(), index);
        if self.rings.iter().flatten().count() == 1 {
            self.registers().write(receive::CONTROL, receive::Control(0));
        }
        self.enable(index, false)?;
        self.rings[index as usize] = None;
        Ok(())
    }

    /// Has queue `index` of an 82576 run or stand, and waits until it does.
    fn enable(&self, index: u32, enable: bool) -> Result<(), Error> {
        let (receive, transmit) =
            (advanced::receive_control(index), advanced::transmit_control(index));
        let control = QueueControl(0).with_enable(enable.into());
        self.registers().write(receive, control);
        self.registers().write(transmit, control);
        let deadline = Deadline::after(Duration::from_millis(advanced::QUEUE_MILLIS));
        poll_until(deadline, "a queue to start or stop (RXDCTL.ENABLE, TXDCTL.ENABLE)", || {
            let both =
                [self.registers().read_alive(receive)?, self.registers().read_alive(transmit)?];
            Ok(both.iter().all(|control| control.enable() == u32::from(enable)).then_some(()))
        })
    }

    /// [82574 4.6.5; 82576 4.5.9]
    fn start_receiver(&self, index: u32, rings: &Rings) {
        let registers = self.registers();
        let (base, size) = rings.receive;
        let (low, high, bytes) = (base as u32, (base >> 32) as u32, size * DESCRIPTOR_BYTES);
        let hash = (self.variant.family != Family::I8254x).into();
        registers
            .write(receive::CHECKSUM, Checksum(0).with_ip(1).with_transport(1).with_hash(hash));
        if self.variant.family == Family::I82576 {
            registers.write(advanced::LONGEST, rings.max_frame + FCS_BYTES as u32);
            let store =
                Store(0).with_form(Store::ADVANCED).with_buffer_kib(rings.buffer_bytes >> 10);
            registers.write(advanced::store(index), store.with_drop((self.spread > 1).into()));
            registers.write(advanced::receive_low(index), low);
            registers.write(advanced::receive_high(index), high);
            registers.write(advanced::receive_bytes(index), bytes);
            registers.write(advanced::receive_head(index), 0);
            registers.write(advanced::receive_tail(index), 0);
            return;
        }
        if self.variant.family == Family::I82574 {
            // Otherwise each segment of TCP that acknowledges fires the link's vector.
            let filter = FilterControl(0).with_extended(1).with_no_acknowledgements(1);
            let unread = if self.variant.errata.hangs_by_extensions { 0b11 } else { 0 };
            registers.write(receive::FILTER_CONTROL, filter.with_no_ipv6_extensions(unread));
            registers.write(receive::MULTIPLE_QUEUES, 0);
        }
        registers.write(receive::ring_low(0), low);
        registers.write(receive::ring_high(0), high);
        registers.write(receive::ring_bytes(0), bytes);
        registers.write(receive::head(0), 0);
        registers.write(receive::tail(0), 0);
    }

    /// [82574 4.6.6; 82576 4.5.10]
    fn start_transmitter(&self, index: u32, rings: &Rings) {
        let registers = self.registers();
        let (base, size) = rings.transmit;
        let (low, high, bytes) = (base as u32, (base >> 32) as u32, size * DESCRIPTOR_BYTES);
        if self.variant.family == Family::I82576 {
            registers.write(advanced::transmit_low(index), low);
            registers.write(advanced::transmit_high(index), high);
            registers.write(advanced::transmit_bytes(index), bytes);
            registers.write(advanced::transmit_head(index), 0);
            registers.write(advanced::transmit_tail(index), 0);
        } else {
            registers.write(transmit::ring_low(0), low);
            registers.write(transmit::ring_high(0), high);
            registers.write(transmit::ring_bytes(0), bytes);
            registers.write(transmit::head(0), 0);
            registers.write(transmit::tail(0), 0);
            let count = (self.variant.family == Family::I82574).into();
            let control = receive::DescriptorControl(0).with_granularity(1).with_count(count);
            registers.write(transmit::descriptor_control(0), control);
            if self.variant.family == Family::I82574 {
                // An erratum: it must be the same for the queue that is not used. [Linux,
                // e1000_configure_tx]
                registers.write(transmit::descriptor_control(1), control);
            }
            registers.write(transmit::GAP, Gap::COPPER);
        }
        let control = transmit::Control(0)
            .with_enable(1)
            .with_pad(1)
            .with_collision_threshold(transmit::Control::COLLISION_THRESHOLD)
            .with_collision_distance(transmit::Control::COLLISION_DISTANCE)
            .with_multiple_reads((self.variant.family == Family::I82574).into());
        registers.write(transmit::CONTROL, control);
    }

    /// Whether packets come to their queues by a hash.
    pub(super) fn is_hashing(&self) -> bool {
        self.variant.family == Family::I82576 && self.spread > 1
    }

    /// Spreads what is received among the first queues by flows. [82576 7.1.1.7]
    pub(super) fn program_spread(&self) {
        if self.variant.family != Family::I82576 {
            return;
        }
        let registers = self.registers();
        (0..advanced::KEY_WORDS).for_each(|index| registers.write(advanced::key(index), KEY));
        for index in 0..advanced::SPREAD_WORDS {
            let queues = [0, 1, 2, 3].map(|place| ((4 * index + place) % self.spread.max(1)) as u8);
            registers.write(advanced::spread_queues(index), u32::from_le_bytes(queues));
        }
        let spread = match self.is_hashing() {
            false => Spread(0),
            true => Spread(0).with_queues(Spread::HASHED).with_fields(Spread::FLOWS),
        };
        registers.write(advanced::SPREAD, spread);
    }
}
