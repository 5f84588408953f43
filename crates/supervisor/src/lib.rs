//! The supervisor: what keeps devices while their drivers come and go.
//!
//! # Shape
//! [`store`] is what survives ring3d itself, with systemd or with [`hold`]; [`notify`] and [`listen`] are the ways to and from who started it. [`hotplug`] sees devices come and
//! go, [`faults`] counts what the IOMMU has refused them, [`metrics`] and [`scrape`] tell Prometheus.

pub mod faults;
pub mod hold;
pub mod hotplug;
pub mod listen;
pub mod metrics;
pub mod notify;
pub mod scrape;
pub mod store;
