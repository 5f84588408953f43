//! The medium: bytes that are kept only where something was written.

/// Bytes that are allocated together.
const CHUNK: usize = 256 << 10;
const ZEROES: [u8; 4096] = [0; 4096];

/// Sparse memory that reads as zeroes where nothing was written.
pub(crate) struct Store {
    chunks: Vec<Option<Box<[u8]>>>,
}

impl Store {
    pub(crate) fn new(len: u64) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with(len.div_ceil(CHUNK as u64) as usize, || None);
        Self { chunks }
    }

    /// Holds `len` bytes from now on: those that it has, as far as there is room for them.
    pub(crate) fn resize(&mut self, len: u64) {
        self.chunks.resize_with(len.div_ceil(CHUNK as u64) as usize, || None);
    }

    /// Gives the `len` bytes at `at` to `sink`, piece by piece, until it fails. Nothing beyond the
    /// end.
    pub(crate) fn read<E>(
        &self,
        at: u64,
        len: usize,
        mut sink: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let (chunk, start, piece) = locate(at + done as u64, len - done);
            let piece = match self.chunks.get(chunk) {
                Some(Some(bytes)) => {
                    sink(done, &bytes[start..start + piece])?;
                    piece
                }
                _ => {
                    let piece = piece.min(ZEROES.len());
                    sink(done, &ZEROES[..piece])?;
                    piece
                }
            };
            done += piece;
        }
        Ok(())
    }

    /// Lets `source` fill the `len` bytes at `at`, piece by piece, until it fails.
    pub(crate) fn write<E>(
        &mut self,
        at: u64,
        len: usize,
        mut source: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let (chunk, start, piece) = locate(at + done as u64, len - done);
            if let Some(slot) = self.chunks.get_mut(chunk) {
                let bytes = slot.get_or_insert_with(|| vec![0; CHUNK].into_boxed_slice());
                source(done, &mut bytes[start..start + piece])?;
            }
            done += piece;
        }
        Ok(())
    }

    /// Makes the `len` bytes at `at` read as zeroes; memory that is not needed any more is freed.
    pub(crate) fn zero(&mut self, at: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let (chunk, start, piece) = locate(at + done, (len - done).min(CHUNK as u64) as usize);
            match self.chunks.get_mut(chunk) {
                Some(slot) if piece == CHUNK => *slot = None,
                Some(Some(bytes)) => bytes[start..start + piece].fill(0),
                _ => {}
            }
            done += piece as u64;
        }
    }

    pub(crate) fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        let len = bytes.len();
        let copied: Result<(), std::convert::Infallible> = self.read(at, len, |offset, piece| {
            bytes[offset..offset + piece.len()].copy_from_slice(piece);
            Ok(())
        });
        let Ok(()) = copied;
    }

    pub(crate) fn copy_in(&mut self, at: u64, bytes: &[u8]) {
        let copied: Result<(), std::convert::Infallible> =
            self.write(at, bytes.len(), |offset, piece| {
                piece.copy_from_slice(&bytes[offset..offset + piece.len()]);
                Ok(())
            });
        let Ok(()) = copied;
    }
}

/// The chunk of byte `at`, where it is in it, and how much of `len` the chunk holds from there.
fn locate(at: u64, len: usize) -> (usize, usize, usize) {
    let start = (at % CHUNK as u64) as usize;
    ((at / CHUNK as u64) as usize, start, len.min(CHUNK - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_reads_as_zeroes() {
        let mut bytes = [1; 10_000];
        Store::new(1 << 30).copy_out(CHUNK as u64 - 5000, &mut bytes);
        assert_eq!(bytes, [0; 10_000]);
    }

    #[test]
    fn a_write_over_the_edge_of_a_chunk_is_read_back() {
        let mut store = Store::new(1 << 20);
        store.copy_in(CHUNK as u64 - 1, &[1, 2, 3]);
        let mut bytes = [0; 5];
        store.copy_out(CHUNK as u64 - 2, &mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3, 0]);
    }

    #[test]
    fn zeroing_a_whole_chunk_frees_it() {
        let mut store = Store::new(1 << 20);
        store.copy_in(CHUNK as u64 - 1, &[1, 2, 3]);
        store.zero(CHUNK as u64 - 1, CHUNK as u64 + 1);
        assert!(store.chunks[1].is_none());
        assert_eq!(store.chunks[0].as_ref().unwrap()[CHUNK - 1], 0);
    }
}
