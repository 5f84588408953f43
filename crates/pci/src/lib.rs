//! PCI functions as sysfs shows them: list, bind, unbind, IOMMU groups, and what stands in the way.
#![forbid(unsafe_code)]

mod address;
mod bind;
mod examine;
mod function;
pub mod group;
mod holder;
mod host;
mod obstacle;
mod uio;
mod usage;
mod way;

pub use address::{Address, AddressError};
pub use bind::{BindError, Rebound, bind, unbind};
pub use examine::{Check, examine, examine_machine};
pub use function::{Function, Resource};
pub use holder::{Holder, WARDEN, holders};
pub use host::{Host, Kernel};
pub use obstacle::{Blocked, Obstacle};
pub use uio::{HugePages, huge_pages, uio_file};
pub use usage::{Use, below, uses};
pub use way::Way;
