//! A device that this process serves.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use crate::message::{Message, Request};
use crate::uapi::{self, ConfigData, IotlbEntry, QueueConfig, QueueEvent, QueueInfo};
use crate::{Error, check_name};

/// How often it is tried to open a device whose server is about to be gone.
const RETRY: Duration = Duration::from_millis(5);

/// Where a driver has put a split virtqueue, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vring {
    /// Its number.
    pub index: u16,
    /// Entries.
    pub size: u32,
    /// Where the table of descriptors is.
    pub descriptors: u64,
    /// Where the driver's ring is.
    pub driver: u64,
    /// Where the device's ring is.
    pub device: u64,
    /// The available index with which it begins.
    pub available: u16,
    /// The driver has set it up.
    pub ready: bool,
}

/// `/dev/vduse/NAME`, open. One process has it at a time; it outlives that.
#[derive(Debug)]
pub struct Device {
    name: String,
    file: File,
}

impl Device {
    /// Whether there is one of that name, served or not.
    pub fn exists(name: &str) -> bool {
        check_name(name).is_ok()
            && std::fs::exists(format!("{}/{name}", uapi::FOLDER)).unwrap_or(false)
    }

    /// The names of all there are, served or not, in order.
    pub fn names() -> Vec<String> {
        let entries = std::fs::read_dir(uapi::FOLDER).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| check_name(name).is_ok());
        names.sort();
        names
    }

    /// Opens it. A process that has it may take up to `patience` to be gone: the kernel lets go of
    /// the memory of a killed one first.
    pub fn open(name: &str, patience: Duration) -> Result<Self, Error> {
        check_name(name)?;
        let (path, since) = (format!("{}/{name}", uapi::FOLDER), Instant::now());
        loop {
            match File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)
            {
                Ok(file) => return Ok(Self { name: name.into(), file }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(Error::Absent(name.into()));
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(Error::Permission);
                }
                Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
                    return Err(Error::os(path, error));
                }
                Err(_) if since.elapsed() >= patience => return Err(Error::Served(name.into())),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    /// No device, and whatever it is asked fails. For tests of what is above.
    #[doc(hidden)]
    pub fn of_nothing() -> io::Result<Self> {
        Ok(Self { name: "nothing".into(), file: File::open("/dev/null")? })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What driver and device agree upon. Zero before they do.
    pub fn features(&self) -> Result<u64, Error> {
        let mut features = 0u64;
        // SAFETY: the operation writes one word.
        self.checked("VDUSE_DEV_GET_FEATURES", unsafe {
            self.ioctl(uapi::GET_FEATURES, &raw mut features)
        })?;
        Ok(features)
    }

    /// Says that `queue` has `size` entries at most. All have to be set up before the device goes
    /// to the bus.
    pub fn set_up(&self, queue: u16, size: u16) -> Result<(), Error> {
        let mut config = QueueConfig { index: queue.into(), max_size: size, reserved: [0; 13] };
        // SAFETY: the operation reads one structure.
        self.checked("VDUSE_VQ_SETUP", unsafe { self.ioctl(uapi::VQ_SETUP, &raw mut config) })
    }

    /// Where the driver has `queue`.
    pub fn vring(&self, queue: u16) -> Result<Vring, Error> {
        let mut info = QueueInfo { index: queue.into(), ..QueueInfo::default() };
        // SAFETY: the operation reads and writes one structure.
        self.checked("VDUSE_VQ_GET_INFO", unsafe { self.ioctl(uapi::VQ_GET_INFO, &raw mut info) })?;
        let QueueInfo { size, descriptors, driver, device, available, ready, .. } = info;
        Ok(Vring { index: queue, size, descriptors, driver, device, available, ready: ready != 0 })
    }

    /// Raises `event`, an eventfd, whenever the driver kicks `queue`, from now on up to the next
    /// reset.
    pub fn kicks(&self, queue: u16, event: BorrowedFd<'_>) -> Result<(), Error> {
        let mut setup = QueueEvent { index: queue.into(), fd: event.as_raw_fd() };
        // SAFETY: the operation reads one structure.
        self.checked("VDUSE_VQ_SETUP_KICKFD", unsafe {
            self.ioctl(uapi::VQ_SETUP_KICKFD, &raw mut setup)
        })
    }

    /// Interrupts the driver for `queue`. That it has none, or is being reset, is nothing that
    /// could be mended here.
    #[inline]
    pub fn interrupt(&self, queue: u16) {
        let mut index = u32::from(queue);
        // SAFETY: the operation reads one word.
        let _ = unsafe { self.ioctl(uapi::VQ_INJECT_IRQ, &raw mut index) };
    }

    /// Changes the configuration from `offset` on, and tells the driver.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), Error> {
        let head = ConfigData { offset, length: bytes.len() as u32 };
        let mut whole =
            [&head.offset.to_ne_bytes()[..], &head.length.to_ne_bytes(), bytes].concat();
        // SAFETY: the operation reads two words and as many bytes behind them as the second says.
        self.checked("VDUSE_DEV_SET_CONFIG", unsafe {
            self.ioctl(uapi::SET_CONFIG, whole.as_mut_ptr())
        })?;
        // Before there is a driver nobody needs to be told.
        // SAFETY: the operation takes nothing.
        let _ = unsafe { libc::ioctl(self.file.as_raw_fd(), uapi::INJECT_CONFIG_IRQ) };
        Ok(())
    }

    /// The first region that has something of `start..=last`, and a descriptor by which it can be
    /// mapped; `None` if nothing is mapped there.
    pub fn region(&self, start: u64, last: u64) -> io::Result<Option<(OwnedFd, IotlbEntry)>> {
        let mut entry = IotlbEntry { start, last, ..IotlbEntry::default() };
        // SAFETY: the operation reads and writes one structure.
        let fd = unsafe { self.ioctl(uapi::IOTLB_GET_FD, &raw mut entry) };
        if fd >= 0 {
            // SAFETY: the kernel has just opened it for the caller.
            return Ok(Some((unsafe { OwnedFd::from_raw_fd(fd) }, entry)));
        }
        match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            error => Err(error),
        }
    }

    /// What the kernel asks for, if it does. It is [answered](Self::answer) within 30 seconds, or
    /// the device is broken for good.
    pub fn message(&self) -> io::Result<Option<Message>> {
        let mut message = uapi::Message::default();
        // SAFETY: the structure is words without padding, which take any bytes.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut((&raw mut message).cast::<u8>(), size_of_val(&message))
        };
        match (&self.file).read(bytes) {
            Ok(_) => Ok(Some(Message::of(&message))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Answers `message`; for [`Request::State`] with the available index up to which the queue has
    /// come.
    pub fn answer(&self, message: &Message, answer: Result<u16, ()>) -> io::Result<()> {
        let result = if answer.is_ok() { uapi::RESULT_OK } else { uapi::RESULT_FAILED };
        let mut response =
            uapi::Message { first: message.id, second: result, ..uapi::Message::default() };
        if let (Request::State { queue }, Ok(available)) = (message.request, answer) {
            (response.body[0], response.body[1]) = (queue, available.into());
        }
        // SAFETY: the structure is words without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const response).cast::<u8>(), size_of_val(&response))
        };
        (&self.file).write_all(bytes)
    }

    /// # Safety
    /// `argument` is what `operation` reads and writes.
    unsafe fn ioctl<T>(&self, operation: libc::Ioctl, argument: *mut T) -> i32 {
        // SAFETY: passed on.
        unsafe { libc::ioctl(self.file.as_raw_fd(), operation, argument) }
    }

    fn checked(&self, what: &str, result: i32) -> Result<(), Error> {
        if result < 0 {
            Err(Error::os(format!("{what} {}", self.name), io::Error::last_os_error()))
        } else {
            Ok(())
        }
    }
}

impl AsFd for Device {
    /// Readable when there is a [message](Device::message).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
