//! Host programs for the guest: a program, its interpreter and its shared libraries.

use crate::cache::Cache;
use crate::error::{Doing, Error};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the dynamic linker looks without being told, on Debian.
const LIBRARIES: &str = "/lib/x86_64-linux-gnu";

/// Guest path to host file, for all libraries that `program` needs, looked for in `folders` first.
/// A static program needs none.
pub(crate) fn libraries(
    cache: &Cache,
    folders: &[PathBuf],
    program: &Path,
) -> Result<BTreeMap<String, PathBuf>, Error> {
    let head = fs::read(program).doing("reading a program for the guest", program)?;
    if !head.starts_with(b"\x7fELF") {
        return Ok(BTreeMap::new());
    }
    let output = Command::new("ldd")
        .arg(program)
        .env("LD_LIBRARY_PATH", search(cache, folders))
        .env("LC_ALL", "C")
        .output()
        .doing("looking for libraries with ldd of", program)?;
    parse(program, &String::from_utf8_lossy(&output.stdout))
}

/// `folders`, then those of the cache.
fn search(cache: &Cache, folders: &[PathBuf]) -> String {
    let own = folders.iter().map(|folder| folder.display().to_string());
    own.chain([library_path(cache)]).collect::<Vec<_>>().join(":")
}

/// Folders of the cache with libraries, as the dynamic linker wants them.
pub(crate) fn library_path(cache: &Cache) -> String {
    let folders = ["tools", "btrfs", "network"]
        .map(|part| ["usr/lib", "lib"].map(|dir| format!("{part}/{dir}/x86_64-linux-gnu")));
    folders
        .as_flattened()
        .iter()
        .map(|dir| cache.path(dir).display().to_string())
        .collect::<Vec<_>>()
        .join(":")
}

/// The same for every program of arm64: the C library and what the compiler's run time needs, which
/// are all that ring3's programs are linked to.
pub(crate) fn arm64(cache: &Cache) -> BTreeMap<String, PathBuf> {
    let folder = cache.path("arm64/root/usr/lib/aarch64-linux-gnu");
    let names = ["libc.so.6", "libm.so.6", "libgcc_s.so.1"];
    let libraries = names.map(|name| (format!("/lib/aarch64-linux-gnu/{name}"), folder.join(name)));
    let loader = ("/lib/ld-linux-aarch64.so.1".into(), folder.join("ld-linux-aarch64.so.1"));
    libraries.into_iter().chain([loader]).collect()
}

fn parse(program: &Path, ldd: &str) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut found = BTreeMap::new();
    for line in ldd.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, "=>", "not", "found", ..] => {
                let why = format!("needs the library {name}, which this machine does not have");
                return Err(Error::Format { what: program.display().to_string(), why });
            }
            [name, "=>", path, _] => {
                found.insert(format!("{LIBRARIES}/{name}"), PathBuf::from(path))
            }
            // The interpreter keeps its absolute path, which stands in the program.
            [path, _] if path.starts_with('/') => found.insert(path.into(), PathBuf::from(path)),
            _ => None,
        };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_go_where_the_guest_looks_and_the_interpreter_stays() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /usr/lib/libc.so.6 \
                    (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let found = parse(Path::new("x"), text).unwrap();
        let pairs: Vec<_> =
            found.iter().map(|(guest, host)| (guest.as_str(), host.to_str().unwrap())).collect();
        assert_eq!(
            pairs,
            [
                ("/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/libc.so.6"),
                ("/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn a_static_program_needs_nothing() {
        assert!(parse(Path::new("x"), "\tstatically linked\n").unwrap().is_empty());
    }

    #[test]
    fn a_missing_library_is_an_error_that_names_both() {
        let error =
            parse(Path::new("/bin/x"), "\tlibfoo.so.1 => not found\n").unwrap_err().to_string();
        assert!(error.contains("/bin/x") && error.contains("libfoo.so.1"), "{error}");
    }
}
