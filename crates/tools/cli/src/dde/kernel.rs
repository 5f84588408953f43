//! Of which kernel a driver is: its version, and where the source lies.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use ring3_lab::{Cache, DEFAULT_KERNEL};

/// The versions of Linux whose drivers are hosted; `dde/linux` has what differs between them.
pub const KERNELS: [&str; 2] = [DEFAULT_KERNEL, "7.2"];

/// One of [`KERNELS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(&'static str);

impl Default for Kernel {
    fn default() -> Self {
        Self(DEFAULT_KERNEL)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for Kernel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = KERNELS.into_iter().find(|&version| version == text);
        found
            .map(Self)
            .ok_or_else(|| format!("drivers are hosted of Linux {}", KERNELS.join(" and ")))
    }
}

impl Kernel {
    /// Its source.
    pub fn source(self, cache: &Cache) -> PathBuf {
        cache.path(format!("sources/{self}/source"))
    }

    /// The file with the version to the last number.
    pub fn release(self, cache: &Cache) -> PathBuf {
        cache.path(format!("sources/{self}/release"))
    }

    /// Refuses one whose source is not there; that of the usual one is fetched before.
    pub fn check(self, cache: &Cache) -> Result<()> {
        // What drivers are compiled for, which sources that were fetched for something else may
        // lack.
        let architecture = self.source(cache).join("arch/um/Kconfig");
        match architecture.is_file() && self.release(cache).is_file() {
            true => Ok(()),
            false => bail!(
                "the source of Linux {self} is not in {}: lab/setup.sh source {self}",
                cache.root().display()
            ),
        }
    }

    /// The version to the last number.
    pub fn full_version(self, cache: &Cache) -> Result<String> {
        let path = self.release(cache);
        Ok(fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?
            .trim()
            .into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_one_of_those_that_were_tried_and_the_usual_one_unless_it_is_named() {
        assert_eq!(Kernel::default().to_string(), DEFAULT_KERNEL);
        assert_eq!("7.2".parse::<Kernel>().unwrap().to_string(), "7.2");
        for wrong in ["7.1", "7", "", "7.2.12", "../6.12"] {
            let error = wrong.parse::<Kernel>().unwrap_err();
            assert!(KERNELS.iter().all(|version| error.contains(version)), "{wrong}: {error}");
        }
    }
}
