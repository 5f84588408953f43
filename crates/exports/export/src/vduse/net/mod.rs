//! A [`Nic`] as a virtio card of the running kernel, by VDUSE: an interface whose packets go by
//! virtqueues in place of a TAP. All else is the TAP's: see [`crate::tap`].

mod config;
mod half;
mod link;

use std::sync::Arc;
use std::time::Duration;

use ring3_class::net::Nic;
use ring3_reactor::Pool;
use ring3_spec::virtio::net;
use ring3_stats::Segment;
use ring3_vduse::{Control, Device, Shape, vdpa};

pub use half::VduseRing;
pub use link::Link;

use super::devices::{DYING, MARK};
use super::gate::QueueHandover;
use super::messages::Messages;
use super::name;
use crate::tap::{
    Engine, EngineSettings, Error, Interface, NamespaceSockets, Options, Rtnetlink, TapExport,
    TapThreadOptions,
};

/// How long a process that has the device may take to be gone.
const DEATH: Duration = Duration::from_secs(5);
/// What a device is called that nobody has named, with the first number that is free.
const ANY: &str = "r3card";

/// The device of an export, which goes with it.
pub struct Card {
    name: String,
    messages: Option<Messages>,
    device: Option<Arc<Device>>,
}

/// Makes `nic` a virtio card by the device `name`, or goes on with that if its server is dead. Its
/// interface has the name that the kernel gives it.
pub fn start(
    nic: Arc<dyn Nic>,
    name: Option<&str>,
    options: &Options,
) -> Result<(TapExport, Card), Error> {
    let (control, name) = (Control::open()?, name::choose(name, ANY)?);
    let info = nic.info().clone();
    let device = take(&control, &name, nic.as_ref())?;
    let gate =
        || QueueHandover::new().map(Arc::new).map_err(|error| Error::os("an eventfd", error));
    let gates = [gate()?, gate()?];
    let mut card = Card { name, messages: None, device: Some(device.clone()) };
    card.messages = Some(Messages::start(device.clone(), gates.to_vec())?);
    if !vdpa::is_attached(&card.name) {
        vdpa::attach(&card.name)?;
    }
    let asking = |error| Error::os("asking the kernel for interfaces (rtnetlink)", error);
    let link = Link { device, gates };
    // One that is gone on with may have been moved to another network namespace meanwhile.
    let place = link.device().and_then(|device| NamespaceSockets::of_virtio(&device).ok());
    let place = place.ok_or_else(|| Error::NoVirtio(format!("/dev/vduse/{}", card.name)))?;
    if let Some(mtu) = options.mtu {
        let failed =
            |error| Error::os(format!("{}: setting its MTU (CAP_NET_ADMIN)", place.name), error);
        place.netlink.set_mtu(place.index, mtu).map_err(failed)?;
    }
    if crate::tap::cuts(&info) && info.max_segmented < u16::MAX.into() {
        place.netlink.set_longest(place.index, info.max_segmented).map_err(asking)?;
    }
    let interface = Arc::new(Interface::of_virtio(place.name.clone(), place.index, link));
    let plane = Rtnetlink::new(interface.clone(), place).map_err(asking)?;
    let segment = Segment::create(2).map_err(|error| Error::os("memory for its figures", error))?;
    let engine = EngineSettings {
        engine: Engine::Tap,
        priority: options.priority,
        ..EngineSettings::default()
    };
    let manner = TapThreadOptions {
        poll: options.poll,
        engine,
        joins: options.joins,
        rings: Pool::default(),
        segment: Arc::new(segment),
    };
    let export = TapExport::over((nic, interface), Box::new(plane), &manner)?;
    Ok((export, card))
}

fn take(control: &Control, name: &str, nic: &dyn Nic) -> Result<Arc<Device>, ring3_vduse::Error> {
    if Device::exists(name) {
        return Device::open(name, DEATH).map(Arc::new);
    }
    let (features, config) = (config::features(nic.info()), config::config(nic.info()));
    control.create(&Shape {
        name,
        kind: net::TYPE.into(),
        vendor: MARK,
        features,
        queues: 2,
        config: &config,
    })?;
    let opened = Device::open(name, DYING).and_then(|device| {
        (0..2).try_for_each(|queue| device.set_up(queue, config::DEPTH))?;
        Ok(Arc::new(device))
    });
    opened.inspect_err(|_| drop(control.destroy(name)))
}

impl Card {
    /// By which it is gone on with after a death.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes interface and device away, after the export has stopped.
    pub fn end(mut self) -> Result<(), Error> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<(), Error> {
        if self.device.is_none() {
            return Ok(());
        }
        vdpa::detach(&self.name)?;
        (self.messages, self.device) = (None, None);
        Ok(Control::open()?.destroy(&self.name)?)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Err(error) = self.take_away() {
            tracing::warn!(
                %error,
                "a VDUSE device was left behind: whoever is started with its name goes on with it"
            );
        }
    }
}
