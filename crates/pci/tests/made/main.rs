//! PCI functions on a machine made of files.

mod bind;
mod examine;
mod machine;
