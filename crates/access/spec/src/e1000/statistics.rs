//! Counters: each is cleared by reading it, and stops at its largest value. [82574 10.2.7; 8254x
//! 13.7]

use crate::register::{ReadClears, Reg};

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident @ $offset:literal;)*) => {$(
        $(#[$meta])*
        pub const $name: Reg<u32, ReadClears> = Reg::at($offset);
    )*};
}

counters! {
    /// CRCERRS: frames with a wrong FCS.
    FCS_ERRORS @ 0x4000;
    /// ALGNERRC: frames that are no whole bytes.
    ALIGNMENT_ERRORS @ 0x4004;
    /// RXERRC: frames with an error of the PHY.
    WIRE_ERRORS @ 0x400c;
    /// MPC: frames lost because the packet buffer was full.
    MISSED @ 0x4010;
    /// COLC: collisions.
    COLLISIONS @ 0x4028;
    /// RLEC: frames whose length field is wrong.
    LENGTH_ERRORS @ 0x4040;
    /// GPRC: good frames received.
    RECEIVED @ 0x4074;
    /// BPRC: of them to everybody.
    RECEIVED_BROADCAST @ 0x4078;
    /// MPRC: of them to many.
    RECEIVED_MULTICAST @ 0x407c;
    /// GPTC: good frames sent.
    SENT @ 0x4080;
    /// GORCL: bytes of good frames received, low half; read before the high half, which clears
    /// both.
    RECEIVED_BYTES_LOW @ 0x4088;
    /// GORCH: high half.
    RECEIVED_BYTES_HIGH @ 0x408c;
    /// GOTCL: bytes of good frames sent, low half.
    SENT_BYTES_LOW @ 0x4090;
    /// GOTCH: high half.
    SENT_BYTES_HIGH @ 0x4094;
    /// RNBC: frames that found no descriptor, and waited in the packet buffer.
    NO_BUFFER @ 0x40a0;
    /// RUC: frames that were too short.
    UNDERSIZE @ 0x40a4;
    /// ROC: frames that were too long.
    OVERSIZE @ 0x40ac;
    /// TPR: all frames received.
    TOTAL_RECEIVED @ 0x40d0;
    /// TPT: all frames sent.
    TOTAL_SENT @ 0x40d4;
    /// MPTC: frames sent to many.
    SENT_MULTICAST @ 0x40f0;
    /// BPTC: frames sent to everybody.
    SENT_BROADCAST @ 0x40f4;
    /// TSCTC: large sends.
    LARGE_SENDS @ 0x40f8;
}

/// Where the counters begin.
pub const FIRST: u64 = 0x4000;
/// Behind the last one.
pub const END: u64 = 0x4124;
