//! The recording of the device's start and identity, without serial numbers.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use ring3_decorator::recording::{self, Recording};
use ring3_spec::nvme;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::kernel::hexadecimal;
use super::report::RecordingFile;
use super::secrets::Secrets;
use super::steps::is_ata;
use crate::leave::{Kept, or_end};

/// Writes what is recorded in `raw` to `clean` without serial numbers, as the recording of
/// `command` with `device`. The file is there whole or not at all, also after a signal.
pub fn clean(
    raw: &Path,
    clean: &Path,
    secrets: &Secrets,
    (device, command): (String, Vec<String>),
) -> Result<()> {
    let name = || clean.display().to_string();
    let recording = Recording::open(raw)?;
    // Of drives it is known where they write what; a text that is short is found by accident.
    let secrets = match recording.header.class {
        nvme::CLASS => Vec::new(),
        class if is_ata(class) => Vec::new(),
        _ => secrets.bytes(),
    };
    let folder = clean.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).with_context(name)?;
    let mut file = BufWriter::new(beside.as_file().try_clone().with_context(name)?);
    let beside = Kept::new(Some(beside));
    recording::clean(recording, &mut file, &secrets, (device, command))?;
    file.flush().with_context(name)?;
    // Readable as any file that a user makes, and not by its owner alone.
    let permissions = std::fs::Permissions::from_mode(0o644);
    file.get_ref().set_permissions(permissions).with_context(name)?;
    let persist = |slot: &mut Option<NamedTempFile>| {
        slot.take().map(|file| file.persist_noclobber(clean).map_err(|error| error.error))
    };
    or_end(beside.with(persist)).transpose().with_context(name)?;
    Ok(())
}

/// What the report says of the recording at `path`.
pub fn describe(path: &Path, cleaned: bool, data: bool) -> Result<RecordingFile> {
    let name = || path.display().to_string();
    let mut file = File::open(path).with_context(name)?;
    let (mut sum, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        match file.read(&mut piece).with_context(name)? {
            0 => break,
            len => {
                sum.update(&piece[..len]);
                bytes += len as u64;
            }
        }
    }
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(RecordingFile { file, bytes, sha256: hexadecimal(&sum.finalize()), cleaned, data })
}
