//! Who may do what: a socket, and what everyone who connects to it gets.

use std::path::PathBuf;
use std::str::FromStr;

use ring3_class::Error;
use ring3_class::block::Info;

use super::terms::{SocketOption, parse};
use crate::wire::MAX_SEGMENTS;

/// A socket and its terms: `PATH[,KEY=VALUE]...`. Limits are each client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where to connect.
    pub path: PathBuf,
    /// The file's rights: who may connect.
    pub mode: u32,
    /// Clients at the same time.
    pub clients: u16,
    /// First byte of the disk that they see, a multiple of its blocks.
    pub offset: u64,
    /// Bytes that they see; to the end of the disk if `None`.
    pub size: Option<u64>,
    /// They cannot change the disk.
    pub read_only: bool,
    /// Requests in a second.
    pub iops: Option<u64>,
    /// Bytes in a second.
    pub rate: Option<u64>,
    /// Requests in flight.
    pub depth: u16,
    /// Queues.
    pub queues: u16,
    /// Bytes of memory for data.
    pub memory: u64,
    /// Its part of the disk where several want all of it, 1 to 100.
    pub weight: u16,
}

/// Keys, for messages.
const KEYS: &str = "mode, clients, offset, size, access (rw or ro), iops, rate (bytes in a \
                    second), depth, queues, memory, weight";

impl Access {
    /// All of the disk, for this user.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            mode: 0o600,
            clients: 8,
            offset: 0,
            size: None,
            read_only: false,
            iops: None,
            rate: None,
            depth: 64,
            queues: 4,
            memory: 128 << 20,
            weight: 1,
        }
    }

    fn set(&mut self, term: SocketOption<'_>) -> Result<(), String> {
        match term.key {
            "mode" => self.mode = term.mode()?,
            "access" => {
                self.read_only = match term.value {
                    "ro" => true,
                    "rw" => false,
                    _ => return Err(term.wrong("rw or ro")),
                }
            }
            "clients" => self.clients = term.number(1, 64)? as u16,
            "offset" => self.offset = term.number(0, u64::MAX)?,
            "size" => self.size = Some(term.number(1, u64::MAX)?),
            "iops" => self.iops = Some(term.number(1, 1 << 32)?),
            "rate" => self.rate = Some(term.number(1, 1 << 40)?),
            "depth" => self.depth = term.number(1, 256)? as u16,
            "queues" => self.queues = term.number(1, 16)? as u16,
            "memory" => self.memory = term.number(1 << 16, 1 << 32)?,
            "weight" => self.weight = term.number(1, 100)? as u16,
            _ => return Err(term.unknown(KEYS)),
        }
        Ok(())
    }
}

impl FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text, Self::new, Self::set)
    }
}

/// What a client of an [`Access`] gets of one disk.
pub(super) struct DiskGrant {
    pub access: Access,
    /// The disk as it sees it.
    pub info: Info,
    /// Where its block 0 is.
    pub first: u64,
}

impl DiskGrant {
    /// Of the disk that `info` describes; [`Error::Invalid`] if it has no such part.
    pub fn new(access: Access, info: &Info) -> Result<Self, Error> {
        let wrong = |what: &str, bytes: u64| {
            Error::Invalid(format!(
                "{}: {what}={bytes}: the disk has {} blocks of {} bytes; name whole blocks that it \
                has",
                access.path.display(),
                info.blocks,
                info.block_size
            ))
        };
        let block = u64::from(info.block_size);
        let first = access.offset / block;
        if !access.offset.is_multiple_of(block) || first >= info.blocks {
            return Err(wrong("offset", access.offset));
        }
        let size = access.size.unwrap_or((info.blocks - first) * block);
        if !size.is_multiple_of(block) || size == 0 || size / block > info.blocks - first {
            return Err(wrong("size", size));
        }
        let mut seen = Info {
            blocks: size / block,
            read_only: info.read_only || access.read_only,
            ..info.clone()
        };
        seen.segments.max = seen.segments.max.min(MAX_SEGMENTS as u32);
        Ok(Self { access, info: seen, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::block::{Disk, Null};

    fn info() -> Info {
        Null::new(512, 1000, 4096).unwrap().info().clone()
    }

    #[test]
    fn terms_stand_behind_the_path() {
        let access: Access =
            "/run/a,offset=1M,size=64K,access=ro,iops=100,rate=10M,depth=8,mode=660"
                .parse()
                .unwrap();
        let terms = Access {
            mode: 0o660,
            offset: 1 << 20,
            size: Some(64 << 10),
            read_only: true,
            iops: Some(100),
            rate: Some(10 << 20),
            depth: 8,
            ..Access::new("/run/a")
        };
        assert_eq!(access, terms);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, says) in [
            ("", "path is missing"),
            ("/a,depth", "key=value"),
            ("/a,depth=0", "from 1 to 256"),
            ("/a,access=maybe", "rw or ro"),
            ("/a,colour=red", "there are: mode"),
            ("/a,mode=999", "660"),
        ] {
            let error = text.parse::<Access>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_part_of_the_disk_is_a_disk_of_its_own_size() {
        let grant =
            DiskGrant::new("/a,offset=51200,size=10240,access=ro".parse().unwrap(), &info())
                .unwrap();
        assert_eq!((grant.first, grant.info.blocks, grant.info.read_only), (100, 20, true));
        let rest = DiskGrant::new("/a,offset=51200".parse().unwrap(), &info()).unwrap();
        assert_eq!(rest.info.blocks, 900);
    }

    #[test]
    fn a_part_beyond_the_end_or_within_a_block_is_refused() {
        for text in
            ["/a,offset=512000", "/a,offset=100", "/a,size=100", "/a,offset=511488,size=1024"]
        {
            let error = DiskGrant::new(text.parse().unwrap(), &info()).err().unwrap().to_string();
            assert!(error.contains("1000 blocks of 512 bytes"), "{error}");
        }
    }
}
