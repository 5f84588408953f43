//! Frames from the drive: into memory, and into the port's registers. [AHCI 4.2.1, 5.3, SATA 10.3]

use ring3_spec::ahci::fis::{self, FLAG_INTERRUPT, RegisterToHost, SetDeviceBits};
use ring3_spec::ahci::port::Interrupts;
use ring3_spec::ata::TaskFile;

use super::controller::AhciModel;
use crate::Bus;
use crate::ata::{End, Plan};

/// Direction of a PIO or DMA set-up frame: from the drive to memory. [SATA 10.3.8, 10.3.11]
const FLAG_TO_HOST: u8 = 1 << 5;
const PIO_SETUP_BYTES: usize = 20;
const DMA_SETUP_BYTES: usize = 28;

impl AhciModel {
    /// Puts a frame into memory and says what has happened. If memory cannot be reached, the port
    /// stops. [AHCI 6.1.4]
    pub(super) fn receive(
        &mut self,
        bus: &Bus,
        p: usize,
        place: usize,
        frame: &[u8],
        what: Interrupts,
    ) {
        let port = &self.ports[p];
        if port.command.receiving() != 0 && bus.write(port.received + place as u64, frame).is_err()
        {
            return self.lose_memory(bus, p);
        }
        self.happen(bus, p, what);
    }

    /// A register frame: how a command ended that was not queued; or, without an interrupt, that a
    /// queued one was accepted.
    pub(super) fn receive_register(
        &mut self,
        bus: &Bus,
        p: usize,
        task: &TaskFile,
        end: &End,
        interrupt: bool,
    ) {
        self.ports[p].set_status(end.status, end.error);
        let mut frame = RegisterToHost::zeroed();
        frame.set_kind(fis::REGISTER_TO_HOST).set_flags(if interrupt { FLAG_INTERRUPT } else { 0 });
        frame.set_status(end.status.0).set_error(end.error.0).set_count(task.count);
        frame.set_lba_device(end.lba as u32 & 0xff_ffff | u32::from(task.device) << 24);
        frame.set_lba_high((end.lba >> 24) as u32 & 0xff_ffff);
        self.receive(
            bus,
            p,
            fis::RECEIVED_REGISTER,
            &frame.0,
            self.ends(end).with_register_frame(interrupt.into()),
        );
    }

    /// A set-device-bits frame: queued commands ended, or one of them failed.
    pub(super) fn receive_device_bits(&mut self, bus: &Bus, p: usize, ended: u32, end: &End) {
        self.ports[p].set_status(end.status, end.error);
        let mut frame = SetDeviceBits::zeroed();
        frame.set_kind(fis::SET_DEVICE_BITS).set_flags(FLAG_INTERRUPT).set_ended(ended);
        frame.set_status(end.status.0 & 0x77).set_error(end.error.0);
        self.receive(
            bus,
            p,
            fis::RECEIVED_DEVICE_BITS,
            &frame.0,
            self.ends(end).with_device_bits(1),
        );
    }

    /// A PIO set-up frame. Data that go to the host end with it: it brings the status behind them.
    /// [SATA 10.3.11]
    pub(super) fn receive_pio(&mut self, bus: &Bus, p: usize, plan: &Plan, end: &End) {
        let to_host = !plan.protocol.writes();
        let mut frame = [0; PIO_SETUP_BYTES];
        frame[0] = fis::PIO_SETUP;
        frame[1] = if to_host { FLAG_TO_HOST | FLAG_INTERRUPT } else { 0 };
        (frame[2], frame[3], frame[15]) = (0x58, end.error.0, end.status.0);
        let count = plan.bytes.min(plan.block) as u16;
        frame[16..18].copy_from_slice(&count.to_le_bytes());
        if to_host {
            self.ports[p].set_status(end.status, end.error);
        }
        self.receive(
            bus,
            p,
            fis::RECEIVED_PIO_SETUP,
            &frame,
            Interrupts(0).with_pio_frame(to_host.into()),
        );
    }

    /// A DMA set-up frame, before the data of a queued command. [SATA 10.3.8]
    pub(super) fn receive_dma(&mut self, bus: &Bus, p: usize, tag: u8, plan: &Plan) {
        let mut frame = [0; DMA_SETUP_BYTES];
        frame[0] = fis::DMA_SETUP;
        frame[1] = if plan.protocol.writes() { 0 } else { FLAG_TO_HOST };
        frame[4] = tag;
        frame[20..24].copy_from_slice(&(plan.bytes as u32).to_le_bytes());
        self.receive(bus, p, fis::RECEIVED_DMA_SETUP, &frame, Interrupts(0));
    }

    fn ends(&self, end: &End) -> Interrupts {
        Interrupts(0).with_task_file_error(end.status.error().into())
    }
}
