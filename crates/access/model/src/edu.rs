//! QEMU's teaching device as a model.
//!
//! # References
//! - `[EDU]` QEMU documentation, "EDU device", `docs/specs/edu.rst`

use std::time::Instant;

use ring3_device::Error;
use ring3_spec::edu as spec;
use ring3_spec::register::Reg;

use super::options::Options;
use super::{BarLayout, Bus, Identity, Model, SimDevice, SimHandle, Timing};
use ring3_device::{OpenOptions, Uri};

/// The teaching device, simulated.
pub type SimEdu = SimDevice<EduModel>;

/// Major and minor version in the form 0xRRrr00ed. [EDU, 0x00]
const IDENTIFICATION: u32 = 0x0100_00ed;
/// PCI class "unclassified device".
const CLASS: u32 = 0x00ff00;
const BAR_LEN: u64 = 1 << 20;

/// The registers and the buffer.
pub struct EduModel {
    timing: Timing,
    liveness: u32,
    status: u32,
    factorial: u32,
    interrupt: u32,
    source: u64,
    destination: u64,
    count: u64,
    command: u64,
    buffer: Box<[u8; spec::BUFFER_SIZE]>,
    /// When what was started is due.
    due: Option<Instant>,
}

impl EduModel {
    /// A device that does factorials and transfers as `timing` says.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            liveness: 0,
            status: 0,
            factorial: 0,
            interrupt: 0,
            source: 0,
            destination: 0,
            count: 0,
            command: 0,
            buffer: Box::new([0; spec::BUFFER_SIZE]),
            due: None,
        }
    }

    fn start(&mut self, bus: &Bus) {
        match self.timing {
            Timing::Inline => self.finish(bus),
            Timing::Held => {}
            Timing::After(delay) => {
                let due = Instant::now() + delay;
                self.due = Some(due);
                bus.wake_at(due);
            }
        }
    }

    /// Does what was started.
    fn finish(&mut self, bus: &Bus) {
        self.due = None;
        if self.status & spec::STATUS_COMPUTING != 0 {
            // From 34! on, 32 factors of two leave nothing of the product.
            self.factorial = (1..=self.factorial.min(34)).fold(1, u32::wrapping_mul);
            self.status &= !spec::STATUS_COMPUTING;
            if self.status & spec::STATUS_IRQ_AT_END != 0 {
                self.raise(bus, spec::IRQ_FACTORIAL);
            }
        }
        if self.command & spec::DMA_START != 0 {
            self.transfer(bus);
            self.command &= !spec::DMA_START;
            if self.command & spec::DMA_IRQ != 0 {
                self.raise(bus, spec::IRQ_DMA);
            }
        }
    }

    /// Moves the bytes. A range that does not lie in the buffer moves nothing; the device has no
    /// way to say so.
    fn transfer(&mut self, bus: &Bus) {
        let to_memory = self.command & spec::DMA_TO_MEMORY != 0;
        let (inside, outside) = if to_memory {
            (self.source, self.destination)
        } else {
            (self.destination, self.source)
        };
        let start = inside.wrapping_sub(spec::BUFFER) as usize;
        let Some(bytes) =
            start.checked_add(self.count as usize).and_then(|end| self.buffer.get_mut(start..end))
        else {
            tracing::warn!(
                start,
                count = self.count,
                "edu: a transfer outside of the device's buffer"
            );
            return;
        };
        // A blocked transfer is the IOMMU's to report. [EDU, dma_mask]
        let iova = outside & spec::DMA_MASK;
        let _ = if to_memory { bus.write(iova, bytes) } else { bus.read(iova, bytes) };
    }

    fn raise(&mut self, bus: &Bus, cause: u32) {
        self.interrupt |= cause;
        bus.set_level(self.interrupt != 0);
        bus.raise(0);
    }
}

impl Model for EduModel {
    fn identity(&self) -> Identity {
        Identity {
            vendor: spec::VENDOR,
            device: spec::DEVICE,
            revision: 0,
            class: CLASS,
            bars: vec![BarLayout { index: 0, len: BAR_LEN, ports: false }],
            pins: 1,
            msi: 1,
            msix: None,
            express: false,
            dma_bits: spec::DMA_MASK.count_ones(),
        }
    }

    fn read(&mut self, _: &Bus, _: u8, offset: u64, width: usize) -> u64 {
        // Below 0x80 only 32-bit accesses exist, from there on 64-bit ones too. [EDU, MMIO area
        // spec]
        if width < 4 || offset < 0x80 && width != 4 {
            return u64::MAX;
        }
        if at(offset, spec::IDENTIFICATION) {
            IDENTIFICATION.into()
        } else if at(offset, spec::LIVENESS) {
            (!self.liveness).into()
        } else if at(offset, spec::FACTORIAL) {
            self.factorial.into()
        } else if at(offset, spec::STATUS) {
            self.status.into()
        } else if at(offset, spec::INTERRUPT_STATUS) {
            self.interrupt.into()
        } else if at(offset, spec::DMA_SOURCE) {
            self.source
        } else if at(offset, spec::DMA_DESTINATION) {
            self.destination
        } else if at(offset, spec::DMA_COUNT) {
            self.count
        } else if at(offset, spec::DMA_COMMAND) {
            self.command
        } else {
            u64::MAX
        }
    }

    fn write(&mut self, bus: &Bus, _: u8, offset: u64, width: usize, value: u64) {
        if width < 4 || offset < 0x80 && width != 4 {
            return;
        }
        let idle = self.command & spec::DMA_START == 0;
        if at(offset, spec::LIVENESS) {
            self.liveness = value as u32;
        } else if at(offset, spec::FACTORIAL) && self.status & spec::STATUS_COMPUTING == 0 {
            self.factorial = value as u32;
            self.status |= spec::STATUS_COMPUTING;
            self.start(bus);
        } else if at(offset, spec::STATUS) {
            self.status =
                self.status & !spec::STATUS_IRQ_AT_END | value as u32 & spec::STATUS_IRQ_AT_END;
        } else if at(offset, spec::INTERRUPT_RAISE) {
            self.raise(bus, value as u32);
        } else if at(offset, spec::INTERRUPT_ACKNOWLEDGE) {
            self.interrupt &= !(value as u32);
            bus.set_level(self.interrupt != 0);
        } else if at(offset, spec::DMA_SOURCE) && idle {
            self.source = value;
        } else if at(offset, spec::DMA_DESTINATION) && idle {
            self.destination = value;
        } else if at(offset, spec::DMA_COUNT) && idle {
            self.count = value;
        } else if at(offset, spec::DMA_COMMAND) && idle {
            self.command = value & (spec::DMA_START | spec::DMA_TO_MEMORY | spec::DMA_IRQ);
            if value & spec::DMA_START != 0 {
                self.start(bus);
            }
        }
    }

    fn reset(&mut self, bus: &Bus) {
        *self = Self::new(self.timing);
        bus.set_level(false);
    }

    fn tick(&mut self, bus: &Bus, now: Instant) {
        match self.due {
            Some(due) if due <= now => self.finish(bus),
            Some(due) => bus.wake_at(due),
            None => {}
        }
    }
}

fn at<T, A>(offset: u64, register: Reg<T, A>) -> bool {
    offset == register.offset()
}

/// Opens `sim:edu`; the [module](super) says which options can follow.
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimEdu, Error> {
    let options = Options::of(uri, "edu", &[])?;
    let model = EduModel::new(options.timing()?);
    SimDevice::new(uri.to_string(), model, &options.platform(asked)?)
}

impl SimHandle<EduModel> {
    /// When factorials and transfers that are started from now on are done.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| model.timing = timing);
    }

    /// Does what was started and held back.
    pub fn release(&self) {
        self.with(|model, bus| model.finish(bus));
    }
}
