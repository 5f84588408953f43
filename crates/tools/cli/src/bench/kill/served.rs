//! A model that is served here, and what it saw.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use ring3_backend::Uri;
use ring3_model::vfio_user::{Running, VfioUserDevice as Model, VfioUserServer};

use crate::model;

/// What a model has that is named without options: requests are under way long enough to be killed.
const USUAL: &str = "size=16M,delay=50us";

/// Says how often a controller was started or reset, where that is known.
type Starts = Box<dyn Fn() -> u64>;

/// A device to claim.
pub struct Served {
    /// What the outcome calls it.
    pub name: String,
    pub uri: Uri,
    /// How often its controller was started or reset, where that is known.
    pub starts: Starts,
    pub _server: Option<Running>,
}

/// The model that a user calls `words`, on a socket.
pub fn serve(words: &str, socket: &Path) -> Result<Served> {
    let words = if words.contains(',') { words.to_owned() } else { format!("{words},{USUAL}") };
    let (uri, device, starts) = counted(&words)?;
    let server = VfioUserServer::bind(socket, device)?.spawn()?;
    Ok(Served {
        name: uri.to_string(),
        uri: model::name(socket)?.parse()?,
        starts,
        _server: Some(server),
    })
}

/// The model, and what counts its starts.
fn counted(words: &str) -> Result<(Uri, Arc<dyn Model>, Starts)> {
    let uri: Uri = format!("sim:{words}").parse()?;
    Ok(match uri.target.as_str() {
        "nvme" => {
            let device = ring3_model::nvme::open(&uri, model::OPTIONS)?;
            let handle = device.handle();
            (uri, Arc::new(device), Box::new(move || handle.counters().enables))
        }
        "ahci" => {
            let device = ring3_model::ahci::open(&uri, model::OPTIONS)?;
            let handle = device.handle();
            (uri, Arc::new(device), Box::new(move || handle.counters().resets))
        }
        _ => {
            let (uri, device) = model::open(words)?;
            (uri, device, Box::new(|| 0))
        }
    })
}
