//! What a device is to those who use it, whoever drives it.
//!
//! A class is the line between drivers below and exports and applications above: both sides know only it.
#![forbid(unsafe_code)]

pub mod block;
