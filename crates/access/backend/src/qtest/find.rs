//! Where QEMU is.

use std::env;
use std::path::PathBuf;

use ring3_device::Error;

use super::host::Host;

/// The QEMU of `host`: the one that its variable names (`$RING3_QEMU`), or the one on the PATH, or
/// the one that `lab/setup.sh` put into the cache.
pub(super) fn qemu(host: &Host) -> Result<PathBuf, Error> {
    let Host { program, variable, package, need, .. } = host;
    if let Some(named) = env::var_os(variable) {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(Error::Unsupported(format!(
                "{variable} names {}, which is not a file",
                named.display()
            ))),
        };
    }
    let on_path = env::var_os("PATH")
        .into_iter()
        .flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    on_path
        .map(|folder| folder.join(program))
        .chain(cached(host))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Error::Unsupported(format!(
                "this qtest device needs {program}, and there is none on the PATH or in the cache; \
                 get one with `lab/setup.sh {need}` (no root) or `apt-get install {package}`, or \
                 name one by {variable}"
            ))
        })
}

/// The cache of the lab: `$RING3_CACHE`, or `ring3` under `$XDG_CACHE_HOME` or `~/.cache`.
fn cached(host: &Host) -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("RING3_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("ring3")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/ring3")))?;
    Some(cache.join(host.need).join("bin").join(host.program))
}
