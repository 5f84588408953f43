//! Losses and who is told of them.

use super::record::tests::kept;
use super::*;

fn flush(cache: &WriteCache, listener: &mut Listener) -> Result<(), IoError> {
    cache.end_flush(listener, cache.begin_flush())
}

fn open(kept: &PersistentWords, cycles: u64) -> WriteCache {
    WriteCache::open(Some(kept.clone()), ("serial", 1), PowerCount([cycles, 0]), false)
}

#[test]
fn a_write_that_ends_during_a_flush_is_not_covered_by_it() {
    let cache = WriteCache::default();
    cache.wrote(|| false);
    let number = cache.begin_flush();
    cache.wrote(|| false);
    assert_eq!((cache.end_flush(&mut cache.listen(), number), cache.mark_lost()), (Ok(()), true));
}

#[test]
fn a_loss_is_told_to_each_queue_once_and_to_all_its_flushes_under_way() {
    let cache = WriteCache::default();
    let mut queues = [cache.listen(), cache.listen()];
    cache.wrote(|| false);
    let flushes = [cache.begin_flush(), cache.begin_flush()];
    assert!(cache.mark_lost());
    for queue in &mut queues {
        assert_eq!(
            flushes.map(|number| cache.end_flush(queue, number)),
            [Err(IoError::Transport); 2]
        );
        assert_eq!(flush(&cache, queue), Ok(()));
    }
    assert_eq!(flush(&cache, &mut cache.listen()), Ok(()), "all were told before it came");
}

#[test]
fn a_queue_that_comes_before_all_were_told_is_told_too() {
    let cache = WriteCache::default();
    let (mut first, second) = (cache.listen(), cache.listen());
    cache.wrote(|| false);
    cache.mark_lost();
    assert!(flush(&cache, &mut first).is_err() && flush(&cache, &mut cache.listen()).is_err());
    cache.unsubscribe(&second);
    assert!(flush(&cache, &mut first).is_ok());
}

#[test]
fn nothing_is_lost_where_nothing_was_written_since_the_last_flush() {
    let cache = WriteCache::default();
    assert!(!cache.mark_lost());
    cache.wrote(|| false);
    assert_eq!((flush(&cache, &mut cache.listen()), cache.mark_lost()), (Ok(()), false));
}

#[test]
fn what_a_dead_driver_has_written_is_lost_with_the_power_and_all_queues_of_the_next_one_are_told() {
    let kept = kept();
    open(&kept, 1).wrote(|| false);
    let next = open(&kept, 2);
    let mut queues = [next.listen(), next.listen()];
    assert!(queues.iter_mut().all(|queue| flush(&next, queue).is_err()));
    assert!(queues.iter_mut().all(|queue| flush(&next, queue).is_ok()));
}

#[test]
fn what_a_dead_driver_has_written_is_still_to_be_flushed() {
    let kept = kept();
    open(&kept, 1).wrote(|| false);
    let next = open(&kept, 1);
    assert!(next.is_dirty() && next.mark_lost());
    assert!(flush(&next, &mut next.listen()).is_err());
}

#[test]
fn a_loss_that_a_dead_driver_has_told_nobody_is_told_by_the_next_one() {
    let kept = kept();
    let dead = open(&kept, 1);
    let (mut told, _untold) = (dead.listen(), dead.listen());
    dead.wrote(|| false);
    dead.mark_lost();
    assert!(flush(&dead, &mut told).is_err());
    let next = open(&kept, 1);
    assert!(flush(&next, &mut next.listen()).is_err());
    let last = open(&kept, 1);
    assert!(flush(&last, &mut last.listen()).is_ok());
}

#[test]
fn what_a_dead_driver_has_flushed_is_not_lost_with_the_power() {
    let kept = kept();
    let dead = open(&kept, 1);
    dead.wrote(|| false);
    flush(&dead, &mut dead.listen()).unwrap();
    let next = open(&kept, 2);
    assert!(flush(&next, &mut next.listen()).is_ok());
}

#[test]
fn a_record_that_makes_no_sense_counts_as_a_loss() {
    let kept = kept();
    drop(open(&kept, 1));
    (9..16).for_each(|word| kept.store(word, u64::MAX));
    let next = open(&kept, 1);
    assert!(flush(&next, &mut next.listen()).is_err());
}

#[test]
fn a_flush_that_is_to_cover_what_was_written_was_not_begun_by_that() {
    let cache = WriteCache::default();
    cache.wrote(|| false);
    let next = SavedCache::of(&cache).resume(None);
    assert!(!next.has_begun(1) && next.is_dirty());
    assert_eq!((flush(&next, &mut next.listen()), next.is_dirty()), (Ok(()), false));
}

#[test]
fn a_saved_cache_has_the_losses_that_its_queues_were_not_told_of() {
    let cache = WriteCache::default();
    let (mut told, untold) = (cache.listen(), cache.listen());
    cache.wrote(|| false);
    cache.mark_lost();
    assert!(flush(&cache, &mut told).is_err());
    let saved = SavedCache::of(&cache);
    assert!(saved.is_possible() && saved.lost);
    let next = saved.resume(None);
    let [mut told, mut untold] =
        [&told, &untold].map(|queue| SavedListener::of(queue).resume(&next));
    assert_eq!(
        (flush(&next, &mut told), flush(&next, &mut untold)),
        (Ok(()), Err(IoError::Transport))
    );
    // A driver of before there were numbers.
    let old = SavedCache { begun: 1, covering: 1, flushed: 1, lost: true, ..SavedCache::default() }
        .resume(None);
    assert!(flush(&old, &mut SavedListener::default().resume(&old)).is_err());
}
