//! Disks of the guest: what holds their data, where they fail, how fast they are.

use crate::error::{Doing, Error};
use crate::folder::Folder;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

/// One disk behind a controller: a namespace of an NVMe controller, or a drive of an AHCI or IDE
/// controller.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Its size.
    pub size: Size,
    /// What holds its data.
    #[serde(default)]
    pub backing: Backing,
    /// Bytes of a logical block of a namespace: 512 (without it) or 4096. Those of a drive have
    /// 512.
    pub block_size: Option<u32>,
    /// Logical blocks at which every transfer is a medium error.
    #[serde(default)]
    pub bad: Vec<Bad>,
    /// Bytes that it moves in a second of the host's clock; a tenth of it may come at once.
    pub rate: Option<Size>,
    /// Commands that it does in a second of the host's clock; a tenth of it may come at once.
    pub commands: Option<u64>,
    /// Port of a drive: of an AHCI controller 0 to 5; of an IDE controller 0 and 1 for master and
    /// slave of the primary channel, 2 and 3 for the secondary's. Without it, the one after the
    /// drive before.
    pub port: Option<u8>,
    /// Further properties of QEMU's nvme-ns or ide-hd, for example `ms` for metadata,
    /// `rotation_rate`, `physical_block_size`.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// A block that cannot be read, written, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(from = "BadWord")]
pub struct Bad {
    /// The block.
    pub block: u64,
    /// In which direction it fails; in both without it.
    pub on: Option<Transfer>,
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum BadWord {
    Block(u64),
    #[serde(rename_all = "lowercase")]
    Table {
        block: u64,
        on: Option<Transfer>,
    },
}

impl From<BadWord> for Bad {
    fn from(word: BadWord) -> Self {
        match word {
            BadWord::Block(block) => Self { block, on: None },
            BadWord::Table { block, on } => Self { block, on },
        }
    }
}

/// What holds a disk's data.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "String")]
pub enum Backing {
    /// Nothing: writes vanish, reads give zeroes.
    #[default]
    Null,
    /// Nothing, and reads leave memory as it is: the quickest, for measuring what is not the disk.
    Untouched,
    /// Memory of the host, gone after the run.
    Memory,
    /// A sparse file in the cache folder, gone after the run.
    File,
    /// An image that is there already, and stays.
    Image(PathBuf),
}

impl From<String> for Backing {
    fn from(word: String) -> Self {
        match word.as_str() {
            "null" => Self::Null,
            "untouched" => Self::Untouched,
            "memory" => Self::Memory,
            "file" => Self::File,
            _ => Self::Image(word.into()),
        }
    }
}

/// A size in bytes; in a scenario a number, or text such as `64K`, `512M`, `1G`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SizeWord")]
pub struct Size(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeWord {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeWord> for Size {
    type Error = String;
    fn try_from(word: SizeWord) -> Result<Self, String> {
        match word {
            SizeWord::Number(bytes) => Ok(Self(bytes)),
            SizeWord::Text(text) => text.parse(),
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a size such as 512M or 1G");
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K') => (&text[..text.len() - 1], 10),
            Some(b'M') => (&text[..text.len() - 1], 20),
            Some(b'G') => (&text[..text.len() - 1], 30),
            Some(b'T') => (&text[..text.len() - 1], 40),
            _ => (text, 0),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        number
            .checked_shl(shift)
            .filter(|bytes| bytes >> shift == number)
            .map(Self)
            .ok_or_else(wrong)
    }
}

/// The error of QEMU's block layer that a controller reports as a medium error: EIO.
const MEDIUM_ERROR: u32 = 5;
/// Bytes of a block as QEMU's block layer counts them.
pub(crate) const SECTOR: u64 = 512;

/// QEMU's words for a disk.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// -object
    pub(crate) objects: Vec<Value>,
    /// -blockdev, each after what it stands on; the controller sees the last.
    pub(crate) blocks: Vec<Value>,
}

impl Disk {
    /// A disk of `size` with nothing special.
    pub fn new(size: Size, backing: Backing) -> Self {
        Self { size, backing, ..Self::default() }
    }

    /// Whether its speed is limited.
    pub(crate) fn is_paced(&self) -> bool {
        self.rate.is_some() || self.commands.is_some()
    }

    /// The nodes of this disk, of which the last is called `name`. Files of the run are created in
    /// `folder`.
    pub(crate) fn nodes(&self, name: &str, folder: &Folder) -> Result<Nodes, Error> {
        let mut nodes = Nodes::default();
        // What each does, and its word for the node that it stands on.
        let mut filters = Vec::new();
        if self.is_paced() {
            let group = format!("{name}-pace");
            // Zero is no limit.
            let limits = json!({
                "bps-total": self.rate.unwrap_or_default().0,
                "iops-total": self.commands.unwrap_or(0),
            });
            nodes
                .objects
                .push(json!({ "qom-type": "throttle-group", "id": group, "limits": limits }));
            filters.push((json!({ "driver": "throttle", "throttle-group": group }), "file"));
        }
        if !self.bad.is_empty() {
            let sectors = u64::from(self.block_size.unwrap_or(0)).max(SECTOR) / SECTOR;
            let rules: Vec<Value> = self.bad.iter().map(|bad| bad.rule(sectors)).collect();
            filters.push((json!({ "driver": "blkdebug", "inject-error": rules }), "image"));
        }
        let top = filters.len();
        let node =
            |layer: usize| if layer == top { name.to_string() } else { format!("{name}-{layer}") };
        nodes.blocks.push(data(&node(0), self.size, &self.backing, folder)?);
        for (layer, (mut filter, below)) in filters.into_iter().enumerate() {
            filter["node-name"] = json!(node(layer + 1));
            filter["discard"] = json!("unmap");
            filter[below] = json!(node(layer));
            nodes.blocks.push(filter);
        }
        Ok(nodes)
    }
}

impl Bad {
    /// QEMU's words for it, on a disk whose blocks have so many sectors.
    fn rule(self, sectors: u64) -> Value {
        let sector = self.block.saturating_mul(sectors);
        let mut rule = json!({ "event": "none", "errno": MEDIUM_ERROR, "sector": sector });
        match self.on {
            Some(Transfer::Read) => rule["iotype"] = json!("read"),
            Some(Transfer::Write) => rule["iotype"] = json!("write"),
            None => {}
        }
        rule
    }
}

fn data(node: &str, size: Size, backing: &Backing, folder: &Folder) -> Result<Value, Error> {
    let file = |path: &Path| {
        json!({
            "driver": "raw", "node-name": node, "discard": "unmap",
            "file": { "driver": "file", "filename": path, "discard": "unmap" },
        })
    };
    let null = |zeroes: bool| {
        json!({
            "driver": "null-co", "node-name": node, "size": size.0, "read-zeroes": zeroes,
        })
    };
    match backing {
        Backing::Null => Ok(null(true)),
        Backing::Untouched => Ok(null(false)),
        Backing::Image(path) if path.exists() => Ok(file(path)),
        Backing::Image(path) => Err(Error::Request(format!(
            "backing '{}' is neither null, untouched, memory, file nor an image that exists",
            path.display()
        ))),
        Backing::Memory => Ok(file(&folder.memory(node, size.0)?)),
        Backing::File => Ok(file(&sparse(&folder.path().join(node), size)?)),
    }
}

fn sparse(path: &Path, size: Size) -> Result<PathBuf, Error> {
    let file = File::create(path).doing("creating a disk", path)?;
    file.set_len(size.0).doing("sizing a disk", path)?;
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(disk: &Disk) -> Nodes {
        disk.nodes("d", &Folder::scratch()).unwrap()
    }

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!("64K".parse(), Ok(Size(65536)));
        assert_eq!("1G".parse(), Ok(Size(1 << 30)));
        assert_eq!("17".parse(), Ok(Size(17)));
        for wrong in ["", "G", "1X", "-1M", "99999999999T"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_disk_of_nothing_reads_as_zeroes() {
        let nodes = nodes(&Disk::new(Size(1 << 30), Backing::Null));
        assert_eq!(
            (&nodes.blocks[0]["read-zeroes"], &nodes.blocks[0]["node-name"]),
            (&json!(true), &json!("d"))
        );
    }

    #[test]
    fn the_controller_sees_the_topmost_layer() {
        let disk = Disk {
            bad: vec![Bad { block: 8, on: None }],
            rate: Some(Size(1 << 20)),
            ..Disk::new(Size(512), Backing::Null)
        };
        let blocks = nodes(&disk).blocks;
        let names: Vec<_> =
            blocks.iter().map(|block| block["node-name"].as_str().unwrap()).collect();
        assert_eq!(names, ["d-0", "d-1", "d"]);
        assert_eq!((&blocks[1]["file"], &blocks[2]["image"]), (&json!("d-0"), &json!("d-1")));
    }

    #[test]
    fn a_bad_block_lies_where_the_disks_blocks_have_it() {
        let disk: Disk = toml::from_str(
            "size = 65536\nblock_size = 4096\nbad = [1, { block = 2, on = 'write' }]",
        )
        .unwrap();
        let rules = &nodes(&disk).blocks[1]["inject-error"];
        assert_eq!((&rules[0]["sector"], &rules[0]["iotype"]), (&json!(8), &Value::Null));
        assert_eq!((&rules[1]["sector"], &rules[1]["iotype"]), (&json!(16), &json!("write")));
    }
}
