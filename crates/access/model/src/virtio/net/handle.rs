//! What a test does to a simulated card: the other end of its wire, and what goes wrong.

use super::VirtioNetHandle;

/// What goes wrong, as long as it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// A buffer is used that has no such number.
    UsesWhatIsNot,
    /// A buffer is used twice.
    UsesTwice,
    /// Of what is sent, one more is used than there is: the next in turn.
    UsesOneMore,
    /// A thousand entries more are said to be used than were.
    LeapsAhead,
    /// More bytes are said to be written than a buffer has.
    WritesTooMuch,
    /// Fewer than a header.
    WritesTooLittle,
    /// A packet takes no buffers.
    CountsNoBuffers,
    /// A packet takes more buffers than there are.
    CountsManyBuffers,
    /// A checksum belongs behind the packet's end.
    LiesAboutChecksums,
    /// A packet is cut in a way that nobody knows.
    LiesAboutSegments,
    /// No interrupt comes.
    LosesInterrupts,
    /// Commands of the control queue are not answered.
    IgnoresControl,
    /// Nothing goes wrong with the card: its wire takes nothing.
    WireIsFull,
    /// Neither packets nor commands are looked at.
    Hangs,
    /// A reset does not end.
    NeverResets,
    /// Nothing goes wrong: buffers are used in another order than they were made available in, as
    /// any card may do. One for reception is set aside as long as this lasts.
    UsesOutOfOrder,
}

impl VirtioNetHandle {
    /// A frame comes over the wire.
    pub fn send(&self, frame: &[u8]) {
        self.with(|model, bus| model.receive(bus, frame));
    }

    /// Takes the frames that came out of the card since the last call; the last 4096 if they are
    /// more. With `wire=test` only.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        self.with(|model, _| model.wire.take_sent())
    }

    /// Takes the link away, or gives it back.
    pub fn plug(&self, plugged: bool) {
        self.with(|model, bus| model.plug(bus, plugged));
    }

    /// Frames that found no buffer so far.
    pub fn missed(&self) -> u64 {
        self.with(|model, _| model.missed)
    }

    /// What goes wrong from now on.
    pub fn misbehave(&self, how: Option<InjectedFault>) {
        self.with(|model, bus| model.misbehave(bus, how));
    }

    /// The card says that it cannot go on without a reset.
    pub fn need_reset(&self) {
        self.with(|model, bus| model.function.need_reset(bus));
    }

    /// What a driver has told the card: its status.
    pub fn status(&self) -> u8 {
        self.with(|model, _| model.function.status)
    }
}
