//! Memory that a device reaches.

use std::ffi::c_int;
use std::os::raw::c_void;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use ring3::dma::{ring3_dma_address, ring3_dma_iova, ring3_dma_len};

use crate::outcome::Exclusive;

/// Bytes that a device reaches: an object with the buffer protocol, so memoryview, bytes and
/// numpy.frombuffer see them without a copy. The device may write them while a request is in
/// flight.
#[pyclass(frozen, module = "ring3")]
pub struct Buffer {
    /// Held, never looked at: whoever has this has the bytes.
    _handle: Exclusive<ring3::dma::Buffer>,
    address: usize,
    iova: u64,
    len: usize,
}

impl Buffer {
    /// Of a handle.
    pub fn of(mut handle: Exclusive<ring3::dma::Buffer>) -> Self {
        let buffer = handle.get();
        let (address, iova, len) =
            (ring3_dma_address(buffer) as usize, ring3_dma_iova(buffer), ring3_dma_len(buffer));
        Self { _handle: handle, address, iova, len }
    }

    /// Where `len` bytes from `offset` on lie; an error if the buffer does not have them.
    pub fn at(&self, offset: usize, len: usize) -> PyResult<*mut c_void> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            let text = format!("bytes {offset}+{len} of a buffer of {}", self.len);
            return Err(PyValueError::new_err(text));
        }
        Ok((self.address + offset) as *mut c_void)
    }

    /// Bytes from `offset` on.
    pub fn rest(&self, offset: usize) -> usize {
        self.len.saturating_sub(offset)
    }
}

#[pymethods]
impl Buffer {
    /// Where the device finds the first byte.
    #[getter]
    fn iova(&self) -> u64 {
        self.iova
    }

    /// Where the first byte is in this process.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<ring3.Buffer of {} bytes at {:#x}>", self.len, self.iova)
    }

    /// # Safety
    /// The interpreter's.
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = this.get();
        // SAFETY: `view` is the interpreter's; the bytes live as long as this object, which the
        // view holds.
        let result = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                this.as_ptr(),
                buffer.address as *mut c_void,
                buffer.len as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if result == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}
