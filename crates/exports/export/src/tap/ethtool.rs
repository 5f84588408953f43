//! What `ethtool` and `/sys/class/net/NAME/speed` say of an interface's link. [linux/ethtool.h]

use std::io;
use std::os::fd::AsRawFd;

use ring3_class::net::Link;
use rustix::net::{AddressFamily, SocketType, socket};

/// Asks for a link's settings, and sets them. The newer commands also have lists of modes, of which
/// an interface without a plug has none.
const GET: u32 = 0x1;
const SET: u32 = 0x2;
/// What a speed or duplex is that nobody knows. Above the highest speed there is.
const UNKNOWN_SPEED: u32 = u32::MAX;
const UNKNOWN_DUPLEX: u8 = 0xff;

/// `struct ethtool_cmd`.
#[repr(C)]
#[derive(Default)]
struct Settings {
    command: u32,
    supported: u32,
    advertised: u32,
    speed_low: u16,
    duplex: u8,
    /// Port, PHY's address, transceiver, autonegotiation, MDIO's kind.
    port: [u8; 5],
    most_packets: [u32; 2],
    speed_high: u16,
    crossed: [u8; 2],
    partner: u32,
    reserved: [u32; 2],
}

/// Has the interface `name`, of the network namespace of the calling thread, say how fast the
/// card's link is. It needs CAP_NET_ADMIN.
pub fn set_speed(name: &str, link: &Link) -> io::Result<()> {
    // Of any family: the request is the interface's. A service may be denied those of IP.
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let mut settings = Settings { command: GET, ..Settings::default() };
    // SAFETY: all zeroes are an `ifreq`: numbers, and a union of numbers, addresses and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
        .for_each(|(to, from)| *to = from as libc::c_char);
    let mut ask = |settings: *mut Settings| {
        request.ifr_ifru.ifru_data = settings.cast();
        // SAFETY: the kernel reads the request, and reads and writes one `ethtool_cmd` behind its
        // pointer; both outlive the call.
        let done = unsafe {
            libc::ioctl(any.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    ask(&raw mut settings)?;
    let speed = link.speed.filter(|_| link.up).unwrap_or(UNKNOWN_SPEED);
    (settings.speed_low, settings.speed_high) = (speed as u16, (speed >> 16) as u16);
    settings.duplex = link.full_duplex.filter(|_| link.up).map_or(UNKNOWN_DUPLEX, u8::from);
    settings.command = SET;
    ask(&raw mut settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_laid_out_as_the_kernel_has_them() {
        assert_eq!(size_of::<Settings>(), 44);
        assert_eq!(std::mem::offset_of!(Settings, duplex), 14);
        assert_eq!(std::mem::offset_of!(Settings, speed_high), 28);
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        let error = set_speed("r3-nowhere", &Link::default()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
