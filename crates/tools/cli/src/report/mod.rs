//! `ring3 report`: all figures of the papers on one page.

pub mod list;
pub mod parts;
