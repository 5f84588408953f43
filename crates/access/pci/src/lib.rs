//! PCI functions as sysfs shows them: list, bind, unbind, IOMMU groups, and what stands in the way.
#![deny(unsafe_code)]

mod address;
mod bind;
mod examine;
mod function;
pub mod group;
mod host;
mod kernel;
mod obstacle;
mod process;
mod uio;
mod usage;
mod way;

pub use address::{Address, AddressError};
pub use bind::{BindError, BindReport, Force, UnbindPlan, bind, plan_unbind, unbind};
pub use examine::{Check, examine, examine_machine, forges_interrupts};
pub use function::{Function, IOMMUFD, Resource, name_of};
pub use host::{Host, Kernel, Node};
pub use obstacle::{Blocked, Obstacle};
pub use process::{Holder, WARDEN, holders};
pub use uio::{HugePages, huge_pages, uio_file};
pub use usage::{Usage, Use, disks};
pub use way::PassthroughDriver;
