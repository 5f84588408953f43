//! QEMU's IDE and AHCI controllers over qtest, poked by hand: ports, both ISA interrupts, bus
//! master, MSI and the pin, and disks that are bad or optical.

use std::time::{Duration, Instant};

use ring3_backend::qtest::{self, Qtest};
use ring3_backend::{OpenOptions, Uri};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Deadline, Device, Error, Registers, poll_until};
use ring3_spec::ahci::{self, port};
use ring3_spec::ata::{Identify, Signature, Status, TaskFile, device, identify, opcode};
use ring3_spec::ide::{self, BusMasterCommand, BusMasterStatus, Prd, bus_master, command, control};
use ring3_spec::pci;

fn open(text: &str) -> Qtest {
    let options = OpenOptions { arena: 1 << 20, below: 1 << 32, ..OpenOptions::default() };
    qtest::open(&text.parse::<Uri>().unwrap(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

fn not_long() -> Deadline {
    Deadline::after(Duration::from_millis(50))
}

fn read(lba: u64, count: u16) -> TaskFile {
    TaskFile {
        command: opcode::READ_DMA_EXT,
        count,
        lba,
        device: device::LBA,
        ext: true,
        ..TaskFile::default()
    }
}

/// One channel of an IDE function.
struct Channel {
    number: u8,
    command: Registers,
    control: Registers,
    bus_master: Registers,
}

impl Channel {
    fn of(device: &Qtest, number: u8) -> Self {
        let registers = |bar, len| Registers::new(device.bar(bar).unwrap(), len).unwrap();
        Self {
            number,
            command: registers(ide::command_bar(number), command::LEN),
            control: registers(ide::control_bar(number), control::LEN),
            bus_master: registers(ide::BUS_MASTER_BAR, 16),
        }
    }

    fn start(&self, command: &TaskFile, drive: u8) {
        self.command.write(
            command::DEVICE,
            command.device_byte() | if drive == 1 { device::SLAVE } else { 0 },
        );
        let [a, b, c, d, e, f] = command.lba_bytes();
        let [count, count_high] = command.count.to_le_bytes();
        let halves = [(count_high, d, e, f), (count, a, b, c)];
        for (count, low, mid, high) in halves.into_iter().skip(usize::from(!command.ext)) {
            self.command.write(command::COUNT, count);
            self.command.write(command::LBA_LOW, low);
            self.command.write(command::LBA_MID, mid);
            self.command.write(command::LBA_HIGH, high);
        }
        self.command.write(command::COMMAND, command.command);
    }

    fn idle(&self) -> Status {
        let status = || {
            Some(self.control.read(control::ALTERNATE_STATUS)).filter(|status| status.busy() == 0)
        };
        poll_until(soon(), "BSY clear", || Ok(status())).unwrap()
    }

    fn sector(&mut self) -> [u8; 512] {
        let mut bytes = [0; 512];
        bytes.chunks_exact_mut(2).for_each(|word| {
            word.copy_from_slice(&self.command.take(command::DATA_IN).to_le_bytes())
        });
        bytes
    }

    /// Reads by bus master into `buffer`; the table is in its last bytes.
    fn dma_read(&self, command: &TaskFile, buffer: &DmaBuffer, bytes: u32) {
        let table = buffer.len() - Prd::SIZE;
        let region = Prd::new(buffer.iova(), bytes).unwrap().with_last();
        buffer.write(table, &region.into_raw().to_le_bytes()).unwrap();
        self.bus_master
            .write(bus_master::table(self.number), (buffer.iova() + table as u64) as u32);
        self.bus_master.write(
            bus_master::status(self.number),
            BusMasterStatus(0).with_error(1).with_interrupt(1),
        );
        self.start(command, 0);
        self.bus_master.write(
            bus_master::command(self.number),
            BusMasterCommand(0).with_start(1).with_to_memory(1),
        );
    }

    /// Ends a transfer; whether the bus master met an error and what the drive says.
    ///
    /// QEMU's drive shows DRQ and not BSY while its data move by DMA, so only the interrupt bit
    /// tells.
    fn dma_end(&mut self) -> (BusMasterStatus, Status) {
        let status = || {
            Some(self.bus_master.read(bus_master::status(self.number)))
                .filter(|status| status.interrupt() == 1)
        };
        let status = poll_until(soon(), "the end of a transfer", || Ok(status())).unwrap();
        self.bus_master.write(bus_master::command(self.number), BusMasterCommand(0));
        (status, self.command.take(command::STATUS))
    }
}

#[test]
fn a_drive_says_who_it_is_by_pio() {
    for model in ["piix3-ide", "piix4-ide"] {
        let device =
            open(&format!("qtest:{model},null=on,size=64M,disks=3,rotation=7200,physical=4096"));
        for (number, drive, serial) in [(0, 0, "RING3"), (0, 1, "RING3-1"), (1, 0, "RING3-2")] {
            let mut channel = Channel::of(&device, number);
            channel.start(&TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }, drive);
            assert_eq!(
                (channel.idle().error(), channel.idle().data_request()),
                (0, 1),
                "{model} {number} {drive}"
            );
            let identify = Identify::from_bytes(&channel.sector()).unwrap();
            assert_eq!(identify.blocks(), (64 << 20) / 512);
            assert_eq!((identify.rotation(), identify.physical_block_size()), (7200, 4096));
            assert!(identify.has_trim() && identify.cache_enabled());
            let text: Vec<u8> = identify.text(identify::SERIAL).collect();
            assert_eq!(String::from_utf8_lossy(&text).trim(), serial);
        }
    }
}

#[test]
fn a_data_port_gives_and_takes_the_same_by_words_and_by_strings() {
    let device = open("qtest:piix3-ide,size=1M");
    let mut channel = Channel::of(&device, 0);
    let pio = |command, ext| TaskFile {
        command,
        count: 2,
        lba: 5,
        device: device::LBA,
        ext,
        ..TaskFile::default()
    };
    let data: Vec<u8> = (0..1024u32).map(|i| (i ^ i >> 8) as u8).collect();
    channel.start(&pio(opcode::WRITE_PIO, false), 0);
    channel.idle();
    channel.command.bar().write_string16(0, &data[..512]);
    channel.idle();
    channel.command.bar().write_string32(0, &data[512..]);
    assert_eq!(channel.idle().data_request(), 0);
    let mut strings = vec![0; 1024];
    channel.start(&pio(opcode::READ_PIO_EXT, true), 0);
    channel.idle();
    channel.command.bar().read_string32(0, &mut strings[..512]);
    channel.idle();
    channel.command.bar().read_string16(0, &mut strings[512..]);
    assert!(strings == data);
    channel.start(&pio(opcode::READ_PIO, false), 0);
    channel.idle();
    let first = channel.sector();
    channel.idle();
    assert!([first, channel.sector()].concat() == data);
    let mut outside = [0; 5];
    device.bar(1).unwrap().read_string16(0, &mut outside);
    assert_eq!(outside, [0xff, 0xff, 0xff, 0xff, 0]);
}

#[test]
fn a_channel_without_drives_has_no_ready_drive() {
    let device = open("qtest:piix3-ide,disks=0");
    assert_eq!(Channel::of(&device, 0).control.read(control::ALTERNATE_STATUS).ready(), 0);
}

#[test]
fn legacy_ports_end_where_the_controllers_end() {
    let device = open("qtest:piix3-ide,null=on");
    let lens = [0, 1, 2, 3, 4].map(|bar| device.bar(bar).unwrap().len());
    assert_eq!(lens, [8, 4, 8, 4, 16]);
    assert!(matches!(device.bar(5), Err(Error::Unsupported(_))));
    let (command, control) = (device.bar(0).unwrap(), device.bar(1).unwrap());
    assert_eq!(
        (command.read8(8), control.read8(0), control.read8(3), control.read16(2)),
        (0xff, 0xff, 0xff, 0xffff)
    );
    assert_ne!(control.read8(2), 0xff);
    // A write there resets the drives, if it arrives.
    let ready = control.read8(2);
    control.write16(2, 0x0404);
    assert_eq!(control.read8(2), ready);
}

#[test]
fn each_channel_has_an_interrupt_of_its_own() {
    let device = open("qtest:piix3-ide,null=on,disks=4");
    assert_eq!((device.irq_limits().intx, device.irq_limits().msi), (2, 0));
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    // Nobody has acknowledged this one when interrupts are enabled.
    Channel::of(&device, 1).start(&TaskFile { command: opcode::FLUSH, ..TaskFile::default() }, 0);
    Channel::of(&device, 1).idle();
    let irqs = device.irqs(IrqKind::Intx, 2).unwrap();
    for round in 0..3 {
        for number in [1, 0] {
            let mut channel = Channel::of(&device, number);
            buffer.fill(0xa5);
            channel.dma_read(&read(8, 8), &buffer, 4096);
            let vector = usize::from(number);
            assert_eq!(irqs[vector].wait(soon()).unwrap(), 1, "round {round} channel {number}");
            assert_eq!(irqs[1 - vector].take().unwrap(), 0);
            let (bus, drive) = channel.dma_end();
            assert_eq!((bus.interrupt(), bus.error(), drive.failed()), (1, 0, false));
            irqs[vector].unmask().unwrap();
            assert_eq!(irqs[vector].wait(not_long()).unwrap(), 0);
            let mut bytes = [1; 4096];
            buffer.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 4096]);
        }
    }
}

#[test]
fn one_interrupt_can_be_had_alone_and_three_cannot() {
    let device = open("qtest:piix4-ide,null=on");
    assert_eq!(device.irqs(IrqKind::Intx, 1).unwrap().len(), 1);
    assert!(matches!(device.irqs(IrqKind::Intx, 3), Err(Error::Unsupported(_))));
}

#[test]
fn a_reset_stops_the_ide_function_and_leaves_its_interrupts_armed() {
    let device = open("qtest:piix3-ide,null=on");
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    let irqs = device.irqs(IrqKind::Intx, 2).unwrap();
    let mut channel = Channel::of(&device, 0);
    for _ in 0..2 {
        device.reset().unwrap();
        assert_eq!(channel.bus_master.read(bus_master::status(0)).active(), 0);
        channel.dma_read(&read(0, 8), &buffer, 4096);
        assert_eq!(irqs[0].wait(soon()).unwrap(), 1);
        assert!(!channel.dma_end().1.failed());
        irqs[0].unmask().unwrap();
    }
}

#[test]
fn nothing_moves_while_the_ide_function_may_not_master_the_bus() {
    let device = open("qtest:piix3-ide,null=on");
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    buffer.fill(0xa5);
    Channel::of(&device, 0).dma_read(&read(0, 8), &buffer, 4096);
    std::thread::sleep(Duration::from_millis(50));
    let mut bytes = [0; 4096];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xa5; 4096]);
}

#[test]
fn an_optical_drive_comes_after_the_disks_and_shows_its_signature() {
    let device = open("qtest:piix3-ide,null=on,cdrom=on");
    let channel = Channel::of(&device, 0);
    let signature = |drive: u8| {
        channel.command.write(command::DEVICE, if drive == 1 { device::SLAVE } else { 0 });
        let registers = [command::COUNT, command::LBA_LOW, command::LBA_MID, command::LBA_HIGH];
        Signature::from_raw(u32::from_le_bytes(
            registers.map(|register| channel.command.read(register)),
        ))
    };
    assert_eq!([signature(0), signature(1)], [Signature::Ata, Signature::Atapi]);

    let device = open("qtest:ich9-ahci,null=on,cdrom=on,msi=off");
    let registers = Registers::new(device.bar(ahci::BAR).unwrap(), 0x1000).unwrap();
    // A port has the signature out of the drive's first frame.
    device.set_bus_master(true).unwrap();
    let page = device.dma().arena().alloc_pages(4096).unwrap();
    for number in [0, 1] {
        registers.write(port::received(number), page.iova() as u32);
        registers.write(port::command(number), port::Command(0).with_receive(1));
    }
    let signature = |number| Signature::from_raw(registers.read(port::signature(number)));
    assert_eq!([signature(0), signature(1)], [Signature::Ata, Signature::Atapi]);
}

#[test]
fn a_bad_block_is_a_medium_error_and_its_neighbours_are_good() {
    let device = open("qtest:piix3-ide,size=1M,bad=16:32:write");
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    let mut channel = Channel::of(&device, 0);
    for (lba, fails) in [(8, false), (16, true), (17, false), (15, false), (32, false)] {
        channel.dma_read(&read(lba, 1), &buffer, 512);
        assert_eq!(channel.dma_end().1.failed(), fails, "{lba}");
    }
    channel.dma_read(&read(9, 8), &buffer, 4096);
    assert!(channel.dma_end().1.failed());
}

#[test]
fn a_disk_that_hangs_is_there_again_after_its_transfer_was_stopped() {
    let device = open("qtest:piix3-ide,null=on,rate=1");
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    let channel = Channel::of(&device, 0);
    channel.dma_read(&read(8, 8), &buffer, 4096);
    std::thread::sleep(Duration::from_millis(50));
    let bus = channel.bus_master.read(bus_master::status(0));
    assert_eq!((bus.active(), bus.interrupt()), (1, 0));
    let start = Instant::now();
    channel.bus_master.write(bus_master::command(0), BusMasterCommand(0));
    channel.control.write(control::DEVICE_CONTROL, ide::DeviceControl(0).with_software_reset(1));
    channel.control.write(control::DEVICE_CONTROL, ide::DeviceControl(0));
    assert_eq!(channel.idle().error(), 0);
    channel.start(&TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }, 0);
    assert_eq!(channel.idle().data_request(), 1);
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// The CMD646 of an AlphaServer, where that machine's QEMU is installed.
fn cmd646(options: &str) -> Option<Qtest> {
    let uri = format!("qtest:cmd646-ide{options}").parse::<Uri>().unwrap();
    match qtest::open(
        &uri,
        OpenOptions { arena: 1 << 20, below: 1 << 32, ..OpenOptions::default() },
    ) {
        Err(error @ Error::Unsupported(_))
            if error.to_string().contains("needs qemu-system-alpha") =>
        {
            println!("skipped: {error}");
            None
        }
        device => Some(device.unwrap_or_else(|error| panic!("{error}"))),
    }
}

#[test]
fn a_cmd646_is_in_native_mode_and_reads_by_bus_master_without_an_interrupt() {
    let Some(device) = cmd646(",null=on,size=64M,disks=3") else { return };
    assert_eq!(
        device.config_read(pci::VENDOR_ID, 4),
        u32::from(ide::cmd64x::CMD646) << 16 | u32::from(ide::cmd64x::VENDOR)
    );
    let class = device.config_read(pci::CLASS, 1);
    assert!(ide::Interface(class as u8).is_native(0) && ide::Interface(class as u8).is_native(1));
    assert_eq!(
        device.config_read(ide::cmd64x::CONTROL, 1) as u8 & ide::cmd64x::CONTROL_SECONDARY,
        8
    );
    assert_eq!(device.config_read(256, 1), u32::MAX);
    assert_eq!(device.irq_limits().intx, 0);
    device.set_bus_master(true).unwrap();
    let buffer = device.dma().arena().alloc_pages(8192).unwrap();
    for number in [0, 1] {
        let mut channel = Channel::of(&device, number);
        channel.start(&TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }, 0);
        channel.idle();
        assert_eq!(Identify::from_bytes(&channel.sector()).unwrap().blocks(), (64 << 20) / 512);
        buffer.fill(0xa5);
        channel.dma_read(&read(8, 8), &buffer, 4096);
        let (bus, drive) = channel.dma_end();
        assert_eq!((bus.interrupt(), bus.error(), drive.failed()), (1, 0, false));
        let mut bytes = [1; 4096];
        buffer.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }
}

#[test]
fn a_cmd646_cannot_be_reset_and_is_stopped() {
    let Some(device) = cmd646(",null=on") else { return };
    device.set_bus_master(true).unwrap();
    assert!(matches!(device.reset(), Err(Error::Unsupported(_))));
    assert_eq!(device.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER, 0);
}

/// Port 0 of an AHCI controller.
struct Ahci {
    registers: Registers,
    irq: Irq,
    /// Command list, received frames, command table and data, a page each.
    memory: DmaBuffer,
    device: Qtest,
}

const RECEIVED: usize = 4096;
const TABLE: usize = 8192;
const DATA: usize = 12288;

impl Ahci {
    fn enable(device: Qtest, kind: IrqKind) -> Self {
        device.set_bus_master(true).unwrap();
        let irq = device.irqs(kind, 1).unwrap().remove(0);
        let memory = device.dma().arena().alloc_pages(16384).unwrap();
        let registers = Registers::new(device.bar(ahci::BAR).unwrap(), 0x1000).unwrap();
        let control = ahci::registers::Control(0).with_enabled(1);
        registers.write(ahci::registers::CONTROL, control);
        registers.write(port::command_list(0), memory.iova() as u32);
        registers.write(port::received(0), memory.iova() as u32 + RECEIVED as u32);
        registers.write(
            port::interrupt_enable(0),
            port::Interrupts::FATAL.with_register_frame(1).with_pio_frame(1),
        );
        registers.write(
            port::command(0),
            port::Command(0).with_receive(1).with_spin_up(1).with_power_on(1),
        );
        registers.write(
            port::command(0),
            port::Command(0).with_receive(1).with_spin_up(1).with_power_on(1).with_start(1),
        );
        registers.write(ahci::registers::CONTROL, control.with_interrupts(1));
        let ahci = Self { registers, irq, memory, device };
        // The drive's first frame, after the link came up.
        ahci.acknowledge();
        ahci
    }

    /// Clears what has happened. QEMU sends a message for every frame, so more may have come than
    /// were waited for.
    fn acknowledge(&self) {
        self.registers.write(port::interrupt_status(0), port::Interrupts(u32::MAX));
        self.registers.write(ahci::registers::INTERRUPT_STATUS, u32::MAX);
        self.registers.read(ahci::registers::INTERRUPT_STATUS);
        self.irq.take().unwrap();
        self.irq.unmask().unwrap();
    }

    /// Runs `command` in slot 0 to its interrupt.
    fn run(&self, command: &TaskFile, bytes: u32) -> Status {
        let table = self.memory.iova() + TABLE as u64;
        let mut header = ahci::CommandHeader::zeroed();
        let flags =
            ahci::HeaderFlags(0).with_frame_dwords(ahci::fis::REGISTER_DWORDS).with_regions(1);
        header.set_flags(flags.0).set_table(table);
        self.memory.write(0, &header.0).unwrap();
        self.memory.write(TABLE, &ahci::fis::RegisterToDevice::of(command).0).unwrap();
        let region = ahci::Region::new(self.memory.iova() + DATA as u64, bytes).unwrap().into_raw();
        self.memory
            .write(TABLE + ahci::TABLE_REGIONS, &region.map(u64::to_le_bytes).concat())
            .unwrap();
        self.registers.write(port::issue(0), 1);
        assert!(self.irq.wait(soon()).unwrap() > 0);
        let ended = |status: Status| {
            Some(status).filter(|status| status.busy() == 0 && status.data_request() == 0)
        };
        let status = poll_until(soon(), "the command's end", || {
            Ok(ended(self.registers.read(port::task_file(0)).status()))
        })
        .unwrap();
        self.acknowledge();
        status
    }

    fn identify(&self) -> Identify {
        let status = self.run(&TaskFile { command: opcode::IDENTIFY, ..TaskFile::default() }, 512);
        assert!(!status.failed(), "{status:?}");
        let mut bytes = [0; 512];
        self.memory.read(DATA, &mut bytes).unwrap();
        Identify::from_bytes(&bytes).unwrap()
    }
}

#[test]
fn an_ahci_drive_says_who_it_is_by_message_and_by_pin() {
    for (kind, options) in [(IrqKind::Msi, ""), (IrqKind::Intx, ",msi=off")] {
        let device = open(&format!("qtest:ich9-ahci,null=on,size=64M,rotation=1{options}"));
        let limits = device.irq_limits();
        assert_eq!((limits.intx, limits.msi), (1, u16::from(kind == IrqKind::Msi)));
        let ahci = Ahci::enable(device, kind);
        for _ in 0..3 {
            let identify = ahci.identify();
            assert_eq!(
                (identify.blocks(), identify.queue_depth(), identify.rotation()),
                (131072, 32, 1),
                "{kind:?}"
            );
        }
        assert_eq!(ahci.irq.wait(not_long()).unwrap(), 0);
    }
}

#[test]
fn each_ahci_disk_has_a_port() {
    let device = open("qtest:ich9-ahci,null=on,disks=3");
    let registers = Registers::new(device.bar(ahci::BAR).unwrap(), 0x1000).unwrap();
    let linked = |number: u8| {
        registers.read(port::sata_status(number)).detection() == port::SataStatus::LINKED
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(linked), [true, true, true, false, false, false]);
}

#[test]
fn a_bad_block_of_an_ahci_disk_is_an_error_and_the_pace_is_kept() {
    let ahci = Ahci::enable(open("qtest:ich9-ahci,null=on,bad=16:read,commands=20"), IrqKind::Msi);
    assert!(ahci.run(&read(16, 1), 512).failed());
    // What was taken at once is paid for by those that follow.
    let (ahci, start) =
        (Ahci::enable(open("qtest:ich9-ahci,null=on,commands=20"), IrqKind::Msi), Instant::now());
    for lba in 0..8 {
        assert!(!ahci.run(&read(lba, 1), 512).failed());
    }
    assert!(start.elapsed() > Duration::from_millis(200), "{:?}", start.elapsed());
    drop(ahci.device);
}
