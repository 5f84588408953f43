//! A model on a socket, for drivers that reach it from there.

use ring3_backend::OpenOptions;
use ring3_model::vfio_user::Server;

/// Calls `use_it` with the name of `model`, which a thread serves meanwhile.
pub fn served(model: &str, use_it: impl FnOnce(&str)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let device = ring3_model::open(&model.parse().unwrap(), OpenOptions { arena: 4096, ..OpenOptions::default() }).unwrap();
    let _server = Server::bind(&path, device).unwrap().spawn().unwrap();
    use_it(&format!("vfio-user:{}", path.display()));
}
