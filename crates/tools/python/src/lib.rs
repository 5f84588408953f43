//! The package `ring3` for Python: ring3's drivers in the process of a program in Python.
//!
//! # Shape
//! What Python sees is what C sees: each class has a handle of `libring3`'s, and its methods are
//! the functions of that handle ([`disk`], [`card`], [`device`], [`memory`]). What asyncio needs is
//! written in Python, over the descriptors (`ring3/aio.py`).
//!
//! # Errors
//! A negative errno becomes an `OSError` of it, with the library's text.
//!
//! # Memory
//! A buffer is given back when Python has no name for it any more, not even a NumPy array. A
//! request in flight holds its buffer.

mod card;
mod device;
mod disk;
mod memory;
mod outcome;

use pyo3::prelude::*;

/// Drivers of devices in this process.
#[pymodule]
mod _ring3 {
    #[pymodule_export]
    use super::card::{Card, CardQueue};
    #[pymodule_export]
    use super::device::{Bar, Device, Irq};
    #[pymodule_export]
    use super::disk::{Disk, DiskInfo, DiskQueue};
    #[pymodule_export]
    use super::memory::Buffer;
}
