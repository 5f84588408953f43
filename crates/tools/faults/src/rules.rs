//! What a fault of a device is, in the words of those who make it: rules for its registers
//! (`ring3_decorator::plan`) and for its commands (`ring3_model::fault`).

use crate::spec::{Kind, Model, Spec};

/// The option of a device by which it goes wrong as `spec` says, from the `first`th access or
/// command at the earliest; `None` for a fault that is none of the device's.
pub fn option(spec: &Spec, spread: u64) -> Option<String> {
    match spec.kind {
        Kind::Registers | Kind::Dma => Some(format!("registers={}", registers(spec, spread))),
        Kind::Device => Some(format!("fault={}", commands(spec, spread))),
        _ => None,
    }
}

/// Rules for registers, and for memory that is written by what a register starts. The first comes
/// within `spread` accesses.
pub fn registers(spec: &Spec, spread: u64) -> String {
    let nth = 1 + spec.word(2) % spread;
    if spec.kind == Kind::Dma {
        let times = 1 + spec.word(3) % 4;
        return format!("damage/{:#x}:write:{nth}:{times}", spec.word(1));
    }
    let (bit, word) = (1u64 << (spec.word(1) % 32), spec.word(3));
    // Of half of them, one register of the first: what a controller says of itself lies there.
    let place = match spec.word(5) % 4 {
        0 => format!("#0@{:#x}", spec.word(6) % 0x40),
        1 => format!("#{}@{:#x}", spec.word(7) % 6, spec.word(6) % 0x180),
        _ => String::new(),
    };
    // A register that is named is read seldom.
    let nth = if place.is_empty() { nth } else { 1 + nth % 4 };
    match spec.word(0) % 10 {
        0 => format!("set/{bit:#x}:read{place}:{nth}:1"),
        1 => format!("clear/{bit:#x}:read{place}:{nth}:1"),
        2 => format!("set/{bit:#x}:read{place}:{nth}:all"),
        3 => format!("clear/{bit:#x}:read{place}:{nth}:all"),
        4 => format!("drop:read{place}:{nth}:1"),
        5 => format!("value/0x0:read{place}:{nth}:1"),
        6 => format!("drop:read{place}:{nth}:all"),
        7 => format!("value/{word:#x}:read{place}:{nth}:1"),
        8 => format!("value/{word:#x}:read{place}:{nth}:all"),
        _ => format!("remove:any:{nth}"),
    }
}

/// Rules for commands after which the device still works once it was fenced; none of them forgets
/// what was acknowledged. The first comes within `spread` commands.
pub fn commands(spec: &Spec, spread: u64) -> String {
    let bits = 1u16 << (spec.word(1) % 16);
    let delay = format!("delay/{}us", spec.word(1) % 20_000);
    let error = format!("error/{:#x}", 1 << (spec.word(1) % 8));
    let (wrong, invent) = (format!("wrong-id/{bits:#x}"), format!("invent/{bits:#x}"));
    let faults: &[&str] = match spec.model {
        Model::Nvme => &[
            "drop",
            &wrong,
            &invent,
            "duplicate",
            "wrong-phase",
            "reorder",
            &delay,
            "hang",
            // With "do not retry", or it is repeated and nobody sees it.
            "status/0x4281",
            "lose-interrupt",
            "storm/2000",
            "stray-dma",
            "function-reset",
            "fatal",
        ],
        Model::Virtio => &[
            "drop",
            &wrong,
            &invent,
            "duplicate",
            "reorder",
            &delay,
            "hang",
            "status/0x1",
            "lose-interrupt",
            "stray-dma",
            "function-reset",
            "fatal",
        ],
        Model::Ahci | Model::Ide => &[
            "drop",
            "duplicate",
            &delay,
            "hang",
            &error,
            "fault",
            "dma-error",
            "stuck",
            "lose-interrupt",
            "storm/2000",
            "busy-until-reset",
            "wrong-interrupt",
            "stray-dma",
        ],
    };
    let fault = faults[(spec.word(0) % faults.len() as u64) as usize];
    format!("{fault}:io:{}:{}", 1 + spec.word(4) % spread, 1 + spec.word(2) % 3)
}
