//! A [`Disk`](ring3_class::block::Disk) as `/dev/vdX`.

mod config;
mod export;
mod request;
mod server;
mod thread;

pub(super) use config::PIECES;
pub use export::VduseExport;
