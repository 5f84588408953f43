//! The device layer for C, and for every language that calls C: `libring3`, whose interface is
//! `include/ring3.h`.
//!
//! # Shape
//! Each kind of handle has a file: [`device`], [`bar`], [`dma`], [`irq`]. A [`card`] and a [`disk`]
//! are what ring3 drives for the program, or the other way round: what the program drives, and
//! other programs use through `remote:PATH`.
//! [`share`] is memory in which requests to an exported disk need no copy. Of a card, `ring3d`
//! makes an interface when it has leased the device to the program.
//!
//! # Errors
//! A negative errno, by which a program decides, and a text for whoever reads it, which
//! [`ring3_error`](error::ring3_error) gives ([`error`]).
//!
//! # Trust
//! The caller keeps to the header: handles that are none are not recognised, as everywhere in C.
//! What a device says is input here as in Rust.

pub mod bar;
pub mod card;
pub mod device;
pub mod disk;
pub mod dma;
pub mod error;
pub mod irq;
pub mod journal;
mod leased;
mod log;
pub mod share;
mod signal;
mod waiting;
