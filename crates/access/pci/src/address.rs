//! Where a PCI function sits.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function: `0000:01:00.0`. Without its domain, `01:00.0`, it is in domain
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The host bridge; more than 16 bits where a controller makes domains of its own.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on its bus, below 32.
    pub device: u8,
    /// The function of the device, below 8.
    pub function: u8,
}

/// A text that is no PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no PCI address: write DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, as in 0000:01:00.0 \
    (ring3 devices lists them)"
)]
pub struct AddressError(pub String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        parse(text).ok_or_else(|| AddressError(text.into()))
    }
}

fn parse(text: &str) -> Option<Address> {
    let (rest, function) = text.rsplit_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.split_once(':').unwrap_or(("0", rest));
    let address = Address {
        domain: hexadecimal(domain, 8)?,
        bus: hexadecimal(bus, 2)?.try_into().ok()?,
        device: hexadecimal(device, 2)?.try_into().ok()?,
        function: hexadecimal(function, 1)?.try_into().ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

/// At most `digits` hexadecimal digits, and nothing else: `u32::from_str_radix` would take a sign,
/// too.
fn hexadecimal(text: &str, digits: usize) -> Option<u32> {
    let valid = !text.is_empty()
        && text.len() <= digits
        && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_sysfs_spells_it() {
        assert_eq!("0:1:0.0".parse::<Address>().unwrap().to_string(), "0000:01:00.0");
        assert_eq!("10000:E1:1f.7".parse::<Address>().unwrap().to_string(), "10000:e1:1f.7");
    }

    #[test]
    fn an_address_without_its_domain_is_in_domain_zero() {
        assert_eq!("01:00.0".parse(), "0000:01:00.0".parse::<Address>());
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for text in [
            "",
            "nvme0",
            "01:00",
            "0000:01:20.0",
            "0000:01:00.8",
            "0000:01:00.0x",
            "+1:00.0",
            "0:0:0:0.0",
            "000000001:0:0.0",
        ] {
            assert!(
                text.parse::<Address>().unwrap_err().to_string().contains("0000:01:00.0"),
                "{text}"
            );
        }
    }
}
