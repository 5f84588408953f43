//! A model with its claim, and the application of its disk: what outlives the drivers of a
//! campaign.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use ring3_backend::Uri;
use ring3_faults::{Application, Model, Spec, rules};
use ring3_model::fault::FaultPlan;
use ring3_model::vfio_user::{Running, VfioUserServer};

use super::holder::Holder;
use super::kept::Kept;
use super::work::DEPTH;
use crate::model;

/// How many rules of their specification drivers have broken, as far as the model has noticed.
type Violations = Box<dyn Fn() -> usize + Send>;

/// Who holds the device, and starts one driver after the other.
pub enum Keep {
    /// This command, with as little as there can be between two drivers.
    Own(Holder),
    /// A keeper of ring3d's.
    Ring3d(Kept),
}

/// A disk that drivers come to and die at.
pub struct Bench {
    pub keep: Keep,
    pub application: Application,
    pub plan: FaultPlan,
    pub violations: Violations,
    /// For how long its application has waited for a driver, if the last one is dead: until its
    /// device was fenced.
    pub waited: Option<Duration>,
    /// Faults whose driver nobody has followed yet.
    pub pending: Vec<Spec>,
    /// The last fault of a kind that may make wrong blocks, wherever they are.
    pub doubt: Option<Spec>,
    /// The device may have lied to the driver that serves now, too: ring3d has started it before
    /// the fault of the last one was over.
    pub spilled: bool,
    _server: Running,
}

/// Where a bench's files are, and whose they are.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub folder: &'a Path,
    pub name: &'a str,
    /// A keeper of ring3d's holds it.
    pub supervised: bool,
}

impl Place<'_> {
    /// The file of this bench that ends so.
    pub fn file(&self, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{end}", self.name))
    }
}

impl Bench {
    /// A new one.
    pub fn new(model: Model, seed: u64, place: Place<'_>) -> Result<Self> {
        let socket = place.file("socket");
        let _ = std::fs::remove_file(&socket);
        let words = match model {
            Model::Nvme => "sim:nvme,size=1M,delay=20us",
            Model::Ahci => "sim:ahci,ports=1,size=1M,delay=20us",
            Model::Ide => "sim:ide,size=1M",
            Model::Virtio => "sim:virtio-blk,size=1M,delay=20us",
        };
        let uri: Uri = words.parse()?;
        macro_rules! serve {
            ($($model:ident)::+) => {{
                let device = ring3_model::$($model)::+::open(&uri, model::OPTIONS)?;
                let handle = device.handle();
                let plan = handle.plan();
                (
                    plan,
                    Box::new(move || handle.violations().len()) as Violations,
                    VfioUserServer::bind(&socket, std::sync::Arc::new(device))?,
                )
            }};
        }
        let (plan, violations, server) = match model {
            Model::Nvme => serve!(nvme),
            Model::Ahci => serve!(ahci),
            Model::Ide => serve!(ide),
            Model::Virtio => serve!(virtio::blk),
        };
        let server = server.spawn()?;
        let device = model::name(&socket)?;
        let keep = match place.supervised {
            true => Keep::Ring3d(Kept::new(&device, place, plan.clone())?),
            false => Keep::Own(Holder::new(&device, place)?),
        };
        let application = Application::new(seed, usize::from(DEPTH));
        Ok(Self {
            keep,
            application,
            plan,
            violations,
            waited: None,
            pending: Vec::new(),
            doubt: None,
            spilled: false,
            _server: server,
        })
    }

    /// What the last driver said.
    pub fn said(&self) -> String {
        match &self.keep {
            Keep::Own(holder) => holder.said(),
            Keep::Ring3d(kept) => kept.said(),
        }
    }

    /// Makes the device lie.
    pub fn lie(&self, spec: &Spec) -> Result<()> {
        Ok(self.plan.read(&rules::commands(spec, 1))?)
    }
}
