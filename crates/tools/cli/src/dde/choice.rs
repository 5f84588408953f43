//! `--driver dde:NAME`, of every command that takes a network card: the one place where the name of
//! a driver becomes a device.

use anyhow::{Result, bail};
use ring3_backend::Uri;

use super::{Class, Coverage, Hosted, Name, Tools};
use crate::leave::Watch;

/// Who drives a card.
#[derive(clap::Args)]
pub struct Choice {
    /// The card's driver: dde:NAME, a driver of Linux in a separate process (ring3 dde list). It is
    /// built if necessary. Default: ring3's own driver.
    #[arg(long, value_name = "dde:NAME")]
    driver: Option<Name>,
}

/// A card as this program opens it; its driver, if it is one of Linux, lives as long.
pub struct Place {
    device: Uri,
    hosted: Option<Hosted>,
}

impl Place {
    /// What is opened.
    pub fn device(&self) -> &Uri {
        &self.device
    }

    /// Has a driver of Linux close the card and end, and says if it does not; what was reached of
    /// it, if that was counted.
    pub fn end(self) -> Result<Option<Coverage>> {
        Ok(self.hosted.map(Hosted::end).transpose()?.flatten())
    }
}

impl Choice {
    /// That of `name`.
    pub fn of(name: Name) -> Self {
        Self { driver: Some(name) }
    }

    /// The driver of Linux, if it is one.
    pub fn hosted(&self) -> Option<&Name> {
        self.driver.as_ref()
    }

    /// `device`, as it is driven: itself, or the card that a driver of Linux serves, which is
    /// started now. `chosen` is the option by which the user has said how the card signals, if
    /// there is one. A signal that comes while the driver starts ends this program; those that come
    /// later are held back, for whoever takes them.
    pub fn place(&self, device: &Uri, unprotected: bool, chosen: Option<&str>) -> Result<Place> {
        self.place_with(device, unprotected, chosen, &Tools::default())
    }

    /// The same; the driver of Linux is looked at with `tools`.
    pub fn place_with(
        &self,
        device: &Uri,
        unprotected: bool,
        chosen: Option<&str>,
        tools: &Tools,
    ) -> Result<Place> {
        let Some(name) = &self.driver else {
            return Ok(Place { device: device.clone(), hosted: None });
        };
        check(name, device, chosen)?;
        let _watch = Watch::start()?;
        let hosted = Hosted::start_with(name, Class::Net, device, unprotected, tools)?;
        Ok(Place { device: hosted.device().clone(), hosted: Some(hosted) })
    }
}

/// Refuses what no driver of Linux can be told.
pub fn check(name: &Name, device: &Uri, chosen: Option<&str>) -> Result<()> {
    if let Some(option) = chosen {
        bail!(
            "{option} is for ring3's drivers: a driver of Linux chooses itself among what the \
            device has; {device},msix=off has no MSI-X, where the backend has that option"
        );
    }
    if device.scheme == "remote" {
        bail!(
            "{device}: the card has a driver already, the process that serves it: leave --driver \
            dde:{} out",
            name.0
        );
    }
    Ok(())
}
