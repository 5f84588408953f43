//! The vfio-user client: the backend `vfio-user:` and the device behind it.
//!
//! The attacker is the server, which may answer anything. It answers as a good one does, and the
//! input says which answers are others: errors, wrong numbers, wrong lengths, wrong fields, bytes
//! that are no message, the end of the connection.
//!
//! Promises: no panic; a server that is gone leaves a device that reads all ones and whose calls
//! fail; no register outside of its BAR is asked for; memory is bounded. A server that says nothing
//! is given up after five seconds, which a test looks at.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::{Input, memory};
use ring3_backend::{OpenOptions, Uri};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_model::vfio_user::Channel;
use ring3_spec::pci;
use ring3_spec::vfio_user::*;

const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that the client allocates.
const MEMORY: usize = 16 << 20;
/// Bytes of BAR 0.
const BAR: u64 = 4096;

/// A function with one BAR, two messages of each kind and the pin.
struct Server<'a> {
    input: Input<'a>,
    config: [u8; 256],
    /// Descriptors that a server keeps.
    held: Vec<OwnedFd>,
    /// All answers were good so far.
    good: bool,
    /// There are no answers any more.
    over: Arc<AtomicBool>,
    /// Bytes of BAR 0, as they were said.
    bar: u64,
}

impl<'a> Server<'a> {
    fn new(input: Input<'a>, over: Arc<AtomicBool>) -> Self {
        let mut config = [0; 256];
        config[..4].copy_from_slice(&[0x34, 0x12, 0xe8, 0x11]);
        config[6] = 0x10;
        config[0x34] = 0x40;
        config[0x40..0x44].copy_from_slice(&[0x05, 0x60, 0x82, 0x00]);
        config[0x60..0x6c].copy_from_slice(&[0x11, 0, 1, 0, 0, 8, 0, 0, 0, 12, 0, 0]);
        Self { input, config, held: Vec::new(), good: true, over, bar: 0 }
    }

    /// What a good server answers.
    fn answer(&mut self, command: u16, body: &[u8]) -> Vec<u8> {
        match command {
            command::VERSION => Version { major: VERSION.0, minor: VERSION.1 }.to_bytes().to_vec(),
            command::DEVICE_GET_INFO => {
                let flags = DEVICE_PCI | DEVICE_RESETTABLE;
                let argsz = DeviceInfo::LEN as u32;
                let info = DeviceInfo { argsz, flags, regions: PCI_REGIONS, irqs: PCI_IRQS };
                info.to_bytes().to_vec()
            }
            command::DEVICE_GET_REGION_INFO => {
                let asked = RegionInfo::take(body).map_or(0, |(asked, _)| asked.index);
                let size = match asked {
                    0 => BAR,
                    CONFIG_REGION => 256,
                    _ => 0,
                };
                let argsz = RegionInfo::LEN as u32;
                let flags = REGION_READ_WRITE;
                RegionInfo { argsz, flags, index: asked, cap_offset: 0, size, offset: 0 }
                    .to_bytes()
                    .to_vec()
            }
            command::DEVICE_GET_IRQ_INFO => {
                let index = IrqInfo::take(body).map_or(0, |(asked, _)| asked.index);
                let count = [1, 2, 2, 0, 0].get(index as usize).copied().unwrap_or(0);
                let argsz = IrqInfo::LEN as u32;
                IrqInfo { argsz, flags: IRQ_EVENTFD, index, count }.to_bytes().to_vec()
            }
            command::REGION_READ => {
                let Some((access, _)) = RegionAccess::take(body) else { return Vec::new() };
                let mut answer = access.to_bytes().to_vec();
                let at = access.offset as usize % 256;
                let known = self.config.get(at..at + access.count as usize);
                match known.filter(|_| access.region == CONFIG_REGION) {
                    Some(bytes) => answer.extend_from_slice(bytes),
                    None => answer.extend(std::iter::repeat_n(0x11, access.count as usize)),
                }
                answer
            }
            command::REGION_WRITE => {
                let Some((access, data)) = RegionAccess::take(body) else { return Vec::new() };
                if access.region == CONFIG_REGION && access.offset < 256 {
                    let bytes = self.config[access.offset as usize..].iter_mut().zip(data);
                    bytes.for_each(|(byte, data)| *byte = *data);
                }
                access.to_bytes().to_vec()
            }
            command::DMA_UNMAP => body.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Answers until the connection ends.
    fn serve(&mut self, stream: UnixStream) {
        let channel = Channel::new(stream.try_clone().unwrap(), PATIENCE).unwrap();
        while let Ok(Some((request, body))) = channel.receive() {
            self.held.extend(body.fds);
            if let Some((access, _)) = RegionAccess::take(&body.bytes).filter(|_| {
                [command::REGION_READ, command::REGION_WRITE].contains(&request.command)
            }) {
                let len = if access.region == CONFIG_REGION { 256 } else { self.bar };
                let end = access.offset.checked_add(access.count.into());
                assert!(end.is_some_and(|end| end <= len), "{access:?} is outside of its region");
            }
            let good = self.answer(request.command, &body.bytes);
            if request.flags & NO_REPLY != 0 {
                continue;
            }
            if !self.reply(&channel, &stream, request, good) {
                break;
            }
        }
        self.over.store(true, Ordering::SeqCst);
        channel.close();
    }

    /// Sends `good`, or what the input says instead; whether the connection lives.
    fn reply(
        &mut self,
        channel: &Channel,
        mut stream: &UnixStream,
        request: Header,
        mut body: Vec<u8>,
    ) -> bool {
        let mut header = Header { flags: REPLY, ..request };
        let deed = self.input.u8();
        self.good &= deed < 128;
        match deed {
            0..128 => {}
            128..160 if !body.is_empty() => {
                let at = self.input.below(body.len());
                body[at] = self.input.u8();
            }
            160..176 if body.len() >= 8 => {
                let at = self.input.below(body.len() / 8) * 8;
                let word = self.input.choose(&[0, 1, u64::MAX, 1 << 63, u64::MAX - 4095, 1 << 47]);
                body[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            176..192 => {
                header.flags |= ERROR;
                header.error = self.input.near(&[0, 16, 22, u32::MAX.into(), 1 << 31]) as u32;
            }
            192..208 => body.truncate(self.input.below(body.len() + 1)),
            208..224 => body.extend_from_slice(self.input.bytes(32)),
            224..230 => header.id = header.id.wrapping_add(self.input.u16()),
            230..236 => header.command = self.input.u16(),
            236..242 => header.flags = self.input.u32(),
            242..250 => {
                let bytes = self.input.bytes(24);
                let _ = stream.write_all(bytes);
                return false;
            }
            _ => return false,
        }
        if header.command == command::DEVICE_GET_REGION_INFO
            && let Some((info, _)) = RegionInfo::take(&body)
        {
            // The answers come in the order of the BARs; of all the largest counts.
            self.bar = self.bar.max(info.size);
        }
        channel.send(header, [&body, &[]], &[]).is_ok()
    }
}

/// What a driver does.
fn drive(device: &dyn Device) -> Result<(), Error> {
    device.set_bus_master(true)?;
    for index in 0..pci::BAR_COUNT {
        let Some(info) = device.bar_info(index) else { continue };
        let bar = device.bar(index)?;
        for offset in [0, 4, info.len.wrapping_sub(4), info.len, u64::MAX - 3] {
            bar.write32(offset, bar.read32(offset));
            bar.write64(offset, bar.read64(offset));
        }
    }
    let limits = device.irq_limits();
    for kind in [IrqKind::MsiX, IrqKind::Msi, IrqKind::Intx] {
        if limits.of(kind) > 0 {
            for irq in device.irqs(kind, limits.of(kind).min(3))? {
                irq.mask()?;
                irq.unmask()?;
                irq.take()?;
            }
        }
    }
    device.config_write(0x3c, 1, 7)?;
    let buffer = device.dma().arena().alloc(64, 64)?;
    buffer.fill(1);
    device.reset()
}

fn place() -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join("s")
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let path = place();
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let uri: Uri = format!("vfio-user:{}", path.display()).parse().unwrap();
    let options = OpenOptions { arena: 1 << 16, ..OpenOptions::default() };
    let over = Arc::new(AtomicBool::new(false));
    let mut server = Server::new(Input::new(data), over.clone());
    std::thread::scope(|scope| {
        let serve = scope.spawn(|| {
            server.serve(listener.accept().unwrap().0);
            server.good
        });
        let driven = memory::bounded(MEMORY, || {
            let device = ring3_backend::vfio_user::open(&uri, options)?;
            let driven = drive(&device);
            if over.load(Ordering::SeqCst) {
                assert_eq!(device.config_read(0, 4), u32::MAX, "a device that is gone answers");
                assert!(matches!(device.reset(), Err(Error::Gone)));
            }
            driven
        });
        let good = serve.join().unwrap();
        assert!(!good || driven.is_ok(), "a good server is refused: {driven:?}");
    });
}
