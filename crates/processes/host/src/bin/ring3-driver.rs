//! `ring3-driver`: what ring3d starts, and what gives up all rights but those to one device, or to
//! read one disk.
//!
//! A program of its own, with nothing in it but that: all of it is locked in memory, and its pages
//! are given back before the kernel gives a dead driver's disks to the next one.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use ring3_host::{drive, partitions};
use ring3_process::log;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(report_bug));
    let wanted = std::env::var("RING3_LOG").ok().and_then(|words| words.parse().ok());
    let filter = wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines =
        tracing_subscriber::fmt::layer().with_writer(log::writer).without_time().with_ansi(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    let words: Vec<_> = std::env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The name is for those who list processes.
        ["drive", _name] => drive(),
        ["partitions", block] => match block.parse() {
            Ok(block) => read_partitions(block),
            Err(_) => Err(format!("a block of {block:?} bytes")),
        },
        _ => Err("ring3d starts this program, and nobody else: sudo ring3d, or sudo \
                  ring3 run --user NAME"
            .into()),
    };
    let code = done.map_or_else(
        |why| {
            log::notice(format_args!("ring3-driver: {why}"));
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    );
    log::flush(log::LAST_LINES);
    code
}

/// Drives until the supervisor ends it.
fn drive() -> Result<(), String> {
    // SAFETY: descriptor 3 is what ring3d has started this process with; the log and the panic hook
    // open nothing, and this is the only call.
    let driven = unsafe { drive::inherited() }.and_then(drive::run);
    driven.map_err(|error| error.to_string())
}

/// Ends the process with its answer: what comes at the end besides takes a thread, and there is
/// none to be had.
fn read_partitions(block: u32) -> Result<(), String> {
    let read = partitions::run(block).map_err(|error| error.to_string());
    read.map(|()| std::process::exit(0))
}

/// The usual report of a panic waits for whoever reads it, with a lock that all who panic share.
fn report_bug(panic: &PanicHookInfo<'_>) {
    let trace = Backtrace::capture();
    match trace.status() {
        BacktraceStatus::Captured => {
            log::notice(format_args!("ring3-driver: a bug: {panic}\n{trace}"))
        }
        _ => log::notice(format_args!("ring3-driver: a bug: {panic}")),
    }
}
