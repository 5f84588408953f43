//! Tests of arenas that one process saves and another resumes.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::super::{DmaBuffer, Span};
use super::*;

const IOVA: u64 = 0x10_0000;

fn arena(bytes: usize) -> Arena {
    Arena::new(Region::new(bytes).unwrap(), IOVA)
}

/// What another process makes of `arena`: by other mappings of its files, and a state that went
/// through JSON.
fn adopt(arena: &Arena) -> Result<Arena, Error> {
    let regions =
        arena.regions().map(|placed| Arc::new(Region::from_fd(share(&placed.region)).unwrap()));
    let text = serde_json::to_string(&arena.save()).unwrap();
    Arena::adopt(regions.collect(), &serde_json::from_str(&text).unwrap())
}

fn share(region: &Region) -> OwnedFd {
    region.fd().unwrap().try_clone_to_owned().unwrap()
}

#[test]
fn what_was_taken_stays_taken_and_is_claimed_once_with_its_bytes() {
    let first = arena(1 << 16);
    let ring = first.alloc(4096, 4096).unwrap().tagged("ring");
    ring.write(7, b"written").unwrap();
    let second = adopt(&first).unwrap();
    assert_eq!(second.unclaimed(), [(ring.span(), "ring".to_owned())]);
    assert_eq!(second.free_bytes(), first.free_bytes());
    let claimed = second.claim(ring.span()).unwrap();
    let mut bytes = [0; 7];
    claimed.read(7, &mut bytes).unwrap();
    assert_eq!((&bytes, claimed.iova()), (b"written", ring.iova()));
    assert!(
        matches!(second.claim(ring.span()), Err(Error::Invalid(_)))
            && second.unclaimed().is_empty()
    );
    drop(claimed);
    assert_eq!(second.free_bytes(), second.len());
    assert!(second.claim(ring.span()).is_err());
}

#[test]
fn what_nobody_claims_is_released_and_what_is_claimed_is_not() {
    let first = arena(1 << 16);
    let (ring, scrap) = (first.alloc(4096, 4096).unwrap(), first.alloc(512, 1).unwrap());
    let second = adopt(&first).unwrap();
    let claimed = second.claim(ring.span()).unwrap();
    second.release();
    assert_eq!(second.free_bytes(), second.len() - 4096);
    assert!(second.claim(scrap.span()).is_err());
    drop(claimed);
}

#[test]
fn a_range_that_was_given_up_for_good_can_be_claimed_by_who_has_stopped_the_device() {
    let first = arena(1 << 16);
    let mut lost = first.alloc(4096, 4096).unwrap().tagged("lost");
    lost.abandon();
    assert_eq!(
        adopt(&first).unwrap().unclaimed(),
        [(Span { region: 0, len: 4096, offset: 0 }, "lost".to_owned())]
    );
}

#[test]
fn only_a_whole_range_that_was_saved_can_be_claimed() {
    let first = arena(1 << 16);
    let ring = first.alloc(4096, 4096).unwrap();
    let (second, span) = (adopt(&first).unwrap(), ring.span());
    let own = second.alloc(4096, 4096).unwrap();
    let wrong = [
        Span { len: 4095, ..span },
        Span { offset: 1, ..span },
        Span { region: 1, ..span },
        Span { offset: u64::MAX, ..span },
    ];
    assert!(wrong.into_iter().chain([own.span()]).all(|span| second.claim(span).is_err()));
}

#[test]
fn a_state_that_is_none_of_these_regions_is_refused() {
    let first = arena(1 << 16);
    let _ring = first.alloc(4096, 4096).unwrap();
    let region =
        || Arc::new(Region::from_fd(share(&first.regions().next().unwrap().region)).unwrap());
    let refused = |regions: Vec<Arc<Region>>, change: &dyn Fn(&mut SavedArena)| {
        let mut saved = first.save();
        change(&mut saved);
        let error = Arena::adopt(regions, &saved).err().expect("it is refused").to_string();
        assert!(error.contains("the saved state of an arena is not used"), "{error}");
    };
    refused(vec![], &|_| ());
    refused(vec![region(), region()], &|_| ());
    refused(vec![region(), region()], &|saved| saved.regions.push(saved.regions[0].clone()));
    refused(vec![Arc::new(Region::new(4 << 20).unwrap())], &|_| ());
    refused(vec![region()], &|saved| saved.version = 2);
    refused(vec![region()], &|saved| saved.regions[0].iova = u64::MAX - 1);
    refused(vec![region()], &|saved| saved.regions[0].end += 1);
    refused(vec![region()], &|saved| saved.regions[0].start = saved.regions[0].end + 1);
    refused(vec![region()], &|saved| saved.regions[0].start = 4096);
    refused(vec![region()], &|saved| saved.regions[0].taken[0].len = 0);
    refused(vec![region()], &|saved| saved.regions[0].taken[0].len = u64::MAX);
    refused(vec![region()], &|saved| saved.regions[0].taken[0].offset = u64::MAX);
    refused(vec![region()], &|saved| {
        let twice = SavedRange { offset: 4095, ..saved.regions[0].taken[0].clone() };
        saved.regions[0].taken.push(twice);
    });
}

/// One thing that a user of an arena does.
#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, u32),
    Free(usize),
    Grow,
    Adopt { claims: u64, release: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (1usize..9000, 0u32..13).prop_map(|(len, align)| Step::Alloc(len, align)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Grow),
        2 => {
            (any::<u64>(), any::<bool>()).prop_map(
                |(claims, release)| Step::Adopt { claims, release }
            )
        },
    ];
    prop::collection::vec(step, 1..60)
}

fn check_ranges(arena: &Arena, held: &[DmaBuffer]) -> Result<(), TestCaseError> {
    let mut spans: Vec<_> = held
        .iter()
        .map(DmaBuffer::span)
        .chain(arena.unclaimed().into_iter().map(|(span, _)| span))
        .collect();
    spans.sort_by_key(|span| (span.region, span.offset));
    for pair in spans.windows(2) {
        prop_assert!(
            pair[0].region < pair[1].region
                || pair[0].offset + u64::from(pair[0].len) <= pair[1].offset
        );
    }
    prop_assert!(spans.iter().all(|&span| arena.segment(span).is_some()));
    let taken: usize = spans.iter().map(|span| span.len as usize).sum();
    prop_assert_eq!(arena.free_bytes() + taken, arena.len());
    Ok(())
}

proptest! {
    #[test]
    fn ranges_stay_disjoint_and_inside_whoever_has_the_arena(steps in steps()) {
        let (mut arena, mut held) = (arena(1 << 16), Vec::<DmaBuffer>::new());
        for step in steps {
            match step {
                Step::Alloc(len, align) => held.extend(arena.alloc(len, 1 << align).ok()),
                Step::Free(which) if !held.is_empty() => drop(held.swap_remove(which % held.len())),
                Step::Free(_) => {}
                Step::Grow => {
                    let end = arena.regions().map(Placed::end).max().unwrap_or(0);
                    let region = Arc::new(Region::new(1 << 14).unwrap());
                    let len = region.len();
                    // Side by side with the last, which must not become one range.
                    arena.add(Placed { region, iova: end }, 0, len);
                }
                Step::Adopt { claims, release } => {
                    let next = adopt(&arena).unwrap();
                    held.clear();
                    arena = next;
                    for (i, (span, _)) in arena.unclaimed().into_iter().enumerate() {
                        if claims >> (i % 64) & 1 == 1 {
                            held.push(arena.claim(span).unwrap());
                            prop_assert!(arena.claim(span).is_err());
                        }
                    }
                    if release {
                        arena.release();
                    }
                }
            }
            check_ranges(&arena, &held)?;
        }
    }

    #[test]
    fn a_corrupt_state_is_an_error_or_an_arena_whose_ranges_are_sound(
        changes in prop::collection::vec(
            (
                any::<prop::sample::Index>(),
                prop_oneof![Just(0), Just(u64::MAX), 0u64..1 << 17, any::<u64>()],
            ),
            1..4,
        )
    ) {
        let first = arena(1 << 16);
        let held: Vec<_> =
            [4096, 100, 5000].iter().map(|&len| first.alloc(len, 64).unwrap()).collect();
        let mut text = serde_json::to_value(first.save()).unwrap();
        for (which, value) in changes {
            let mut numbers = Vec::new();
            collect(&mut text, &mut numbers);
            let which = which.index(numbers.len());
            *numbers[which] = value.into();
        }
        let regions = first
            .regions()
            .map(|placed| Arc::new(Region::from_fd(share(&placed.region)).unwrap()))
            .collect();
        let Ok(saved) = serde_json::from_value(text) else { return Ok(()) };
        if let Ok(second) = Arena::adopt(regions, &saved) {
            let claimed: Vec<_> = second
                .unclaimed()
                .into_iter()
                .map(|(span, _)| second.claim(span).unwrap())
                .collect();
            let inside = |buffer: &DmaBuffer| second.segment(buffer.span()).is_some();
            prop_assert!(claimed.iter().all(inside));
            claimed.iter().for_each(|buffer| buffer.fill(1));
        }
        drop(held);
    }
}

/// All numbers in `value`.
fn collect<'a>(value: &'a mut serde_json::Value, numbers: &mut Vec<&'a mut serde_json::Value>) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| collect(item, numbers)),
        serde_json::Value::Object(fields) => {
            fields.values_mut().for_each(|field| collect(field, numbers))
        }
        number if number.is_number() => numbers.push(number),
        _ => {}
    }
}

/// Set in the other process of the next test.
const OTHER: &str = "RING3_TEST_ADOPT";

/// That process: takes the arena's file and state from its standard input and goes on. Nothing
/// where it is run as a test of its own.
#[test]
fn the_process_that_goes_on() {
    if std::env::var_os(OTHER).is_none() {
        return;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut ancillary, mut text) = (RecvAncillaryBuffer::new(&mut space), vec![0; 4096]);
    let message = recvmsg(
        std::io::stdin(),
        &mut [rustix::io::IoSliceMut::new(&mut text)],
        &mut ancillary,
        RecvFlags::empty(),
    );
    text.truncate(message.unwrap().bytes);
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let region = Arc::new(Region::from_fd(fd.unwrap()).unwrap());
    let arena = Arena::adopt(vec![region], &serde_json::from_slice(&text).unwrap()).unwrap();
    let (span, tag) = arena.unclaimed().remove(0);
    let ring = arena.claim(span).unwrap();
    let mut bytes = [0; 5];
    ring.read(0, &mut bytes).unwrap();
    assert_eq!((tag.as_str(), &bytes), ("ring", b"hello"));
    ring.write(0, b"world").unwrap();
}

#[test]
fn an_arena_goes_from_one_process_to_another_over_a_socket() {
    let first = arena(1 << 16);
    let ring = first.alloc(4096, 4096).unwrap().tagged("ring");
    ring.write(0, b"hello").unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let name = "dma::saved::tests::the_process_that_goes_on";
    let mut other = Command::new(std::env::current_exe().unwrap());
    let other = other
        .args(["--exact", name])
        .env(OTHER, "1")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn();
    let text = serde_json::to_vec(&first.save()).unwrap();
    let (memory, mut space) = (
        share(&first.regions().next().unwrap().region),
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))],
    );
    let (fds, mut ancillary) = ([memory.as_fd()], SendAncillaryBuffer::new(&mut space));
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&ours, &[rustix::io::IoSlice::new(&text)], &mut ancillary, SendFlags::empty()).unwrap();
    assert!(other.unwrap().wait().unwrap().success());
    let mut bytes = [0; 5];
    ring.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"world");
}
