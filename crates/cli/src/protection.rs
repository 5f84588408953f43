//! What stands between a device and memory, as the user wants it: the one place where `--unprotected` is declared.

use ring3_backend::OpenOptions;

/// Options of every command that takes a device.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Protection {
    /// Drive a device that no IOMMU confines (uio:ADDRESS). A bug in the driver can then overwrite any memory of this machine.
    #[arg(long, global = true)]
    pub unprotected: bool,
}

impl Protection {
    /// `memory` as the user wants it protected.
    pub fn apply(self, memory: OpenOptions) -> OpenOptions {
        OpenOptions { unprotected: self.unprotected, ..memory }
    }

    /// The same on another command's line, after a word.
    pub fn words(self) -> &'static str {
        if self.unprotected { " --unprotected" } else { "" }
    }
}
