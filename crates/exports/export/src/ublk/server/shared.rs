//! Requests that lie in clients' memory, which nobody copies.

use std::io;
use std::sync::Arc;

use ring3_class::block::{Data, IoError};

use super::UblkQueueServer;
use crate::ublk::regions::{Regions, View};
use crate::ublk::uapi::{self, Descriptor};

impl UblkQueueServer<'_> {
    /// Requests may lie in memory of `regions` from now on.
    pub fn share(&mut self, regions: Arc<Regions>) {
        self.view = Some(View::new(regions));
    }

    /// Where the `bytes` of a read or write are; `None` if they are said to be where nothing is.
    #[inline]
    pub(super) fn find(&mut self, tag: u16, descriptor: &Descriptor, bytes: u32) -> Option<Data> {
        let (view, slot) = (self.view.as_mut()?, &mut self.slots[usize::from(tag)]);
        if descriptor.op_flags & uapi::IO_F_SHMEM_ZC == 0 {
            self.class.counters.shared_misses.add((!view.is_empty()).into());
            return Some(slot.buffer.take().map_or(Data::None, Data::Buffer));
        }
        let (index, data) = view.data(descriptor.addr, bytes)?;
        slot.region = Some(index);
        self.class.counters.shared_hits.add(1);
        self.class.recorder.hit_shared();
        Some(data)
    }

    /// Ends a request that lay in the memory `index`. If the driver keeps its data, because its
    /// device may still write there, the device is cut off from all of that memory before: whoever
    /// waits for the request has the bytes to himself when it has ended.
    pub(super) fn complete_shared(
        &mut self,
        tag: u16,
        index: u16,
        end: Result<(), IoError>,
        data: Data,
    ) -> io::Result<()> {
        if let Data::Segments(list) = data {
            if let Some(view) = &mut self.view {
                view.give_back(index, list);
            }
            return self.finish(tag, end);
        }
        self.slots[usize::from(tag)].region = Some(index);
        self.cut_off(tag.into())?;
        self.class.fail_lost_buffer()?;
        self.finish(tag, end.and(Err(IoError::Transport)))
    }

    /// Cuts the device off from the memory that the request of `tag` lies in, if that is a
    /// client's. An error is the end of this queue, without one of the request: only the end of the
    /// process takes the memory from the device then.
    #[cold]
    pub(super) fn cut_off(&mut self, tag: usize) -> io::Result<()> {
        let Some(index) = self.slots[tag].region.take() else { return Ok(()) };
        let cut = self.view.as_ref().map_or(Ok(()), |view| view.cut(index));
        cut.map_err(|error| {
            io::Error::other(format!(
                "the device cannot be cut off from a client's memory: {error}"
            ))
        })
    }

    /// Lets go of memory that is not there any more.
    pub(super) fn release_removed_regions(&mut self) {
        if let Some(view) = &mut self.view {
            view.is_empty();
        }
    }
}
