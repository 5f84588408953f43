//! Intel's Gigabit Ethernet cards that are programmed as the 8254x was: 82540EM and 82545EM; 82573,
//! 82574 and 82583 ("e1000e"); 82576 ("igb").
//!
//! Written against `[8254x]`, `[82574]` and `[82576]`; `ring3_spec::e1000` names the documents.
//!
//! # Shape
//! [`E1000`] is the card: identity, link, filters. Each queue belongs to one thread. A packet that
//! is sent walks `queue.rs` (provide, return) and, if it asks for something of the card,
//! `offload.rs`. `card.rs` and `rings.rs` are the chapters about the registers.
//!
//! # Variants
//! `variant.rs` is the table of the members. They differ in `identity.rs` (how the NVM is read),
//! `rings.rs` (where a queue's registers are), `interrupts.rs` (which cause has which vector),
//! `context.rs` and `receiver.rs` (forms of descriptors).
//!
//! # Trust
//! What the card wrote is input: a length that cannot be is counted as an error, and the buffer
//! goes to the card again. Nothing that it wrote indexes memory unchecked.
//!
//! # Waiting
//! Every wait for a register has a deadline from `ring3_spec::e1000`. Nothing waits for the link.
//!
//! # Recovery
//! A transmitter that makes no progress, a receiver that has gone beyond a descriptor that it has
//! not written back, and a card that somebody else has reset are found by
//! [`tick`](ring3_device::wait::Source::tick), and mended by a reset of the card: buffers for
//! reception go to it again, and what was to be sent comes back and is counted as lost. After
//! CTRL.RST the card owns no memory, and that is the proof on which buffers return to their owner;
//! if it does not obey, the function is reset; if that fails, too, the buffers are never given
//! back.

mod card;
mod context;
mod counters;
mod driver;
mod filter;
mod identity;
mod interrupts;
mod link;
mod nic;
mod offload;
mod open;
mod options;
mod queue;
mod receive;
mod receiver;
mod recovery;
mod resume;
mod rings;
mod saved;
mod source;
mod transmitter;
mod variant;

pub use driver::DRIVER;
pub use nic::E1000;
pub use options::Options;
