//! A guest kernel from the cache: the bootable ELF file and its modules.

use crate::bzimage;
use crate::cache::{Cache, Fingerprint};
use crate::error::{Doing, Error};
use crate::initramfs::identity;
use crate::modules::Modules;
use crate::setup::{ARM64, Need, prepare};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The kernel that a guest gets unless it asks for another one.
pub const DEFAULT_KERNEL: &str = "6.12";

/// One kernel, ready to boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    release: String,
    vmlinux: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel `version` (a prefix such as `6.12`), fetched when the cache has none, or one that
    /// `lab/debug-kernel.sh` built (`debug`); `6.12-arm64` is that of the other machine.
    pub fn get(
        cache: &Cache,
        version: &str,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        prepare(cache, &[Need::Kernel(version.into())], progress)?;
        let folder = cache.path("kernels").join(version);
        let file = folder.join("release");
        let release = fs::read_to_string(&file).doing("reading", &file)?.trim().to_string();
        let image = folder.join("vmlinuz");
        let modules = folder.join("lib/modules").join(&release);
        // Its image is what QEMU boots.
        if version.ends_with(ARM64) {
            return Ok(Self { modules, release, vmlinux: image });
        }
        let unpacked =
            format!("vmlinux/{release}-{}", Fingerprint::new().add(identity(&image)?).hex());
        let unpacked = Path::new(&unpacked);
        let vmlinux = cache.file(unpacked, |out| {
            let packed = fs::read(&image).doing("reading the kernel image", &image)?;
            let unpacking = bzimage::vmlinux(&packed).map_err(|error| match error {
                Error::Format { what, why } => Error::Format {
                    what: image.display().to_string(),
                    why: format!("{what}: {why}"),
                },
                error => error,
            });
            out.write_all(&unpacking?).doing("writing the unpacked kernel", unpacked)
        })?;
        Ok(Self { modules, release, vmlinux })
    }

    /// The full release, as `uname -r` has it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The file that QEMU boots.
    pub fn vmlinux(&self) -> &Path {
        &self.vmlinux
    }

    pub(crate) fn modules(&self) -> Result<Modules, Error> {
        Modules::open(&self.modules)
    }
}
