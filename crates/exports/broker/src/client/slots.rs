//! What is with the server, by tags that it cannot make up: a place and, so that an end which came
//! twice is found, how often that was used.

use ring3_class::Error;

/// See the module.
pub struct Slots<T> {
    slots: Vec<ClientSlot<T>>,
    free: Vec<u16>,
}

struct ClientSlot<T> {
    generation: u16,
    busy: bool,
    value: T,
}

impl<T: Default> Slots<T> {
    /// Places for `depth`.
    pub fn new(depth: u16) -> Self {
        let slot = || ClientSlot { generation: 0, busy: false, value: T::default() };
        Self { slots: (0..depth).map(|_| slot()).collect(), free: (0..depth).rev().collect() }
    }

    /// How many places there are.
    pub fn depth(&self) -> u16 {
        self.slots.len() as u16
    }

    /// How many of them are free.
    pub fn room(&self) -> u16 {
        self.free.len() as u16
    }

    /// How many are not.
    pub fn in_flight(&self) -> u16 {
        self.depth() - self.room()
    }

    /// Takes a place, if one is free; its tag, and what was there before.
    #[inline]
    pub fn take(&mut self) -> Option<(u32, &mut T)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        slot.busy = true;
        Some((u32::from(index) | u32::from(slot.generation) << 16, &mut slot.value))
    }

    /// Frees the place of `tag`, with what is there. An error of one that is not taken, which
    /// changes nothing.
    #[inline]
    pub fn end(&mut self, tag: u32) -> Result<&mut T, Error> {
        let found = self
            .slots
            .get_mut(usize::from(tag as u16))
            .filter(|slot| slot.busy && slot.generation == (tag >> 16) as u16);
        let slot = found.ok_or_else(|| {
            Error::Protocol(format!("the server ends {tag:#x}, which is not in flight"))
        })?;
        slot.busy = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(tag as u16);
        Ok(&mut slot.value)
    }

    /// Frees a place that is taken, whichever, with what is there.
    pub fn end_any(&mut self) -> Option<&mut T> {
        let index = self.slots.iter().position(|slot| slot.busy)?;
        self.slots[index].busy = false;
        self.free.push(index as u16);
        Some(&mut self.slots[index].value)
    }
}

/// Fills places of `batch` with what `next` has, until it has no more or finds something wrong; how
/// many, and what that was. It is told after what came before it, which would be lost otherwise.
#[inline]
pub fn fill<T>(
    batch: &mut [T],
    mut next: impl FnMut(&mut T) -> Result<bool, Error>,
) -> (usize, Option<Error>) {
    for (count, place) in batch.iter_mut().enumerate() {
        match next(place) {
            Ok(true) => {}
            Ok(false) => return (count, None),
            Err(error) => return (count, Some(error)),
        }
    }
    (batch.len(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_good_for_one_end() {
        let mut slots = Slots::<u8>::new(2);
        let (tag, value) = slots.take().unwrap();
        *value = 7;
        assert_eq!((slots.in_flight(), slots.end(tag).copied().unwrap()), (1, 7));
        assert!(slots.end(tag).is_err() && slots.end(1).is_err() && slots.end(9).is_err());
        let again = slots.take().unwrap().0;
        assert!(again != tag && slots.end(tag).is_err());
        assert_eq!(slots.end_any().copied(), Some(7));
        assert!(slots.end_any().is_none() && slots.room() == 2);
    }
}
