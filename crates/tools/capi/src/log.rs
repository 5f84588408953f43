//! Where warnings of the layers below go: to standard error, unless the program has a log of its
//! own.

use std::sync::Once;

/// Has warnings written, once in a process; `RING3_LOG` chooses others.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::try_from_env("RING3_LOG")
            .unwrap_or_else(|_| "warn".into());
        // A program in Rust may have one already.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .without_time()
            .try_init();
    });
}
