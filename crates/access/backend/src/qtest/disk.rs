//! The disks behind a controller: what holds their data, where they fail, and how fast they are.
//!
//! # Options
//! `size` (1G), and what holds it: memory, `file=PATH`, or nothing (`null=on`: reads zeros, for
//! measurements). `bad=2048` makes every transfer of that block of 512 bytes a medium error,
//! `bad=2048:write` only writes of it; more follow after colons: `bad=2048:write:4096:read:8192`.
//! `rate=64M` lets so many bytes pass in a second, `commands=1000` so many commands, together for
//! all disks. What was let through at once is paid for by the next command, and QEMU reads an ATA
//! disk's first block when it starts: with `rate=1` a disk hangs.

use std::fs::OpenOptions as FileOptions;
use std::os::fd::OwnedFd;

use ring3_device::Error;

use super::machine;
use crate::Uri;

/// Options that [`Disks`] reads.
pub(super) const KEYS: [&str; 6] = ["size", "file", "null", "bad", "rate", "commands"];
/// Bytes of a disk whose size nobody says.
const SIZE: u64 = 1 << 30;
/// The error that QEMU's block layer gives for a bad block: EIO.
const MEDIUM_ERROR: u8 = 5;
/// The name of what makes disks slow.
const PACE: &str = "pace";

/// The disks of one device.
#[derive(Default)]
pub(super) struct Disks {
    /// Command line.
    pub(super) args: Vec<String>,
    /// Descriptors that the command line names.
    pub(super) files: Vec<OwnedFd>,
}

impl Disks {
    /// `count` disks as `uri` describes them, called `disk0`, `disk1`, ...
    pub(super) fn of(uri: &Uri, count: usize) -> Result<Self, Error> {
        if count > 1 && uri.options.contains_key("file") {
            return Err(Error::Invalid(format!("{uri}: one file cannot be {count} disks")));
        }
        let mut disks = Self::default();
        let (bad, slow) = (bad_blocks(uri)?, disks.pace(uri)?);
        for index in 0..count {
            // Filters stand on what they change, and the controller sees the topmost.
            let filters =
                [slow.then(|| format!("driver=throttle,throttle-group={PACE},file=")), bad.clone()];
            let mut layers: Vec<String> = vec![disks.data(uri)?];
            layers.extend(filters.into_iter().flatten());
            let top = layers.len() - 1;
            let name = |layer: usize| {
                format!(
                    "disk{index}{}",
                    if layer == top { String::new() } else { format!("-{layer}") }
                )
            };
            for (layer, driver) in layers.iter().enumerate() {
                let below = if layer == 0 { String::new() } else { name(layer - 1) };
                disks.args.extend([
                    "-blockdev".into(),
                    format!("node-name={},discard=unmap,{driver}{below}", name(layer)),
                ]);
            }
        }
        Ok(disks)
    }

    /// What holds the data of one disk.
    fn data(&mut self, uri: &Uri) -> Result<String, Error> {
        let size = uri.size("size")?;
        if uri.switch("null")? == Some(true) {
            return Ok(format!("driver=null-co,read-zeroes=on,size={}", size.unwrap_or(SIZE)));
        }
        if let Some(path) = uri.options.get("file") {
            backing_file(uri, path, size)?;
            return Ok(format!("driver=raw,file.driver=file,file.filename={path}"));
        }
        let memory = machine::memfd("ring3-disk")?;
        rustix::fs::ftruncate(&memory, size.unwrap_or(SIZE))
            .map_err(|error| Error::os("sizing a disk in memory", error))?;
        let path = machine::path(&memory);
        self.files.push(memory);
        Ok(format!("driver=raw,file.driver=file,file.locking=off,file.filename={path}"))
    }

    /// Adds the brake that `rate` and `commands` ask for; false if they do not.
    fn pace(&mut self, uri: &Uri) -> Result<bool, Error> {
        let limits = [("bps-total", uri.size("rate")?), ("iops-total", uri.number("commands")?)];
        let limits = limits
            .into_iter()
            .filter_map(|(name, limit)| Some(format!("\"{name}\":{}", limit?)))
            .collect::<Vec<_>>();
        if !limits.is_empty() {
            let group = format!(
                "{{\"qom-type\":\"throttle-group\",\"id\":\"{PACE}\",\"limits\":{{{}}}}}",
                limits.join(",")
            );
            self.args.extend(["-object".into(), group]);
        }
        Ok(!limits.is_empty())
    }
}

/// The filter that fails where `bad` says.
fn bad_blocks(uri: &Uri) -> Result<Option<String>, Error> {
    let Some(text) = uri.options.get("bad") else { return Ok(None) };
    let wrong = || {
        Error::Invalid(format!(
            "{uri}: bad={text} should be blocks, each with :read or :write behind it if it fails \
            only so"
        ))
    };
    let mut rules: Vec<(u64, Option<&str>)> = Vec::new();
    for word in text.split(':') {
        match (word, rules.last_mut()) {
            ("read" | "write", Some((_, direction @ None))) => *direction = Some(word),
            _ => rules.push((word.parse().map_err(|_| wrong())?, None)),
        }
    }
    let rules = rules.into_iter().enumerate().map(|(i, (block, direction))| {
        let direction =
            direction.map(|word| format!("inject-error.{i}.iotype={word},")).unwrap_or_default();
        format!(
            "inject-error.{i}.event=none,inject-error.{i}.errno={MEDIUM_ERROR},\
             inject-error.{i}.sector={block},{direction}"
        )
    });
    Ok(Some(format!("driver=blkdebug,{}image=", rules.collect::<String>())))
}

/// Makes sure of the disk's file; with `size`, one that is absent is made.
fn backing_file(uri: &Uri, path: &str, size: Option<u64>) -> Result<(), Error> {
    let failed =
        |error| Error::os(format!("{uri}: opening {path} (with size=1G it is made)"), error);
    let file = FileOptions::new()
        .read(true)
        .write(true)
        .create(size.is_some())
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    match size {
        Some(size) if len == 0 => file.set_len(size).map_err(failed),
        Some(size) if len != size => {
            Err(Error::Invalid(format!("{uri}: {path} has {len} bytes already, not {size}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(uri: &str, count: usize) -> Result<Disks, Error> {
        Disks::of(&uri.parse::<Uri>().unwrap(), count)
    }

    #[test]
    fn the_controller_sees_the_topmost_layer() {
        let disks = disks("qtest:ich9-ahci,null=on,bad=8,rate=1M", 1).unwrap();
        let nodes: Vec<_> = disks.args.iter().filter(|arg| arg.starts_with("node-name")).collect();
        assert!(nodes[0].starts_with("node-name=disk0-0,") && nodes[1].ends_with("file=disk0-0"));
        assert!(nodes[2].starts_with("node-name=disk0,") && nodes[2].ends_with("image=disk0-1"));
    }

    #[test]
    fn a_bad_block_fails_in_both_directions_unless_it_says_which() {
        let disks = disks("qtest:ich9-ahci,null=on,bad=8:write:9", 1).unwrap();
        let filter = disks.args.last().unwrap();
        assert!(
            filter.contains("inject-error.0.sector=8,inject-error.0.iotype=write,"),
            "{filter}"
        );
        assert!(filter.contains("inject-error.1.sector=9,image"), "{filter}");
    }

    #[test]
    fn a_bad_block_that_is_no_number_is_refused() {
        for wrong in ["write", "8:both", "8:write:read", "-1"] {
            let error = disks(&format!("qtest:ich9-ahci,null=on,bad={wrong}"), 1).err().unwrap();
            assert!(error.to_string().contains("should be blocks"), "{error}");
        }
    }

    #[test]
    fn a_file_of_another_size_is_not_touched() {
        let path = std::env::temp_dir().join(format!("ring3-model-{}", std::process::id()));
        std::fs::write(&path, [1; 512]).unwrap();
        let result = disks(&format!("qtest:nvme,size=1M,file={}", path.display()), 1);
        let len = std::fs::metadata(&path).unwrap().len();
        std::fs::remove_file(&path).unwrap();
        assert!(result.is_err());
        assert_eq!(len, 512);
    }
}
