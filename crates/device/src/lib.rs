//! The one interface between a driver and its device: registers, DMA memory, interrupts, reset.
