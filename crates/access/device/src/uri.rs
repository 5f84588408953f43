//! How a user names a device: `vfio:0000:01:00.0`, `qtest:nvme`, `sim:nvme,size=64M`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A backend, what it should open, and options: `SCHEME:TARGET[,KEY=VALUE]...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// `vfio`, `uio`, `vfio-user`, `qtest`, `sim`, `replay`, or `remote`, which is no device but a
    /// disk or a network card that another process drives.
    pub scheme: String,
    /// A PCI address for `vfio` and `uio`, a socket for `vfio-user` and `remote`, a file for
    /// `replay`, a model for the others.
    pub target: String,
    /// What stands behind the commas. A backend refuses keys that it does not know.
    pub options: BTreeMap<String, String>,
}

/// A device name that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// No scheme, or one that does not exist.
    #[error(
        "{0:?} does not name a device: use vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, \
        qtest:nvme, sim:nvme, replay:FILE, or remote:PATH for a shared disk (ring3 devices lists \
        PCI functions)"
    )]
    Scheme(String),
    /// An option without a value.
    #[error("option {0:?} has no value: write key=value")]
    Option(String),
    /// An option that is there twice.
    #[error("option {0:?} is there more than once: which value is meant?")]
    Twice(String),
    /// Options that the backend does not have.
    #[error("{scheme} does not know the option {key:?}; it has: {known}")]
    UnknownOption {
        /// The backend.
        scheme: String,
        /// The key.
        key: String,
        /// The keys it has.
        known: String,
    },
    /// An option whose value makes no sense.
    #[error("{scheme}: option {key}={value} should be {wanted}")]
    Value {
        /// The backend.
        scheme: String,
        /// The key.
        key: String,
        /// What stood there.
        value: String,
        /// What should.
        wanted: String,
    },
}

impl From<UriError> for crate::Error {
    fn from(error: UriError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl Uri {
    /// Fails if there is an option that is not in `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), UriError> {
        match self.options.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(UriError::UnknownOption {
                scheme: self.scheme.clone(),
                key: key.clone(),
                known: if known.is_empty() { "none".into() } else { known.join(", ") },
            }),
        }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let unknown = || UriError::Scheme(text.into());
        let (scheme, rest) = text.split_once(':').ok_or_else(unknown)?;
        if !["vfio", "uio", "vfio-user", "qtest", "sim", "replay", "remote"].contains(&scheme) {
            return Err(unknown());
        }
        let mut parts = rest.split(',');
        let target = parts.next().filter(|target| !target.is_empty()).ok_or_else(unknown)?;
        let mut options = BTreeMap::new();
        for part in parts {
            match part.split_once('=') {
                Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                    match options.insert(key.into(), value.into()) {
                        None => {}
                        Some(_) => return Err(UriError::Twice(key.into())),
                    }
                }
                _ => return Err(UriError::Option(part.into())),
            }
        }
        Ok(Self { scheme: scheme.into(), target: target.into(), options })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.target)?;
        self.options.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_keeps_its_colons() {
        let uri: Uri = "vfio:0000:01:00.0".parse().unwrap();
        assert_eq!((uri.scheme.as_str(), uri.target.as_str()), ("vfio", "0000:01:00.0"));
    }

    #[test]
    fn options_are_printed_as_they_were_read() {
        let text = "sim:nvme,depth=8,size=64M";
        assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_ones_that_exist() {
        let error = "sim:nvme,colour=red".parse::<Uri>().unwrap().only(&["size"]).unwrap_err();
        assert_eq!(error.to_string(), "sim does not know the option \"colour\"; it has: size");
    }

    #[test]
    fn an_option_that_is_there_twice_is_refused_even_with_the_same_value() {
        for text in ["sim:nvme,size=64M,size=32M", "sim:nvme,size=64M,block=512,size=64M"] {
            assert_eq!(text.parse::<Uri>(), Err(UriError::Twice("size".into())));
        }
    }

    #[test]
    fn a_name_without_a_backend_is_refused() {
        assert!(matches!("nvme0".parse::<Uri>(), Err(UriError::Scheme(_))));
        assert!(matches!("vfio:".parse::<Uri>(), Err(UriError::Scheme(_))));
    }
}
