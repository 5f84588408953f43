//! What a controller does otherwise than its specification, as real ones do.

/// A fault of its make, which it has all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// Identify returns the controller's structure for every CNS above 01h.
    NoCns02,
    /// Identify with CNS 03h is never answered.
    NoCns03,
    /// NGUID is another one after each start.
    BogusNid,
    /// CSTS reads as all ones for 2 s after CC.EN was cleared.
    SlowReady,
    /// It crashes when a queue has more than one command.
    SingleCommand,
    /// A submission queue of urgent priority is refused.
    NoUrgent,
    /// A completion queue with another vector than 0 is refused.
    SingleVector,
    /// It crashes at a command whose interrupt would be an MSI.
    BrokenMsi,
    /// The last entry of a page of PRP entries leads to the next one, also if no entry follows.
    ChainedLists,
    /// Write zeroes never ends.
    WriteZeroesHangs,
    /// It crashes at the first I/O command if it may change its power state by itself.
    BrokenApst,
    /// It crashes at the first I/O command if it may go to its deepest power state.
    BrokenDeepestState,
    /// A format is one of all namespaces, which the specification permits (FNA).
    FormatsAll,
}

/// All of them by their names.
pub(super) const QUIRKS: [(&str, Quirk); 13] = [
    ("no-cns-02", Quirk::NoCns02),
    ("no-cns-03", Quirk::NoCns03),
    ("bogus-nid", Quirk::BogusNid),
    ("slow-ready", Quirk::SlowReady),
    ("single-command", Quirk::SingleCommand),
    ("no-urgent", Quirk::NoUrgent),
    ("single-vector", Quirk::SingleVector),
    ("broken-msi", Quirk::BrokenMsi),
    ("chained-lists", Quirk::ChainedLists),
    ("write-zeroes-hangs", Quirk::WriteZeroesHangs),
    ("broken-apst", Quirk::BrokenApst),
    ("broken-deepest-state", Quirk::BrokenDeepestState),
    ("formats-all", Quirk::FormatsAll),
];
