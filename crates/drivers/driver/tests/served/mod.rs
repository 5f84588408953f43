//! A model on a socket, for drivers that reach it from there.

use std::sync::Arc;

use ring3_backend::{OpenOptions, attach, claim};
use ring3_device::Device;
use ring3_model::vfio_user::VfioUserServer;

/// Calls `use_it` with the name of `model`, which a thread serves meanwhile.
pub fn served(model: &str, use_it: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let device = ring3_model::open(
        &model.parse().unwrap(),
        OpenOptions { arena: 4096, ..OpenOptions::default() },
    )
    .unwrap();
    let _server = VfioUserServer::bind(&path, device).unwrap().spawn().unwrap();
    use_it(&format!("vfio-user:{}", path.display()));
}

/// As [`served`], with a lease of it in place of its name, whose claim a thread of this process
/// holds.
#[allow(dead_code, reason = "each test binary uses a part of this")]
pub fn leased(model: &str, use_it: impl FnOnce(Arc<dyn Device>)) {
    served(model, |uri| {
        let claim = claim(&uri.parse().unwrap(), OpenOptions::default()).unwrap();
        use_it(attach(claim.lease().unwrap(), None).unwrap());
    });
}
