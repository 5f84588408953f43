//! What a channel counts.

/// What a channel has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commands that were given to the drives, repeated ones counted each time.
    pub commands: u64,
    /// Commands that were repeated.
    pub repeats: u64,
    /// Software resets since the channel was opened.
    pub resets: u64,
    /// Times a drive was set to a slower transfer mode.
    pub slowdowns: u64,
    /// Commands whose end was found although no interrupt had come.
    pub lost_interrupts: u64,
    /// Interrupts while the command that ran had not ended.
    pub stray_interrupts: u64,
}
