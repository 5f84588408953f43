//! A device that misbehaves by rules, whatever it is.

use std::sync::Arc;

use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Access, Bar, Decorator, Device, Error};
use rustix::event::{EventfdFlags, eventfd};

use crate::damage;
use crate::plan::{Action, Event, Plan, Space, What};

/// A device whose registers and calls go wrong as a [`Plan`] says. Every access is a call, so that
/// rules may come while a driver runs.
///
/// A string of words at one register is as many accesses.
pub struct Fault {
    inner: Arc<dyn Device>,
    plan: Plan,
}

struct FaultBar {
    inner: Bar,
    space: Space,
    plan: Plan,
    device: Arc<dyn Device>,
}

impl Fault {
    /// Puts the rules of `plan` around `inner`.
    pub fn new(inner: Arc<dyn Device>, plan: Plan) -> Self {
        Self { inner, plan }
    }

    /// Meets the rules with a call: what is left to do for its caller.
    fn call(&self, what: What) -> Result<Option<Action>, Error> {
        let action = self.plan.check(&Event { what, place: None });
        match action {
            _ if self.plan.is_removed() => Err(Error::Gone),
            Some(Action::Fatal) => Err(Error::Fatal(format!("{what:?} fails by a fault rule"))),
            action => Ok(action),
        }
    }
}

fn refused(what: &str) -> Error {
    Error::Unsupported(format!("{what}: a fault rule refuses it"))
}

impl Plan {
    /// What becomes of an access; `None`: nothing.
    fn access(
        &self,
        what: What,
        (space, offset, width): (Space, u64, usize),
    ) -> Option<impl Fn(u64) -> u64 + use<>> {
        self.effect(self.check(&Event {
            what,
            place: Some((space, offset..offset.saturating_add(width as u64))),
        }))
    }

    /// What becomes of an access that meets `action`; `None`: nothing.
    fn effect(&self, action: Option<Action>) -> Option<impl Fn(u64) -> u64 + use<>> {
        let done = !self.is_removed() && action != Some(Action::Drop);
        done.then_some(move |value| match action {
            Some(Action::Value(other)) => other,
            Some(Action::Set(bits)) => value | bits,
            Some(Action::Clear(bits)) => value & !bits,
            _ => value,
        })
    }
}

impl Access for FaultBar {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, offset: u64, width: usize) -> u64 {
        let change = self.plan.access(What::Read, (self.space, offset, width));
        change.map_or(u64::MAX, |change| change(self.inner.read(offset, width)))
    }
    fn write(&self, offset: u64, width: usize, value: u64) {
        let event = Event {
            what: What::Write,
            place: Some((self.space, offset..offset.saturating_add(width as u64))),
        };
        let action = self.plan.check(&event);
        let Some(change) = self.plan.effect(action) else { return };
        match action {
            Some(Action::Damage(word)) => {
                damage::after(self.device.dma(), word, || self.inner.write(offset, width, value))
            }
            _ => self.inner.write(offset, width, change(value)),
        }
    }
}

impl Decorator for Fault {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }
    fn config_read(&self, offset: u64, width: usize) -> u32 {
        let change = self.plan.access(What::Read, (Space::Config, offset, width));
        change
            .map_or(u32::MAX, |change| change(self.inner.config_read(offset, width).into()) as u32)
    }
    fn config_write(&self, offset: u64, width: usize, value: u32) -> Result<(), Error> {
        match self.plan.access(What::Write, (Space::Config, offset, width)) {
            Some(change) => self.inner.config_write(offset, width, change(value.into()) as u32),
            None => Ok(()),
        }
    }
    fn bar(&self, index: u8) -> Result<Bar, Error> {
        let (inner, plan, device) = (self.inner.bar(index)?, self.plan.clone(), self.inner.clone());
        Ok(Bar::new(Arc::new(FaultBar { inner, space: Space::Bar(index), plan, device })))
    }
    fn irqs(&self, kind: IrqKind, count: u16) -> Result<Vec<Irq>, Error> {
        match self.call(What::Irqs)? {
            Some(Action::Refuse) => Err(refused("enabling interrupts")),
            Some(Action::LoseInterrupt) => {
                self.inner.irqs(kind, count)?.iter().map(silent).collect()
            }
            _ => self.inner.irqs(kind, count),
        }
    }
    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        match self.call(What::BusMaster)? {
            Some(Action::Refuse) => Err(refused("switching the bus master")),
            Some(Action::Drop) => Ok(()),
            _ => self.inner.set_bus_master(on),
        }
    }
    fn reset(&self) -> Result<(), Error> {
        match self.call(What::Reset)? {
            Some(Action::Refuse) => self.inner.set_bus_master(false).and(Err(refused("a reset"))),
            Some(Action::Drop) => Ok(()),
            _ => self.inner.reset().map(|()| self.plan.reset()),
        }
    }
}

/// An interrupt like `irq` that nobody signals.
fn silent(irq: &Irq) -> Result<Irq, Error> {
    let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|error| Error::os("creating an eventfd", error))?;
    Ok(Irq::new(fd, irq.kind(), irq.vector(), None))
}
