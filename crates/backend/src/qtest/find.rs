//! Where QEMU is.

use std::env;
use std::path::PathBuf;

use ring3_device::Error;

const PROGRAM: &str = "qemu-system-x86_64";

/// `$RING3_QEMU`, or the one on the PATH, or the one that `lab/setup.sh` put into the cache.
pub(super) fn qemu() -> Result<PathBuf, Error> {
    if let Some(named) = env::var_os("RING3_QEMU") {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(Error::Unsupported(format!("RING3_QEMU names {}, which is not a file", named.display()))),
        };
    }
    let on_path = env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    on_path.map(|folder| folder.join(PROGRAM)).chain(cached()).find(|candidate| candidate.is_file()).ok_or_else(|| {
        Error::Unsupported(format!(
            "qtest devices need {PROGRAM}, and there is none on the PATH or in the cache; get one with `lab/setup.sh tools` \
             (no root) or `apt-get install qemu-system-x86`, or name one by RING3_QEMU"
        ))
    })
}

/// The cache of the lab: `$RING3_CACHE`, or `ring3` under `$XDG_CACHE_HOME` or `~/.cache`.
fn cached() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("RING3_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("ring3")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/ring3")))?;
    Some(cache.join("tools/bin").join(PROGRAM))
}
