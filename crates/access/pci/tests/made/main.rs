//! PCI functions on a machine made of files.

mod bind;
mod documentation;
mod examine;
mod machine;
