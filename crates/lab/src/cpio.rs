//! cpio archives in the "newc" form: the kernel's initramfs, and how files travel between host and guest.
//!
//! References: [INITRAMFS] Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

use crate::error::Error;
use std::collections::BTreeSet;

const HEADER: usize = 110;
const TRAILER: &str = "TRAILER!!!";
/// Largest file size a header can say.
const FILE_LIMIT: usize = u32::MAX as usize;

/// Writes an archive into memory. Folders above an entry are added by themselves.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    inodes: u32,
    folders: BTreeSet<String>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A file with `mode` (permission bits). `path` is absolute in the guest.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<(), Error> {
        if content.len() > FILE_LIMIT {
            return Err(Error::Format { what: path.into(), why: "larger than an initramfs can hold (4 GiB)".into() });
        }
        self.entry(path, 0o100_000 | mode, content, (0, 0));
        Ok(())
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, 0o120_777, target.as_bytes(), (0, 0));
    }

    /// A folder.
    pub(crate) fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.folders.insert(path.into()) {
            return;
        }
        self.entry(path, 0o040_755, &[], (0, 0));
    }

    /// A character device node.
    pub(crate) fn node(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, 0o020_600, &[], (major, minor));
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.header(TRAILER, 0, 0, (0, 0));
        // The kernel reads the next archive at a four-byte boundary; whole sectors keep every reader happy.
        self.pad(512);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8], device: (u32, u32)) {
        let path = path.trim_start_matches('/');
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.header(path, mode, content.len() as u32, device);
        self.bytes.extend_from_slice(content);
        self.pad(4);
    }

    fn header(&mut self, name: &str, mode: u32, size: u32, (major, minor): (u32, u32)) {
        self.inodes += 1;
        self.bytes.extend_from_slice(b"070701");
        // ino mode uid gid nlink mtime size devmajor devminor rdevmajor rdevminor namesize check
        // Times are zero, so that equal content is an equal archive.
        let fields = [self.inodes, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name.len() as u32 + 1, 0];
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad(4);
    }

    fn pad(&mut self, to: usize) {
        let length = self.bytes.len().next_multiple_of(to);
        self.bytes.resize(length, 0);
    }
}

/// An entry of an archive.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    pub(crate) path: &'a str,
    pub(crate) content: &'a [u8],
}

/// The regular files of an archive that a guest wrote. Paths that are absolute or climb out are an error.
pub(crate) fn files(mut archive: &[u8]) -> Result<Vec<Entry<'_>>, Error> {
    let mut entries = Vec::new();
    loop {
        let (mode, entry, rest) = next(archive)?;
        if entry.path == TRAILER {
            return Ok(entries);
        }
        let path = entry.path.strip_prefix("./").unwrap_or(entry.path);
        if path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(damaged("a path leaves the folder"));
        }
        if mode & 0o170_000 == 0o100_000 {
            entries.push(Entry { path, ..entry });
        }
        archive = rest;
    }
}

/// The first entry of `archive` with its mode, and what follows it.
fn next(archive: &[u8]) -> Result<(u32, Entry<'_>, &[u8]), Error> {
    let header = archive.get(..HEADER).ok_or_else(|| damaged("cut short"))?;
    if &header[..6] != b"070701" && &header[..6] != b"070702" {
        return Err(damaged("no header where one should be"));
    }
    let field = |index: usize| {
        let digits = header.get(6 + 8 * index..14 + 8 * index).and_then(|d| std::str::from_utf8(d).ok());
        digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| damaged("a header field is no number"))
    };
    let (mode, size, name_size) = (field(1)?, field(6)? as usize, field(11)? as usize);
    let name = archive.get(HEADER..HEADER + name_size).ok_or_else(|| damaged("cut short"))?;
    let path = std::str::from_utf8(name.strip_suffix(&[0]).unwrap_or(name)).map_err(|_| damaged("a name is not UTF-8"))?;
    let start = (HEADER + name_size).next_multiple_of(4);
    let content = archive.get(start..start + size).ok_or_else(|| damaged("cut short"))?;
    let rest = archive.get((start + size).next_multiple_of(4)..).unwrap_or(&[]);
    Ok((mode, Entry { path, content }, rest))
}

fn damaged(why: &str) -> Error {
    Error::Format { what: "files from the guest".into(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut writer = Writer::new();
        writer.file("/a/b/one", 0o644, b"first").unwrap();
        writer.link("/a/two", "b/one");
        writer.file("/a/b/three", 0o755, b"").unwrap();
        writer.finish()
    }

    #[test]
    fn what_was_written_is_read_back() {
        let bytes = archive();
        let files = files(&bytes).unwrap();
        assert_eq!(files, [Entry { path: "a/b/one", content: b"first" }, Entry { path: "a/b/three", content: b"" }]);
    }

    #[test]
    fn folders_come_once_and_before_their_content() {
        let bytes = archive();
        let mut names = Vec::new();
        let mut rest = bytes.as_slice();
        loop {
            let (_, entry, after) = next(rest).unwrap();
            if entry.path == TRAILER {
                break;
            }
            names.push(entry.path);
            rest = after;
        }
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/two", "a/b/three"]);
    }

    #[test]
    fn equal_content_is_an_equal_archive() {
        assert_eq!(archive(), archive());
    }

    #[test]
    fn an_archive_ends_on_a_boundary_so_that_another_can_follow() {
        assert_eq!(archive().len() % 512, 0);
    }

    #[test]
    fn an_archive_cut_anywhere_is_an_error_and_no_panic() {
        let bytes = archive();
        let trailer = bytes.windows(10).position(|w| w == TRAILER.as_bytes()).unwrap();
        for length in 0..trailer {
            assert!(files(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_path_that_climbs_out_is_an_error() {
        for path in ["../x", "a/../../x"] {
            let mut writer = Writer::new();
            writer.entry(path, 0o100_644, b"x", (0, 0));
            assert!(files(&writer.finish()).is_err(), "{path}");
        }
    }

    #[test]
    fn sizes_that_are_no_numbers_or_beyond_the_end_are_errors() {
        let mut bytes = archive();
        // Field 6 of the first header, after the magic and six fields of eight digits.
        bytes[54..62].copy_from_slice(b"FFFFFFFF");
        assert!(files(&bytes).is_err());
        bytes[54..62].copy_from_slice(b"zzzzzzzz");
        assert!(files(&bytes).is_err());
    }
}
