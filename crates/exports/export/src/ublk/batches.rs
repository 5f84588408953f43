//! Commands for many requests at once, where the kernel has them (`UBLK_F_BATCH_IO`).
//!
//! One command stays with the kernel and says which tags have a request, in buffers that it chooses
//! from; another one gives all ends of a turn at once. A queue that always has many requests pays
//! for the pair once, where it had paid for each request; one that has a single request pays for
//! two commands in place of one.

use std::collections::VecDeque;
use std::io;

use super::uapi::{self, BatchElement, BatchHeader};

/// Names of commands, above all tags.
const FETCH: u64 = 1 << 32;
const PREPARE: u64 = 2 << 32;
const COMMIT: u64 = 3 << 32;
const KIND: u64 = !0 << 32;

/// Buffers of tags: a turn finds that many pieces at most. The kernel ends the fetch when none is
/// left, and it is given anew.
pub const BUFFERS: u16 = 32;

/// What a command for the kernel is, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub name: u64,
    pub operation: u8,
    pub header: BatchHeader,
    /// Where its elements are, which the kernel reads until the command has ended.
    pub elements: Option<u64>,
}

/// What has come of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum BatchEvent {
    /// Tags have a request: see [`Batches::next`]. The fetch goes on, or has to be given anew.
    Requests { fetch: bool },
    /// So many tags will have none any more.
    Aborted(usize),
}

/// What a queue of `depth` tags gathers and what the kernel holds of it. Pure: commands go out and
/// results come in by whoever has the io_uring.
pub struct Batches {
    queue: u16,
    /// Whether the kernel knows the buffers, and a fetch is there.
    prepared: bool,
    /// Buffers to lend, or ends, which no command has yet.
    gathered: Vec<BatchElement>,
    /// Lists that commands have, by their names, and others.
    lists: Vec<Vec<BatchElement>>,
    free: Vec<usize>,
    /// Tags that have come and were not dispatched.
    tags: VecDeque<u16>,
    /// Tags that have come and whose ends the kernel has not confirmed.
    held: usize,
    depth: usize,
    aborted: bool,
}

impl Batches {
    pub fn new(queue: u16, depth: u16) -> Self {
        let depth = depth.into();
        let (gathered, tags) = (Vec::with_capacity(depth), VecDeque::with_capacity(depth));
        Self {
            queue,
            prepared: false,
            gathered,
            lists: Vec::new(),
            free: Vec::new(),
            tags,
            held: 0,
            depth,
            aborted: false,
        }
    }

    /// The buffer of `tag`, and before that the result of its request, if it had one.
    #[inline]
    pub fn gather(&mut self, tag: u16, result: i32, addr: u64) {
        self.gathered.push(BatchElement { tag, buffer: 0, result, addr });
    }

    /// The command for what was gathered.
    #[inline]
    pub fn send(&mut self) -> Option<Command> {
        if self.gathered.is_empty() {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::with_capacity(self.depth));
            self.lists.len() - 1
        });
        std::mem::swap(&mut self.gathered, &mut self.lists[place]);
        let list = &self.lists[place];
        let (kind, operation) = if self.prepared {
            (COMMIT, uapi::IO_COMMIT_BATCH)
        } else {
            (PREPARE, uapi::IO_PREPARE_BATCH)
        };
        let (header, elements) =
            (BatchHeader::of(self.queue, list.len() as u16), Some(list.as_ptr() as u64));
        self.prepared = true;
        Some(Command { name: kind | place as u64, operation, header, elements })
    }

    /// The command that says which tags have a request, for as long as the queue is there.
    pub fn fetch(&self) -> Command {
        Command {
            name: FETCH,
            operation: uapi::IO_FETCH_BATCH,
            header: BatchHeader::of_tags(self.queue),
            elements: None,
        }
    }

    /// What it means that command `name` has ended, or gone on if there is `more`, with `result`.
    /// `tags` are the bytes that it has filled.
    pub fn handle_event(
        &mut self,
        name: u64,
        result: i32,
        more: bool,
        tags: &[u8],
    ) -> io::Result<BatchEvent> {
        if name & KIND != FETCH {
            return self.confirmed(name, result);
        }
        match result {
            uapi::RES_ABORT => {
                self.aborted = true;
                Ok(BatchEvent::Aborted(self.depth - self.held))
            }
            0.. => {
                let tags = tags.chunks_exact(2).map(|tag| u16::from_ne_bytes([tag[0], tag[1]]));
                let before = self.tags.len();
                self.tags.extend(tags);
                self.held += self.tags.len() - before;
                Ok(BatchEvent::Requests { fetch: !more })
            }
            // The kernel keeps what it had no buffer for.
            _ if result == -libc::ENOBUFS => Ok(BatchEvent::Requests { fetch: true }),
            _ => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    /// The kernel has taken a list.
    fn confirmed(&mut self, name: u64, result: i32) -> io::Result<BatchEvent> {
        let place = (name & !KIND) as usize;
        let Some(list) = self.lists.get_mut(place) else {
            return Err(io::Error::other(format!(
                "the kernel ended a command that there is not ({name:#x})"
            )));
        };
        let (count, bytes) = (list.len(), size_of_val(&list[..]) as i32);
        list.clear();
        self.free.push(place);
        match (name & KIND, result) {
            (_, ..0) => Err(io::Error::from_raw_os_error(-result)),
            (PREPARE, _) => Ok(BatchEvent::Requests { fetch: true }),
            (_, taken) if taken != bytes => Err(io::Error::other(format!(
                "the kernel took {taken} of {bytes} bytes of ends: a defect of ring3"
            ))),
            _ => {
                self.held -= count.min(self.held);
                Ok(if self.aborted {
                    BatchEvent::Aborted(count)
                } else {
                    BatchEvent::Requests { fetch: false }
                })
            }
        }
    }

    /// The first tag that has a request.
    #[inline]
    pub fn next(&mut self) -> Option<u16> {
        self.tags.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: i32 = size_of::<BatchElement>() as i32;

    /// Of two tags, which the kernel has.
    fn prepared() -> Batches {
        let mut batches = Batches::new(3, 2);
        batches.gather(0, 0, 4096);
        batches.gather(1, 0, 8192);
        let command = batches.send().unwrap();
        assert_eq!((command.operation, command.header.elements), (uapi::IO_PREPARE_BATCH, 2));
        assert_eq!(
            batches.handle_event(command.name, 0, false, &[]).unwrap(),
            BatchEvent::Requests { fetch: true }
        );
        batches
    }

    fn come(batches: &mut Batches, tags: &[u16]) {
        let bytes: Vec<u8> = tags.iter().flat_map(|tag| tag.to_ne_bytes()).collect();
        let event = batches.handle_event(FETCH, bytes.len() as i32, true, &bytes).unwrap();
        assert_eq!(event, BatchEvent::Requests { fetch: false });
    }

    fn taken(batches: &mut Batches) -> Vec<u16> {
        std::iter::from_fn(|| batches.next()).collect()
    }

    /// Ends `tags` in one command, which the kernel confirms.
    fn end(batches: &mut Batches, tags: &[u16]) -> BatchEvent {
        tags.iter().for_each(|&tag| batches.gather(tag, 512, 4096));
        let command = batches.send().unwrap();
        assert_eq!(command.operation, uapi::IO_COMMIT_BATCH);
        batches.handle_event(command.name, BYTES * tags.len() as i32, false, &[]).unwrap()
    }

    #[test]
    fn nothing_gathered_is_no_command() {
        assert_eq!(Batches::new(0, 1).send(), None);
    }

    #[test]
    fn ends_of_a_turn_go_in_one_command_of_the_queue_and_say_tag_result_and_buffer() {
        let mut batches = prepared();
        come(&mut batches, &[1, 0]);
        assert_eq!(taken(&mut batches), [1, 0]);
        batches.gather(1, -5, 8192);
        batches.gather(0, 512, 4096);
        let command = batches.send().unwrap();
        assert_eq!(
            (command.header.queue, command.header.elements, command.header.element_bytes),
            (3, 2, 16)
        );
        let list = &batches.lists[(command.name & !KIND) as usize];
        assert_eq!(list[0], BatchElement { tag: 1, buffer: 0, result: -5, addr: 8192 });
        assert_eq!(command.elements, Some(list.as_ptr() as u64));
    }

    #[test]
    fn a_list_that_the_kernel_has_is_not_used_for_the_next_command() {
        let mut batches = prepared();
        come(&mut batches, &[0, 1]);
        batches.gather(0, 0, 4096);
        let first = batches.send().unwrap();
        batches.gather(1, 0, 8192);
        let second = batches.send().unwrap();
        assert_ne!((first.name, first.elements), (second.name, second.elements));
    }

    #[test]
    fn a_fetch_that_found_no_buffer_is_given_anew() {
        assert_eq!(
            prepared().handle_event(FETCH, -libc::ENOBUFS, false, &[]).unwrap(),
            BatchEvent::Requests { fetch: true }
        );
    }

    #[test]
    fn a_queue_is_at_its_end_when_what_it_holds_was_confirmed() {
        let mut batches = prepared();
        come(&mut batches, &[1]);
        assert_eq!(
            batches.handle_event(FETCH, uapi::RES_ABORT, false, &[]).unwrap(),
            BatchEvent::Aborted(1)
        );
        assert_eq!(end(&mut batches, &[1]), BatchEvent::Aborted(1));
    }

    #[test]
    fn ends_that_the_kernel_did_not_take_are_an_error() {
        let mut batches = prepared();
        come(&mut batches, &[0, 1]);
        batches.gather(0, 0, 4096);
        batches.gather(1, 0, 8192);
        let command = batches.send().unwrap();
        assert!(
            batches
                .handle_event(command.name, BYTES, false, &[])
                .unwrap_err()
                .to_string()
                .contains("16 of 32")
        );
    }

    #[test]
    fn a_refused_command_is_its_error() {
        let mut batches = prepared();
        assert_eq!(
            batches.handle_event(FETCH, -libc::EINVAL, false, &[]).unwrap_err().raw_os_error(),
            Some(libc::EINVAL)
        );
        come(&mut batches, &[0]);
        batches.gather(0, 0, 4096);
        let command = batches.send().unwrap();
        assert_eq!(
            batches
                .handle_event(command.name, -libc::EBUSY, false, &[])
                .unwrap_err()
                .raw_os_error(),
            Some(libc::EBUSY)
        );
    }
}
