//! The vfio-user server: `ring3_model::vfio_user`, with a model behind it.
//!
//! The attacker is a client, which may send any bytes and any descriptors. The input is a list of
//! messages; most of them are well formed, with fields near the limits that are checked.
//!
//! Promises: no panic; each request that wants an answer has one, with its number and its command,
//! in order; an answer to a read has as many bytes as were asked for; nothing that was mapped for
//! the client stays mapped; time and memory are bounded.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::{Input, memory};
use ring3_device::OpenOptions;
use ring3_device::dma::Iommu;
use ring3_model::vfio_user::{Channel, VfioUserDevice, serve_client};
use ring3_spec::vfio_user::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const MODELS: [&str; 8] = [
    "sim:edu",
    "sim:nvme,size=1M",
    "sim:ahci,size=1M,ports=1",
    "sim:ide,size=1M",
    "sim:virtio-blk,size=1M",
    "sim:virtio-blk,size=1M,packed=on",
    "sim:e1000,wire=mirror",
    "sim:virtio-net,wire=mirror",
];
const LIMIT: Duration = Duration::from_secs(2);
/// Bytes that are sent, all before the server begins: the socket has room for them.
const MOST: usize = 64 << 10;
/// Bytes of all reads: answers larger than the socket's room are taken by a thread.
const MEMORY: usize = 64 << 20;
const PAGE: u64 = 4096;

/// A request that was sent.
struct Sent {
    id: u16,
    command: u16,
    quiet: bool,
    /// Bytes that its answer has behind the request's own structure, if it is a good one.
    data: Option<usize>,
}

fn memory_file(kind: u8) -> OwnedFd {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, if kind & 1 == 0 { 16 * PAGE } else { 100 }).unwrap();
    if kind & 6 != 0 {
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    }
    file
}

/// The body of a request: its bytes, and what its answer has behind its structure.
fn body(command: u16, input: &mut Input<'_>) -> (Vec<u8>, Option<usize>) {
    match command {
        command::VERSION => {
            let (major, minor) = if input.u8() < 250 { VERSION } else { (input.u16(), 9) };
            (Version { major, minor }.to_bytes().to_vec(), None)
        }
        command::DMA_MAP => {
            let wish = DmaMap {
                argsz: DmaMap::LEN as u32,
                flags: if input.u8() < 240 { DMA_READ_WRITE } else { input.u32() },
                offset: u64::from(input.u8() % 17) * PAGE,
                address: input.choose(&[0x1000, 0x10_0000, 1 << 32, u64::MAX - 4095, 0x1001]),
                size: u64::from(input.u8() % 18) * PAGE,
            };
            (wish.to_bytes().to_vec(), None)
        }
        command::DMA_UNMAP => {
            let flags = if input.u8() < 200 { 0 } else { DMA_UNMAP_ALL };
            let address = input.choose(&[0, 0x1000, 0x10_0000, 1 << 32]);
            let size = u64::from(input.u8() % 18) * PAGE;
            (
                DmaUnmap { argsz: DmaUnmap::LEN as u32, flags, address, size }.to_bytes().to_vec(),
                None,
            )
        }
        command::DEVICE_GET_REGION_INFO => {
            let argsz = RegionInfo::LEN as u32;
            let index = input.u8().into();
            (RegionInfo { argsz, index, ..RegionInfo::default() }.to_bytes().to_vec(), None)
        }
        command::DEVICE_GET_IRQ_INFO => {
            let index = input.u8().into();
            let argsz = IrqInfo::LEN as u32;
            (IrqInfo { argsz, index, ..IrqInfo::default() }.to_bytes().to_vec(), None)
        }
        command::DEVICE_SET_IRQS => {
            let flags = [
                IRQ_DATA_EVENTFD | IRQ_TRIGGER,
                IRQ_DATA_NONE | IRQ_TRIGGER,
                IRQ_DATA_NONE | IRQ_MASK,
                IRQ_DATA_NONE | IRQ_UNMASK,
            ];
            let wish = SetIrqs {
                argsz: SetIrqs::LEN as u32,
                flags: if input.u8() < 240 { input.choose(&flags) } else { input.u32() },
                index: u32::from(input.u8() % 6),
                start: input.near(&[0, 0, 0, u32::MAX.into()]) as u32,
                count: input.near(&[0, 1, 4, 2048]) as u32,
            };
            (wish.to_bytes().to_vec(), None)
        }
        command::REGION_READ | command::REGION_WRITE => {
            let region = u32::from(input.u8() % 10);
            let offset = match input.u8() % 8 {
                0 => input.near(&[0, 256, 4096, 1 << 14, u64::MAX]),
                _ => u64::from(input.u16() % 0x2000),
            };
            let count = match input.u8() {
                size @ 0..=199 => [1, 2, 4, 8][usize::from(size % 4)],
                200..=250 => u32::from(input.u8()),
                _ => input.near(&[0, MAX_DATA.into(), u32::MAX.into()]) as u32,
            };
            let mut bytes = RegionAccess { offset, region, count }.to_bytes().to_vec();
            if command == command::REGION_WRITE {
                bytes.extend_from_slice(input.bytes(count.min(256) as usize));
                return (bytes, None);
            }
            (bytes, Some(count as usize))
        }
        _ => (input.bytes(8).to_vec(), None),
    }
}

/// Sends what `input` says over `stream`: which requests these are, and whether other bytes came
/// behind them.
fn send(input: &mut Input<'_>, stream: &UnixStream) -> (Vec<Sent>, bool) {
    let channel = Channel::new(stream.try_clone().unwrap(), LIMIT).unwrap();
    let (mut sent, mut bytes, mut others) = (Vec::new(), 0, false);
    for id in 0..200 {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        let command = if id == 0 && kind < 250 { command::VERSION } else { u16::from(kind % 16) };
        if kind > 252 {
            others = true;
            let _ = (&*stream).write_all(input.rest());
            break;
        }
        let (body, data) = body(command, input);
        bytes += body.len() + Header::LEN;
        if bytes > MOST {
            break;
        }
        let flags = match input.u8() {
            0..=219 => 0,
            220..=250 => NO_REPLY,
            _ => input.u32(),
        };
        let files = match command {
            command::DMA_MAP => usize::from(!input.u8().is_multiple_of(8)),
            command::DEVICE_SET_IRQS => usize::from(input.u8() % 5),
            _ => usize::from(input.u8() > 250),
        };
        let files: Vec<_> = (0..files).map(|_| memory_file(input.u8())).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let header = Header { id, command, len: 0, flags, error: 0 };
        if channel.send(header, [&body, &[]], &files).is_err() {
            break;
        }
        sent.push(Sent { id, command, quiet: flags & NO_REPLY != 0, data });
    }
    (sent, others)
}

/// Compares the answers with the requests, behind which there may be `others`.
fn check(sent: &[Sent], others: bool, mut answers: &[u8]) {
    for request in sent.iter().filter(|request| !request.quiet) {
        let Some((header, _)) = Header::take(answers) else { break };
        let len = header.len as usize;
        assert!(len >= Header::LEN && len <= answers.len(), "an answer is cut off");
        assert_eq!((header.id, header.command), (request.id, request.command));
        assert!(header.flags & TYPE == REPLY, "an answer says that it is none");
        if let Some(data) = request.data.filter(|_| header.flags & ERROR == 0) {
            assert_eq!(len, Header::LEN + RegionAccess::LEN + data);
        }
        answers = &answers[len..];
    }
    assert!(others || answers.is_empty(), "there are more answers than requests");
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let uri = input.choose(&MODELS).parse().unwrap();
    let options = OpenOptions { arena: 4096, ..OpenOptions::default() };
    let device: Arc<dyn VfioUserDevice> = ring3_model::open(&uri, options).unwrap();
    // All device addresses are the client's.
    let (iova, len) = (device.dma().arena().iova(), device.dma().arena().len());
    let iommu: Arc<dyn Iommu> = device.dma().iommu().clone();
    iommu.unmap(iova, len).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (sent, others) = send(&mut input, &ours);
    ours.shutdown(Shutdown::Write).unwrap();
    let mut taken = &ours;
    let answers = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut answers = Vec::new();
            let _ = taken.read_to_end(&mut answers);
            answers
        });
        let channel = Channel::new(theirs, LIMIT).unwrap();
        memory::bounded(MEMORY, || drop(serve_client(device.clone(), &channel)));
        drop(channel);
        reader.join().unwrap()
    });
    check(&sent, others, &answers);
    // Where the client has mapped something, something else can be mapped.
    let region = ring3_device::dma::Region::new(4096).map(Arc::new).unwrap();
    let pages = region.pages().unwrap();
    for address in [0x1000, 0x10_0000] {
        iommu.map(&pages, address).expect("a client's memory stays mapped");
    }
}
