//! Device models in this process, with one place for fault hooks.
