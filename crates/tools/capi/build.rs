//! Gives `libring3.so` the name by which programs find it at run time.

use std::env;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // Before 1.0 each minor version may change the ABI, so a program that was linked with another
    // one does not start with this one.
    let version = |part: &str| env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    let name = format!("libring3.so.{}.{}", version("MAJOR"), version("MINOR"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
    // Programs that are started in the source tree find the library by that name as well.
    // OUT_DIR is PROFILE/build/ring3-capi-HASH/out, and the library is in PROFILE and PROFILE/deps.
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let profile = out.ancestors().nth(3).unwrap_or(Path::new("/"));
    for folder in [profile.to_owned(), profile.join("deps")] {
        match symlink("libring3.so", folder.join(&name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
