//! Drivers of Linux in processes of their own, as ring3d starts them: which program each is, with
//! which words.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring3_sandbox::Program;

/// Folders in which such programs lie, from that of ring3's own drivers.
const PLACES: [&str; 2] = [".", "../lib/ring3"];

/// Where a program finds its lease.
const LEASE: &str = "lease:3";

/// The program of `dde:NAME` and its words; `own` is that of ring3's drivers, beside which it lies.
pub fn program(own: &Program, name: &str) -> io::Result<(Arc<Program>, Vec<CString>)> {
    let folder = own.path().parent().unwrap_or(Path::new("/"));
    let Some(path) = find(folder, name) else {
        let places = PLACES.map(|place| folder.join(place).display().to_string()).join(" or ");
        return Err(io::Error::other(format!(
            "dde:{name} is the program dde-{name}, which is not in {places}: ring3 dde build \
            {name} --to FOLDER puts it there"
        )));
    };
    let opened = Program::open(&path)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    let words = [&*format!("@dde-{name}"), "--device", LEASE].map(CString::new);
    let words = words.into_iter().collect::<Result<_, _>>().map_err(io::Error::other)?;
    Ok((Arc::new(opened), words))
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    PLACES
        .map(|place| folder.join(place).join(format!("dde-{name}")))
        .into_iter()
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_was_not_built_is_an_error_that_says_how_to() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("ring3-driver");
        std::fs::write(&own, "").unwrap();
        let own = Program::open(own).unwrap();
        let error = program(&own, "e1000e").unwrap_err().to_string();
        assert!(error.contains("ring3 dde build e1000e --to"), "{error}");
        std::fs::write(folder.path().join("dde-e1000e"), "").unwrap();
        let (found, words) = program(&own, "e1000e").unwrap();
        assert!(found.path().ends_with("dde-e1000e") && words.len() == 3);
    }
}
