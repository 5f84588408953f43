//! The kernel's disk of the function, before it is taken from the kernel and after.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ring3_pci::{Address, Host, disks};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::secrets::Secrets;
use super::verify::Region;

/// How long a disk may take to appear after its driver was given the function.
const APPEAR: Duration = Duration::from_secs(30);
/// What O_DIRECT wants of addresses and lengths, for all blocks that there are.
const ALIGN: usize = 4096;
/// Files of sysfs that hold a disk's or its drive's serial numbers and names.
const OWN: [&str; 7] = ["wwid", "serial", "device/serial", "device/wwid", "nguid", "uuid", "eui"];

/// A disk of the kernel's.
pub struct Disk {
    pub path: PathBuf,
    pub bytes: u64,
}

/// The one that is meant: the function's only one, or its namespace `part`.
pub fn disk(address: Address, part: Option<u32>) -> Result<Disk> {
    let mut names = disks(&Host::this(), address);
    let count = names.len();
    if let Some(part) = part {
        // Only namespaces have numbers there: a drive is known if it is the only one.
        names.retain(|name| match attribute(name, "nsid") {
            Some(nsid) => nsid == part.to_string(),
            None => count == 1,
        });
    }
    let [name] = &names[..] else {
        bail!("which of the kernel's disks it is cannot be told: {count} are there")
    };
    let sectors: u64 = attribute(name, "size").and_then(|size| size.parse().ok()).unwrap_or(0);
    let path = Path::new("/dev").join(name);
    let kind = fs::metadata(&path).with_context(|| path.display().to_string())?.file_type();
    ensure!(kind.is_block_device() && sectors > 0, "{} has no blocks", path.display());
    // In sectors of 512 bytes, whatever its blocks are. [Linux, admin-guide/abi-stable block]
    Ok(Disk { path, bytes: sectors * 512 })
}

/// The same once it is there again.
pub fn disk_again(address: Address, part: Option<u32>) -> Result<Disk> {
    let since = Instant::now();
    loop {
        match disk(address, part) {
            Err(_) if since.elapsed() < APPEAR => std::thread::sleep(Duration::from_millis(50)),
            found => return found,
        }
    }
}

/// Adds what the kernel knows of serial numbers of the function's disks and cards.
pub fn add_secrets(address: Address, secrets: &mut Secrets) {
    for name in disks(&Host::this(), address) {
        for attribute in OWN.iter().filter_map(|own| attribute(&name, own)) {
            secrets.add(&attribute);
            // `eui.0025385b71b00b7a`, `t10.ATA     MODEL     SERIAL`: the last word is its own.
            let last = attribute.rsplit(['.', ' ']).next();
            last.into_iter().for_each(|word| secrets.add(word));
        }
    }
    let folder = format!("/sys/bus/pci/devices/{address}/net");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        secrets.add(&fs::read_to_string(entry.path().join("address")).unwrap_or_default());
    }
}

fn attribute(disk: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/sys/class/block").join(disk).join(name)).ok()?;
    Some(text.trim().to_owned())
}

impl Disk {
    /// What the kernel reads of each region, past its cache.
    pub fn digests(&self, regions: &[Region]) -> Result<Vec<String>> {
        let name = || self.path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(&self.path);
        let file = file.with_context(name)?;
        let longest = regions.iter().map(|region| region.bytes as usize).max().unwrap_or(0);
        let mut memory = vec![0; longest + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        let digest = |region: &Region| {
            let bytes = &mut memory[start..start + region.bytes as usize];
            file.read_exact_at(bytes, region.offset).with_context(name)?;
            Ok(hexadecimal(&Sha256::digest(&*bytes)))
        };
        regions.iter().map(digest).collect()
    }
}

/// A digest as text.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
