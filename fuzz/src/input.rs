//! Values from an input, one after the other.

/// The rest of an input. Behind its end everything is zero.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, or what is left of them.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// 8 bits.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// 16 bits.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// 32 bits.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// 64 bits.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `end`, which is not 0; of one byte where that is enough.
    pub fn below(&mut self, end: usize) -> usize {
        let number = if end <= 256 { self.u8().into() } else { self.u32() as usize };
        number % end
    }

    /// One of `choices`.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number near a limit: where lengths and addresses are checked, off-by-one errors are here.
    pub fn near(&mut self, limits: &[u64]) -> u64 {
        let limit = self.choose(limits);
        limit.wrapping_add_signed(i64::from(self.u8() as i8))
    }
}
