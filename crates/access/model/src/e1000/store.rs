//! The registers as they were last written, by their places.

use ring3_spec::e1000::BAR_BYTES;
use ring3_spec::register::{Reg, Value};

/// All dwords of BAR 0.
pub(super) struct Store(Box<[u32]>);

impl Store {
    pub(super) fn new() -> Self {
        Self(vec![0; (BAR_BYTES / 4) as usize].into())
    }

    /// The register's fields.
    pub(super) fn get<T: Value<Raw = u32>, A>(&self, register: Reg<T, A>) -> T {
        T::from_raw(self.dword(register.offset()))
    }

    pub(super) fn set<T: Value<Raw = u32>, A>(&mut self, register: Reg<T, A>, value: T) {
        self.set_dword(register.offset(), value.into_raw());
    }

    /// The dword at `offset`; zero beyond the end.
    pub(super) fn dword(&self, offset: u64) -> u32 {
        self.0.get((offset / 4) as usize).copied().unwrap_or(0)
    }

    pub(super) fn set_dword(&mut self, offset: u64, value: u32) {
        if let Some(dword) = self.0.get_mut((offset / 4) as usize) {
            *dword = value;
        }
    }

    /// A counter goes up, and stops at its largest value. [82574 10.2.7]
    pub(super) fn count<A>(&mut self, counter: Reg<u32, A>) {
        self.set(counter, self.get(counter).saturating_add(1));
    }

    /// The same of one in two dwords, by `bytes`.
    pub(super) fn count_bytes<A>(&mut self, low: Reg<u32, A>, high: Reg<u32, A>, bytes: u64) {
        let sum =
            (u64::from(self.get(high)) << 32 | u64::from(self.get(low))).saturating_add(bytes);
        self.set_dword(low.offset(), sum as u32);
        self.set_dword(high.offset(), (sum >> 32) as u32);
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}
