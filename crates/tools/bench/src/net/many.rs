//! Packets of one call of a socket.

use std::io;
use std::os::fd::AsRawFd;

/// Packets of one call, where there are many.
pub const BATCH: usize = 32;
/// More bytes than a packet has.
pub const ROOM: usize = 2048;

/// Memory for a batch of packets.
pub struct Many {
    bytes: Vec<u8>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// Where each came from, and goes to; empty for a socket with one end.
    addresses: Vec<libc::sockaddr_in>,
}

impl Many {
    pub fn new() -> Self {
        let mut bytes = vec![0; BATCH * ROOM];
        let piece = |piece: &mut [u8]| libc::iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: piece.len(),
        };
        let mut vectors: Vec<_> = bytes.chunks_mut(ROOM).map(piece).collect();
        let header = |vector: &mut libc::iovec| {
            // SAFETY: a header of zeroes names no address, no vectors and no control data.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (&raw mut *vector, 1);
            header
        };
        let headers = vectors.iter_mut().map(header).collect();
        Self { bytes, vectors, headers, addresses: Vec::new() }
    }

    /// The same for a socket without one: each packet has an address.
    pub fn with_addresses() -> Self {
        let mut many = Self::new();
        // SAFETY: an address of zeroes is one.
        many.addresses = (0..BATCH).map(|_| unsafe { std::mem::zeroed() }).collect();
        for (header, address) in many.headers.iter_mut().zip(&mut many.addresses) {
            header.msg_hdr.msg_name = (&raw mut *address).cast();
        }
        many
    }

    /// The first `count`, which were received, are as long when they are sent.
    pub fn keep_lengths(&mut self, count: usize) {
        for (vector, header) in self.vectors.iter_mut().zip(&self.headers).take(count) {
            vector.iov_len = (header.msg_len as usize).min(ROOM);
        }
    }

    /// Each packet has `length` bytes to send, or room for as many.
    pub fn prepare(&mut self, length: usize) {
        self.vectors.iter_mut().for_each(|vector| vector.iov_len = length.min(ROOM));
        let name = if self.addresses.is_empty() { 0 } else { size_of::<libc::sockaddr_in>() };
        self.headers
            .iter_mut()
            .for_each(|header| header.msg_hdr.msg_namelen = name as libc::socklen_t);
    }

    /// The bytes of a packet's place.
    #[inline]
    pub fn place(&mut self, number: usize) -> &mut [u8] {
        &mut self.bytes[number * ROOM..(number + 1) * ROOM]
    }

    /// Sends the first `count`; how many were taken.
    #[inline]
    pub fn send(&mut self, socket: &impl AsRawFd, count: usize) -> io::Result<u64> {
        let count = count.min(BATCH) as u32;
        // SAFETY: headers, vectors and bytes lie in vectors that are never made longer, so that
        // each points to the next as long as this value lives.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, 0) };
        u64::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Waits for a packet, and takes with it what else is there; how many.
    #[inline]
    pub fn receive(&mut self, socket: &impl AsRawFd) -> io::Result<u64> {
        let (headers, none) = (self.headers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: as above; the kernel writes into the bytes, to which no reference exists
        // meanwhile.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers, BATCH as u32, libc::MSG_WAITFORONE, none)
        };
        u64::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

// SAFETY: its pointers are to its own memory.
unsafe impl Send for Many {}
