//! Fault campaigns.
//!
//! # Shape
//! A [`Spec`] is one fault: what, when, in which driver; all of it follows from the campaign's seed
//! and the fault's number. [`mutate`] does to a process what a spec says. An [`Application`] has a
//! disk behind a driver that may die at any time, and knows what each block may hold. A [`Report`]
//! is what was seen, by kind, to be added to others.
//!
//! # What is promised, and what is not
//! Faults of the first class leave the driver's code and memory and the device's words alone: it is
//! killed, stops, runs out of something, or lies to its supervisor. After those, what was
//! acknowledged must be there. Those of the second class make a driver that is wrong, or a device:
//! what it writes to its own disk meanwhile, nobody can tell from what it should. These are counted
//! apart, as [`silent`](Tally::silent).
#![forbid(unsafe_code)]

mod application;
pub mod damage;
pub mod mutate;
mod report;
pub mod rules;
mod spec;
pub mod symbols;
mod wire;

pub use application::{Application, BLOCKS, Found};
pub use report::{Failure, Report, Share, Tally};
pub use spec::{Kind, Model, Spec, random};
pub use wire::{Packet, Verb, Wire};
