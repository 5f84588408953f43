//! Archives in cpio's "newc" form: the kernel's initramfs, and how files travel between host and
//! guest.

use crate::error::Error;
use cpio::newc::{self, Builder, ModeFileType};
use std::collections::BTreeSet;
use std::io::{Read, Write};

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
            return Err(Error::Format {
                what: path.into(),
                why: "larger than an initramfs can hold (4 GiB)".into(),
            });
        }
        self.entry(path, ModeFileType::Regular, mode, content, (0, 0));
        Ok(())
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, ModeFileType::Symlink, 0o777, target.as_bytes(), (0, 0));
    }

    /// A folder.
    pub(crate) fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if !path.is_empty() && self.folders.insert(path.into()) {
            self.entry(path, ModeFileType::Directory, 0o755, &[], (0, 0));
        }
    }

    /// A character device node.
    pub(crate) fn node(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, ModeFileType::Char, 0o600, &[], (major, minor));
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let _ = newc::trailer(&mut self.bytes);
        // The kernel reads the next archive at a four-byte boundary; whole sectors keep every
        // reader happy.
        let length = self.bytes.len().next_multiple_of(512);
        self.bytes.resize(length, 0);
        self.bytes
    }

    fn entry(
        &mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        content: &[u8],
        (major, minor): (u32, u32),
    ) {
        let path = path.trim_start_matches('/');
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.inodes += 1;
        // Times stay zero, so that equal content is an equal archive.
        let header =
            Builder::new(path).ino(self.inodes).mode(mode).set_mode_file_type(kind).nlink(1);
        let mut entry =
            header.rdev_major(major).rdev_minor(minor).write(&mut self.bytes, content.len() as u32);
        // A vector takes whatever there is.
        let _ = entry.write_all(content).and_then(|()| entry.finish().map(drop));
    }
}

/// An entry of an archive.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) content: Vec<u8>,
}

/// The regular files of an archive that a guest wrote. Paths that are absolute or climb out are an
/// error.
pub(crate) fn files(mut archive: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    loop {
        let mut reader = newc::Reader::new(archive).map_err(|error| damaged(&error.to_string()))?;
        let (is_trailer, mode) = (reader.entry().is_trailer(), reader.entry().mode());
        if is_trailer {
            return Ok(entries);
        }
        let name = reader.entry().name();
        let path = name.strip_prefix("./").unwrap_or(name).to_owned();
        if path.starts_with('/') || path.split('/').any(|part| part == "..") {
            return Err(damaged("a path leaves the folder"));
        }
        let mut content = Vec::new();
        let size = reader.entry().file_size() as usize;
        reader.read_to_end(&mut content).map_err(|error| damaged(&error.to_string()))?;
        if content.len() != size {
            return Err(damaged("cut short"));
        }
        if mode & 0o170_000 == u32::from(ModeFileType::Regular) {
            entries.push(Entry { path, content });
        }
        archive = reader.finish().map_err(|error| damaged(&error.to_string()))?;
    }
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
        let entry =
            |path: &str, content: &[u8]| Entry { path: path.into(), content: content.into() };
        assert_eq!(files, [entry("a/b/one", b"first"), entry("a/b/three", b"")]);
    }

    #[test]
    fn folders_come_once_and_before_their_content() {
        let (bytes, mut names) = (archive(), Vec::new());
        let mut reader = newc::Reader::new(&*bytes).unwrap();
        while !reader.entry().is_trailer() {
            names.push(reader.entry().name().to_owned());
            reader = newc::Reader::new(reader.finish().unwrap()).unwrap();
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
        let trailer = bytes.windows(10).position(|w| w == b"TRAILER!!!").unwrap();
        for length in 0..trailer {
            assert!(files(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_path_that_climbs_out_is_an_error() {
        for path in ["../x", "a/../../x"] {
            let mut writer = Writer::new();
            writer.entry(path, ModeFileType::Regular, 0o644, b"x", (0, 0));
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
