//! Devices for whoever writes a driver in Python: registers, memory, interrupts.

use std::ffi::c_int;
use std::ptr::null_mut;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ring3::bar::{ring3_bar_len, ring3_bar_open, ring3_bar_read, ring3_bar_write};
use ring3::device::{
    Options, ring3_config_read, ring3_config_write, ring3_name, ring3_open, ring3_reset,
    ring3_set_bus_master,
};
use ring3::dma::ring3_dma_alloc;
use ring3::irq::{
    RING3_INTX, RING3_MSI, RING3_MSIX, ring3_irq_count, ring3_irq_fd, ring3_irq_mask,
    ring3_irq_open, ring3_irq_take, ring3_irq_unmask, ring3_irq_wait,
};

use crate::memory::Buffer;
use crate::outcome::{Exclusive, c_text, opened, result, text, wait_for};

/// One PCI function, claimed exclusively.
#[pyclass(module = "ring3")]
pub struct Device {
    handle: Option<Exclusive<ring3::device::Device>>,
    #[pyo3(get)]
    name: String,
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (uri, *, arena=0, below=0, unprotected=false))]
    fn new(py: Python<'_>, uri: &str, arena: u64, below: u64, unprotected: bool) -> PyResult<Self> {
        let (uri, options) = (c_text(uri)?, Options { arena, below, unprotected });
        let mut handle = py.detach(|| {
            let mut device = null_mut();
            // SAFETY: a text, options and a place.
            let number = unsafe { ring3_open(uri.as_ptr(), &options, &mut device) };
            opened(number, device)
        })?;
        let name = text(ring3_name(handle.get()));
        Ok(Self { handle: Some(handle), name })
    }

    /// Reads 1, 2 or 4 bytes of configuration space.
    #[pyo3(signature = (offset, width=4))]
    fn config_read(&mut self, offset: u64, width: u32) -> PyResult<u32> {
        Ok(ring3_config_read(self.open()?, offset, width))
    }

    /// Writes 1, 2 or 4 bytes of configuration space.
    #[pyo3(signature = (offset, value, width=4))]
    fn config_write(&mut self, offset: u64, value: u32, width: u32) -> PyResult<()> {
        result(ring3_config_write(self.open()?, offset, width, value)).map(drop)
    }

    /// Opens the range of a base address register.
    fn bar(&mut self, index: u8) -> PyResult<Bar> {
        let mut bar = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_bar_open(self.open()?, index, &mut bar) };
        Ok(Bar(opened(number, bar)?))
    }

    /// Zeroed memory that the device reaches, at a multiple of `align`.
    #[pyo3(signature = (len, align=4096))]
    fn alloc(&mut self, len: usize, align: usize) -> PyResult<Buffer> {
        let mut buffer = null_mut();
        // SAFETY: a place.
        let number = unsafe { ring3_dma_alloc(self.open()?, len, align, &mut buffer) };
        Ok(Buffer::of(opened(number, buffer)?))
    }

    /// Allows or forbids the device to start transfers.
    fn set_bus_master(&mut self, on: bool) -> PyResult<()> {
        result(ring3_set_bus_master(self.open()?, on)).map(drop)
    }

    /// Resets the device.
    fn reset(&mut self) -> PyResult<()> {
        result(ring3_reset(self.open()?)).map(drop)
    }

    /// How many vectors of "intx", "msi" or "msix" it has.
    fn irq_count(&mut self, how: &str) -> PyResult<u16> {
        Ok(ring3_irq_count(self.open()?, kind(how)?))
    }

    /// Enables the first `count` vectors of "intx", "msi" or "msix", and disables what was enabled
    /// before.
    #[pyo3(signature = (how, count=1))]
    fn irqs(&mut self, how: &str, count: u16) -> PyResult<Vec<Irq>> {
        let mut handles = vec![null_mut(); count.into()];
        // SAFETY: so many places.
        let number =
            unsafe { ring3_irq_open(self.open()?, kind(how)?, count, handles.as_mut_ptr()) };
        handles.into_iter().map(|irq| Ok(Irq(opened(number, irq)?))).collect()
    }

    /// Gives the device up when nothing that was opened of it is left.
    fn close(&mut self) {
        self.handle = None;
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        format!("<ring3.Device {}>", self.name)
    }
}

impl Device {
    fn open(&mut self) -> PyResult<&mut ring3::device::Device> {
        let closed = || PyValueError::new_err("the device is closed");
        Ok(self.handle.as_mut().ok_or_else(closed)?.get())
    }
}

fn kind(how: &str) -> PyResult<u32> {
    match how {
        "intx" => Ok(RING3_INTX),
        "msi" => Ok(RING3_MSI),
        "msix" => Ok(RING3_MSIX),
        other => Err(PyValueError::new_err(format!("{other:?} is no interrupt: intx, msi, msix"))),
    }
}

/// Registers: the range of a base address register.
#[pyclass(module = "ring3")]
pub struct Bar(Exclusive<ring3::bar::Bar>);

#[pymethods]
impl Bar {
    /// Reads 1, 2, 4 or 8 bytes; all ones of a device that is gone.
    #[pyo3(signature = (offset, width=4))]
    fn read(&mut self, offset: u64, width: u32) -> PyResult<u64> {
        self.check(offset, width)?;
        Ok(ring3_bar_read(self.0.get(), offset, width))
    }

    /// Writes 1, 2, 4 or 8 bytes.
    #[pyo3(signature = (offset, value, width=4))]
    fn write(&mut self, offset: u64, value: u64, width: u32) -> PyResult<()> {
        self.check(offset, width)?;
        ring3_bar_write(self.0.get(), offset, width, value);
        Ok(())
    }

    fn __len__(&mut self) -> usize {
        ring3_bar_len(self.0.get()) as usize
    }
}

impl Bar {
    fn check(&mut self, offset: u64, width: u32) -> PyResult<()> {
        let len = ring3_bar_len(self.0.get());
        let within = offset.checked_add(width.into()).is_some_and(|end| end <= len);
        if within && matches!(width, 1 | 2 | 4 | 8) {
            return Ok(());
        }
        let text = format!("a register of {width} bytes at {offset:#x} of a BAR of {len:#x}");
        Err(PyValueError::new_err(text))
    }
}

/// One interrupt vector.
#[pyclass(module = "ring3")]
pub struct Irq(Exclusive<ring3::irq::Irq>);

#[pymethods]
impl Irq {
    /// The descriptor for an event loop: readable when it was raised.
    fn fileno(&mut self) -> PyResult<c_int> {
        result(ring3_irq_fd(self.0.get()))
    }

    /// How often it was raised since it was last taken.
    fn take(&mut self) -> PyResult<u64> {
        let mut count = 0;
        // SAFETY: a number.
        result(unsafe { ring3_irq_take(self.0.get(), &mut count) })?;
        Ok(count)
    }

    /// Waits until it is raised, at most `timeout` seconds, and takes it: 0 at their end.
    #[pyo3(signature = (timeout=None))]
    fn wait(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let irq = &mut self.0;
        wait_for(py, timeout, |ms| {
            let mut count = 0;
            // SAFETY: a number.
            result(unsafe { ring3_irq_wait(irq.get(), ms, &mut count) })?;
            Ok(count)
        })
    }

    /// Holds it back.
    fn mask(&mut self) -> PyResult<()> {
        result(ring3_irq_mask(self.0.get())).map(drop)
    }

    /// Lets it through: the pin, after each time that it was served.
    fn unmask(&mut self) -> PyResult<()> {
        result(ring3_irq_unmask(self.0.get())).map(drop)
    }
}
