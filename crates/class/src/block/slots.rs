//! A fixed number of places, each used again after it was left.

/// Up to `capacity` values, found by their index. Never allocates after it was made.
pub(super) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u16>,
}

impl<T> Slots<T> {
    pub(super) fn new(capacity: u16) -> Self {
        Self { entries: (0..capacity).map(|_| None).collect(), free: (0..capacity).rev().collect() }
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Where `value` is from now on; gives it back if there is no place.
    pub(super) fn insert(&mut self, value: T) -> Result<u16, T> {
        let Some(index) = self.free.pop() else { return Err(value) };
        self.entries[usize::from(index)] = Some(value);
        Ok(index)
    }

    pub(super) fn get(&self, index: u16) -> Option<&T> {
        self.entries.get(usize::from(index))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u16) -> Option<&mut T> {
        self.entries.get_mut(usize::from(index))?.as_mut()
    }

    pub(super) fn remove(&mut self, index: u16) -> Option<T> {
        let value = self.entries.get_mut(usize::from(index))?.take()?;
        self.free.push(index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_after_it_was_left() {
        let mut slots = Slots::new(1);
        let index = slots.insert('a').unwrap();
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!((slots.remove(index), slots.remove(index)), (Some('a'), None));
        assert_eq!(slots.insert('c'), Ok(index));
    }

    #[test]
    fn a_place_that_does_not_exist_is_empty() {
        assert_eq!(Slots::<u8>::new(1).remove(9), None);
    }
}
