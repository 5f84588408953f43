//! A machine made of files: sysfs, procfs and device files as a kernel shows them, and a kernel
//! that acts on what is written.

use std::fs;
use std::io::{self, PipeReader, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ring3_pci::{Address, Host, Kernel, Node};
use rustix::event::{PollFd, PollFlags};
use tempfile::TempDir;

/// The machine. Its files go away with it.
pub struct Machine {
    root: TempDir,
    kernel: Arc<Actor>,
}

/// What the kernel does when it is asked.
#[derive(Default)]
struct Actor {
    root: PathBuf,
    /// Drivers that fail to take any function.
    broken: Mutex<Vec<String>>,
    /// Drivers that can be loaded as modules.
    modules: Mutex<Vec<String>>,
    /// Who takes a function without an override.
    ordinary: Mutex<Vec<(String, String)>>,
    /// Attributes that may not be written, and block devices that may not be opened.
    forbidden: Mutex<Vec<String>>,
    /// Block devices that somebody has claimed.
    claimed: Mutex<Vec<String>>,
    /// Claims that this machine has granted: the disk, and what tells that it was let go of.
    granted: Mutex<Vec<(String, PipeReader)>>,
    /// Attributes on whose writing the kernel does not answer.
    stuck: Mutex<Vec<String>>,
    /// What was asked for, in order.
    journal: Mutex<Vec<String>>,
}

impl Machine {
    /// A machine with an IOMMU and no functions.
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Actor { root: root.path().into(), ..Actor::default() });
        let machine = Self { root, kernel };
        for directory in [
            "sys/bus/pci/devices",
            "sys/bus/pci/drivers",
            "sys/class/block",
            "sys/class/net",
            "sys/dev/block",
            "sys/dev/char",
            "dev/vfio",
            "run",
        ] {
            fs::create_dir_all(machine.path(directory)).unwrap();
        }
        fs::create_dir_all(machine.path("sys/kernel/iommu_groups")).unwrap();
        machine.file("proc/interrupts", "  24:  0  IR-PCI-MSI 0-edge\n");
        machine.file("proc/self/status", "Name:\tring3\nCapEff:\t0000000000000000\n");
        machine.memlock("8388608");
        machine
    }

    /// The machine for the code under test.
    pub fn host(&self) -> Host {
        Host::at(self.root.path(), self.kernel.clone())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub fn file(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn memlock(&self, soft: &str) {
        let text = format!(
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {soft}  {soft}  \
            bytes\n"
        );
        self.file("proc/self/limits", &text);
    }

    /// Adds an NVMe controller at `address`, in `group` if there is one, with `driver` if it has
    /// one.
    pub fn function(&self, address: &str, group: Option<u32>, driver: Option<&str>) -> Address {
        self.function_of_class(address, group, driver, "0x010802")
    }

    pub fn function_of_class(
        &self,
        address: &str,
        group: Option<u32>,
        driver: Option<&str>,
        class: &str,
    ) -> Address {
        let directory = format!("sys/devices/pci0000:00/{address}");
        let attributes = [
            ("vendor", "0x8086\n"),
            ("device", "0x0953\n"),
            ("driver_override", "(null)\n"),
            ("reset_method", "flr bus\n"),
        ];
        attributes.iter().for_each(|(name, text)| self.file(&format!("{directory}/{name}"), text));
        self.file(&format!("{directory}/class"), class);
        self.file(
            &format!("{directory}/resource"),
            "0x00000000fe000000 0x00000000fe003fff 0x0000000000140204\n",
        );
        self.link(&format!("sys/bus/pci/devices/{address}"), &directory);
        if let Some(group) = group {
            let directory_of_group = format!("sys/kernel/iommu_groups/{group}");
            fs::create_dir_all(self.path(&format!("{directory_of_group}/devices"))).unwrap();
            self.link(&format!("{directory_of_group}/devices/{address}"), &directory);
            self.link(&format!("{directory}/iommu_group"), &directory_of_group);
        }
        if let Some(driver) = driver {
            self.driver(driver);
            self.kernel.ordinary.lock().unwrap().push((address.into(), driver.into()));
            self.kernel.attach(address, driver);
        }
        address.parse().unwrap()
    }

    /// Registers a driver.
    pub fn driver(&self, name: &str) {
        fs::create_dir_all(self.path(&format!("sys/bus/pci/drivers/{name}"))).unwrap();
    }

    /// Reserves huge pages.
    pub fn huge_pages(&self, total: u64, free: u64) {
        let directory = "sys/kernel/mm/hugepages/hugepages-2048kB";
        self.file(&format!("{directory}/nr_hugepages"), &format!("{total}\n"));
        self.file(&format!("{directory}/free_hugepages"), &format!("{free}\n"));
    }

    /// Adds a disk below the function; its device number is `number`.
    pub fn disk(&self, address: &str, name: &str, number: &str) {
        self.block(&format!("sys/devices/pci0000:00/{address}/nvme/nvme0/{name}"), number);
    }

    /// Adds partition `part` of the disk `name`.
    pub fn partition(&self, address: &str, name: &str, part: &str, number: &str) {
        let directory = format!("sys/devices/pci0000:00/{address}/nvme/nvme0/{name}/{part}");
        self.block(&directory, number);
        self.file(&format!("{directory}/partition"), "1");
    }

    /// Adds a block device whose directory in sysfs is given.
    pub fn block(&self, directory: &str, number: &str) {
        let name = directory.rsplit('/').next().unwrap();
        self.file(&format!("{directory}/dev"), number);
        self.link(&format!("sys/class/block/{name}"), directory);
        self.link(&format!("sys/dev/block/{number}"), directory);
        self.file(&format!("dev/{name}"), &format!("block {number}"));
    }

    /// Adds a character device whose directory in sysfs is given.
    pub fn character(&self, directory: &str, number: &str) {
        let name = directory.rsplit('/').next().unwrap();
        self.file(&format!("{directory}/dev"), number);
        self.link(&format!("sys/dev/char/{number}"), directory);
        self.file(&format!("dev/{name}"), &format!("char {number}"));
    }

    /// Adds a loop device over the block device `under`.
    pub fn loop_over(&self, name: &str, number: &str, under: &str) {
        self.block(&format!("sys/devices/virtual/block/{name}"), number);
        self.file(
            &format!("sys/devices/virtual/block/{name}/loop/backing_file"),
            "/somewhere/else\n",
        );
        self.file(
            &format!("dev/{name}.under"),
            &fs::read_to_string(self.path(&format!("dev/{under}"))).unwrap(),
        );
    }

    /// Lets somebody claim the block device `name`.
    pub fn claim(&self, name: &str) {
        self.kernel.claimed.lock().unwrap().push(name.into());
    }

    /// Lets process `pid` have a mount namespace of its own, in which the device `number` is
    /// mounted.
    pub fn mount_inside(&self, pid: u32, name: &str, number: &str, at: &str, source: &str) {
        self.file(&format!("proc/{pid}/comm"), name);
        self.file(
            &format!("proc/{pid}/mountinfo"),
            &format!("90 1 {number} / {at} rw - ext4 {source} rw\n"),
        );
        fs::create_dir_all(self.path(&format!("proc/{pid}/fd"))).unwrap();
        fs::create_dir_all(self.path(&format!("proc/{pid}/ns"))).unwrap();
        symlink(format!("mnt:[{pid}]"), self.path(&format!("proc/{pid}/ns/mnt"))).unwrap();
    }

    /// Adds a network interface below the function.
    pub fn interface(&self, address: &str, name: &str, flags: &str) {
        let directory = format!("sys/devices/pci0000:00/{address}/net/{name}");
        self.file(&format!("{directory}/flags"), flags);
        self.link(&format!("sys/class/net/{name}"), &directory);
    }

    pub fn mount(&self, number: &str, at: &str, source: &str) {
        self.file("proc/self/mountinfo", &format!("22 1 {number} / {at} rw - ext4 {source} rw\n"));
    }

    /// Lets process `pid` have `/file` open.
    pub fn open_by(&self, pid: u32, name: &str, file: &str) {
        self.file(&format!("proc/{pid}/comm"), name);
        let directory = self.path(&format!("proc/{pid}/fd"));
        fs::create_dir_all(&directory).unwrap();
        symlink(Path::new("/").join(file), directory.join("7")).unwrap();
    }

    pub fn link(&self, from: &str, to: &str) {
        let from = self.path(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.path(to), from).unwrap();
    }

    pub fn break_driver(&self, name: &str) {
        self.kernel.broken.lock().unwrap().push(name.into());
    }

    pub fn offer_module(&self, name: &str) {
        self.kernel.modules.lock().unwrap().push(name.into());
    }

    pub fn stall(&self, attribute: &str) {
        self.kernel.stuck.lock().unwrap().push(attribute.into());
    }

    pub fn forbid(&self, attribute: &str) {
        self.kernel.forbidden.lock().unwrap().push(attribute.into());
    }

    pub fn driver_of(&self, address: &str) -> Option<String> {
        self.kernel.driver_of(address)
    }

    pub fn override_of(&self, address: &str) -> String {
        fs::read_to_string(self.path(&format!("sys/bus/pci/devices/{address}/driver_override")))
            .unwrap()
            .trim()
            .into()
    }

    pub fn journal(&self) -> Vec<String> {
        self.kernel.journal.lock().unwrap().clone()
    }
}

impl Actor {
    fn device(&self, address: &str) -> PathBuf {
        self.root.join(format!("sys/bus/pci/devices/{address}"))
    }

    fn driver_of(&self, address: &str) -> Option<String> {
        Some(fs::read_link(self.device(address).join("driver")).ok()?.file_name()?.to_str()?.into())
    }

    fn attach(&self, address: &str, driver: &str) {
        symlink(
            self.root.join(format!("sys/bus/pci/drivers/{driver}")),
            self.device(address).join("driver"),
        )
        .unwrap();
        if driver == "vfio-pci" {
            let link = self.device(address).join("iommu_group");
            // Behind Arm's IOMMU, the first driver brings the group.
            let group = fs::read_link(&link).unwrap_or_else(|_| {
                let group = self.root.join("sys/kernel/iommu_groups/9");
                fs::create_dir_all(group.join("devices")).unwrap();
                symlink(&group, &link).unwrap();
                group
            });
            fs::write(self.root.join("dev/vfio").join(group.file_name().unwrap()), "").unwrap();
        }
    }

    fn notice_ends_of_claims(&self) {
        let is_held = |reader: &PipeReader| {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut [PollFd::new(reader, PollFlags::empty())], Some(&now)).unwrap()
                == 0
        };
        self.granted.lock().unwrap().retain(|(name, reader)| {
            let held = is_held(reader);
            (!held).then(|| self.journal.lock().unwrap().push(format!("let go of {name}")));
            held
        });
    }

    /// `drivers_probe`: the override decides alone; without one, the ordinary driver takes the
    /// function.
    fn probe(&self, address: &str) {
        let chosen = fs::read_to_string(self.device(address).join("driver_override"))
            .unwrap()
            .trim()
            .to_owned();
        let ordinary = self
            .ordinary
            .lock()
            .unwrap()
            .iter()
            .find(|(function, _)| function == address)
            .map(|(_, driver)| driver.clone());
        let driver =
            if ["", "(null)"].contains(&chosen.as_str()) { ordinary } else { Some(chosen) };
        let exists = |driver: &String| self.root.join("sys/bus/pci/drivers").join(driver).exists();
        if let Some(driver) =
            driver.filter(exists).filter(|driver| !self.broken.lock().unwrap().contains(driver))
            && self.driver_of(address).is_none()
        {
            self.attach(address, &driver);
        }
    }
}

impl Kernel for Actor {
    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let attribute = path.file_name().unwrap().to_str().unwrap();
        if self.forbidden.lock().unwrap().iter().any(|forbidden| forbidden == attribute) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.stuck.lock().unwrap().iter().any(|stuck| stuck == attribute) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not answered"));
        }
        self.notice_ends_of_claims();
        self.journal.lock().unwrap().push(format!("{attribute} {}", value.trim()).trim().into());
        match attribute {
            "unbind" => fs::remove_file(self.device(value).join("driver")),
            "drivers_probe" => {
                self.probe(value);
                Ok(())
            }
            _ => fs::write(path, if value == "\n" { "(null)\n" } else { value }),
        }
    }

    fn node(&self, path: &Path) -> io::Result<Option<Node>> {
        // The links of descriptors lead to this machine's files.
        let target = fs::read_link(path)
            .map_or(path.into(), |target| self.root.join(target.strip_prefix("/").unwrap()));
        Ok(node(&fs::read_to_string(target)?))
    }

    fn claim(&self, path: &Path) -> io::Result<OwnedFd> {
        let name = path.file_name().unwrap().to_str().unwrap();
        if self.forbidden.lock().unwrap().iter().any(|forbidden| forbidden == name) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let claimed = self.claimed.lock().unwrap();
        // With a part of it, a disk is claimed, too.
        if claimed.iter().any(|claimed| claimed == name || claimed.starts_with(&format!("{name}p")))
        {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.journal.lock().unwrap().push(format!("claim {name}"));
        let (reader, writer) = pipe()?;
        self.granted.lock().unwrap().push((name.into(), reader));
        Ok(writer.into())
    }

    fn under_loop(&self, path: &Path) -> io::Result<Option<Node>> {
        Ok(node(&fs::read_to_string(path.with_extension("under"))?))
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        self.journal.lock().unwrap().push(format!("modprobe {name}"));
        if !self.modules.lock().unwrap().iter().any(|module| module == name) {
            return Err(io::Error::other(format!("Module {name} not found")));
        }
        fs::create_dir_all(self.root.join("sys/bus/pci/drivers").join(name))
    }
}

/// What a file of `/dev` stands for: `block 259:0`.
fn node(text: &str) -> Option<Node> {
    let (kind, number) = text.split_once(' ')?;
    let (major, minor) = number.split_once(':')?;
    let number = (major.parse().ok()?, minor.parse().ok()?);
    ["block", "char"].contains(&kind).then(|| Node { block: kind == "block", number })
}
