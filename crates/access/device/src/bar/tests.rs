use std::sync::Mutex;

use super::*;

/// Remembers the accesses that reached it, and answers with its own pattern.
#[derive(Default)]
struct Calls(Mutex<Vec<(u64, usize, Option<u64>)>>);

impl Access for Calls {
    fn len(&self) -> u64 {
        64
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        self.0.lock().unwrap().push((offset, width, None));
        0x8877_6655_4433_2211
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        self.0.lock().unwrap().push((offset, width, Some(value)));
    }
}

impl Calls {
    fn take(&self) -> Vec<(u64, usize, Option<u64>)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A BAR of 64 bytes of which the first 16 are mapped, over zeros.
fn half_mapped() -> (Arc<Calls>, Bar, &'static AtomicBool) {
    let memory: &'static mut [u64; 2] = Box::leak(Box::new([0; 2]));
    let gone: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let calls = Arc::new(Calls::default());
    // SAFETY: the memory is never freed, and used by nobody else.
    let bar = unsafe { Bar::mapped(calls.clone(), NonNull::from(memory).cast(), 16, gone) };
    (calls, bar, gone)
}

#[test]
fn what_is_mapped_is_reached_without_a_call() {
    let (calls, bar, _) = half_mapped();
    bar.write32(4, 0x1234_5678);
    bar.write16(14, 0xabcd);
    assert_eq!(
        (bar.read32(4), bar.read8(7), bar.read64(0), bar.read16(14)),
        (0x1234_5678, 0x12, 0x1234_5678 << 32, 0xabcd)
    );
    assert_eq!(calls.take(), []);
}

#[test]
fn what_ends_behind_the_window_or_is_not_aligned_is_a_call() {
    let (calls, bar, _) = half_mapped();
    bar.write32(16, 1);
    bar.write64(12, 2);
    bar.write16(15, 3);
    bar.write32(2, 4);
    assert_eq!(
        calls.take(),
        [(16, 4, Some(1)), (12, 8, Some(2)), (15, 2, Some(3)), (2, 4, Some(4))]
    );
    assert_eq!((bar.read8(16), bar.read16(1)), (0x11, 0x2211));
}

#[test]
fn a_bar_with_another_rest_stays_mapped_before_it() {
    let (calls, bar, gone) = half_mapped();
    let rest = Arc::new(Calls::default());
    let split = bar.with_rest(8, rest.clone());
    drop(bar);
    split.write32(4, 7);
    split.write32(8, 8);
    assert_eq!((split.read32(4), split.mapped_len()), (7, 8));
    gone.store(true, Ordering::Relaxed);
    assert_eq!(split.read32(4), 0x4433_2211);
    assert_eq!((calls.take(), rest.take()), (vec![], vec![(8, 4, Some(8)), (4, 4, None)]));
}

#[test]
fn no_offset_is_so_large_that_it_reaches_the_window() {
    let (calls, bar, _) = half_mapped();
    for offset in [u64::MAX, u64::MAX - 3, 1 << 63, (1 << 63) + 4, 1 << 32] {
        bar.write32(offset, 1);
    }
    assert_eq!(calls.take().len(), 5);
}

#[test]
fn reads_of_a_window_whose_device_has_vanished_are_the_slow_ways() {
    let (calls, bar, gone) = half_mapped();
    gone.store(true, Ordering::Release);
    assert_eq!(bar.read32(0), 0x4433_2211);
    assert_eq!(calls.take(), [(0, 4, None)]);
}

#[test]
fn a_string_is_words_from_one_place_lowest_byte_first_without_the_rest() {
    let (calls, bar, _) = half_mapped();
    let mut bytes = [0; 5];
    bar.read_string16(32, &mut bytes);
    assert_eq!(bytes, [0x11, 0x22, 0x11, 0x22, 0]);
    bar.write_string32(36, &[1, 2, 3, 4, 5]);
    assert_eq!(calls.take(), [(32, 2, None), (32, 2, None), (36, 4, Some(0x0403_0201))]);
}
