//! What the supervisor says to its driver processes and to its users, and what they answer; nothing
//! of any of them.
//!
//! # Shape
//! Both protocols are JSON objects, one a packet, over a SOCK_SEQPACKET socket
//! (`ring3_lease::Channel`), with descriptors beside them. [`drive`] is the supervisor's with one
//! driver process, beside that process's lease; [`admin`] is the users' with the supervisor, and
//! [`status`] is what both the users and their programs read.
//!
//! # Trust
//! What a driver process reports is input: the supervisor believes nothing of it that it can see
//! for itself. What users ask is checked before it is done.
//!
//! # Versions
//! The first message of each says the version. Fields are only ever added, each with a default.
#![forbid(unsafe_code)]

pub mod admin;
pub mod drive;
pub mod status;
