//! Registers, descriptors and commands of the devices that ring3 drives.
#![no_std]
#![forbid(unsafe_code)]
