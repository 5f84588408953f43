//! A leased device whose driver is another part of this program: what a supervisor sees is the
//! same.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ring3_device::Device;
use ring3_driver::registry::{Controller, Offer, Opened};

use super::driven::ServedDevice;
use super::left::InheritedState;
use super::standby::{Drivers, Standby};
use super::{Leased, Process};
use crate::Error;

/// A device that was leased to this process, and whose driver is the caller.
pub struct Hosted {
    process: Process,
    standby: Standby,
    device: Arc<dyn Device>,
}

impl Hosted {
    /// Waits over `control` until this process has a device to drive, and is confined before;
    /// `None` if the supervisor has gone. The process has one thread. The error was reported to the
    /// supervisor.
    pub fn wait(control: OwnedFd) -> Result<Option<Self>, Error> {
        let mut process = Process::new(control)?;
        let attached =
            process.take_lease(Drivers::Hosted).and_then(|leased| leased.map(attach).transpose());
        let attached = attached.inspect_err(|error| process.fail(error))?;
        Ok(attached.map(|(standby, device)| Self { process, standby, device }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Offers what the driver makes of the device, and does what the supervisor orders until it is
    /// told to end. Dropping `controller` ends the driver: it is dropped before the supervisor
    /// hears that the device is stopped. The error was reported; the process ends then at once.
    pub fn drive(self, offer: Offer, controller: Box<dyn Controller>) -> Result<(), Error> {
        let Self { mut process, standby, device } = self;
        let opened = Opened { offers: vec![offer], refused: Vec::new(), controller };
        let driven = ServedDevice::of(standby, device, opened, Vec::new());
        driven.and_then(|driven| process.drive(driven)).inspect_err(|error| process.fail(error))
    }
}

fn attach(leased: Leased) -> Result<(Standby, Arc<dyn Device>), Error> {
    let Leased { standby, lease, before } = leased;
    if !matches!(before, InheritedState::Nothing) {
        return Err(Error::protocol(
            "a hosted driver starts its device, and goes on with none that was left",
        ));
    }
    let failed = |source| Error::Device { device: "the leased device".into(), source };
    Ok((standby, ring3_backend::attach(lease.into(), None).map_err(failed)?))
}
