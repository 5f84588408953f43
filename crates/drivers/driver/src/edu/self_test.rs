//! Everything that the teaching device can do, step by step, each with what it proves.

use std::sync::Arc;
use std::time::Duration;

use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_spec::edu as spec;

use super::{Edu, TRANSFER_LIMIT};

/// The device takes 100 ms for a transfer; an emulator that is not scheduled takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// What the outside address is asked to keep, and what the device holds before it asks for it back.
const SECRET: u8 = 0x5a;
const COVER: u8 = 0xc3;

/// Something that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What was tried.
    pub step: &'static str,
    /// What came of it.
    pub result: String,
}

/// Tries everything on `device` and tells `report` each fact as it is known; fails at the first
/// step that does.
///
/// `outside` is a device address that the device must not reach, below [`REACH`](super::REACH): the
/// last step lets it write there and read back. Only do that behind an IOMMU, or where nothing is
/// at that address.
pub fn self_test(
    device: Arc<dyn Device>,
    outside: Option<u64>,
    report: &mut dyn FnMut(Fact),
) -> Result<(), Error> {
    let mut edu = Edu::attach(device)?;
    let mut fact = |step, result| report(Fact { step, result });
    let (major, minor) = edu.version()?;
    fact("identification", format!("version {major}.{minor}"));
    edu.check_liveness(0x1234_5678)?;
    fact("liveness", "answers with the inverse".into());
    fact("factorial, polled", factorial(&edu)?);
    fact("DMA, polled", round_trip(&edu)?);
    let limits = edu.device().irq_limits();
    if limits.msi > 0 {
        by_interrupt(&mut edu, IrqKind::Msi, ["MSI", "factorial, MSI", "DMA, MSI"], &mut fact)?;
    }
    if limits.intx > 0 {
        by_interrupt(&mut edu, IrqKind::Intx, ["INTx", "factorial, INTx", "DMA, INTx"], &mut fact)?;
    }
    edu.wait_by(None)?;
    if let Some(iova) = outside {
        fact("DMA outside of the arena", trespass(&edu, iova)?);
    }
    match edu.device().reset() {
        Ok(()) => {
            edu.check_liveness(0)?;
            fact("reset", "answers again".into());
        }
        // On the root bus of a PC, nothing resets a function that cannot do it by itself.
        Err(Error::Unsupported(why)) => fact("reset", why),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn by_interrupt(
    edu: &mut Edu,
    kind: IrqKind,
    steps: [&'static str; 3],
    fact: &mut dyn FnMut(&'static str, String),
) -> Result<(), Error> {
    edu.wait_by(Some(kind))?;
    for causes in [0x1, 0x8000_0000, 0x7fff_fffe] {
        edu.raise(causes);
        expect("interrupt causes", causes, edu.wait_interrupt(Deadline::after(LIMIT))?)?;
    }
    fact(steps[0], "raised and acknowledged 3 times".into());
    fact(steps[1], factorial(edu)?);
    fact(steps[2], round_trip(edu)?);
    Ok(())
}

fn factorial(edu: &Edu) -> Result<String, Error> {
    let twelve = edu.factorial(12, Deadline::after(LIMIT))?;
    expect("12!", 479_001_600, twelve)?;
    Ok(format!("12! = {twelve}"))
}

/// A pattern goes into the device and comes back into another buffer, whose neighbours stay as they
/// are.
fn round_trip(edu: &Edu) -> Result<String, Error> {
    let arena = edu.device().dma().arena();
    let pattern: Vec<u8> = (0..TRANSFER_LIMIT).map(|i| (i * 7 + i / 256) as u8).collect();
    let out = arena.alloc(TRANSFER_LIMIT, 16)?;
    out.write(0, &pattern)?;
    edu.send(out, Deadline::after(LIMIT))?;
    let back = edu.receive(arena.alloc(TRANSFER_LIMIT, 16)?, Deadline::after(LIMIT))?;
    let mut bytes = vec![0; TRANSFER_LIMIT];
    back.read(0, &mut bytes)?;
    match bytes.iter().zip(&pattern).position(|(got, sent)| got != sent) {
        None => Ok(format!("{TRANSFER_LIMIT} bytes there and back")),
        Some(at) => Err(Error::Protocol(format!(
            "byte {at} came back as {:#x}, not {:#x}",
            bytes[at], pattern[at]
        ))),
    }
}

/// The device writes a secret to `iova`, forgets it, and reads it back: if it can, nothing confines
/// it.
fn trespass(edu: &Edu, iova: u64) -> Result<String, Error> {
    let arena = edu.device().dma().arena();
    if let Some(own) = arena.regions().find(|own| iova < own.end() && iova + 64 > own.iova) {
        return Err(Error::Invalid(format!(
            "{iova:#x} lies in the device's own memory ({:#x} to {:#x})",
            own.iova,
            own.end()
        )));
    }
    let send = |byte| {
        let buffer = arena.alloc(64, 16)?;
        buffer.fill(byte);
        edu.send(buffer, Deadline::after(LIMIT))
    };
    send(SECRET)?;
    edu.transfer(iova, 64, spec::DMA_TO_MEMORY, Deadline::after(LIMIT))?;
    send(COVER)?;
    edu.transfer(iova, 64, 0, Deadline::after(LIMIT))?;
    let mut bytes = [0; 64];
    edu.receive(arena.alloc(64, 16)?, Deadline::after(LIMIT))?.read(0, &mut bytes)?;
    if bytes.contains(&SECRET) {
        return Err(Error::Fatal(format!(
            "nothing stopped the device from writing to {iova:#x}: it is not behind an IOMMU"
        )));
    }
    Ok(format!("blocked at {iova:#x}: what it wrote there is not there"))
}

fn expect(what: &str, wanted: u32, got: u32) -> Result<(), Error> {
    if wanted == got {
        Ok(())
    } else {
        Err(Error::Protocol(format!("{what}: {got:#x} instead of {wanted:#x}")))
    }
}
