//! Manifests as files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Device, Error, Kind, ManifestEntry, Match, UserHalf};
use crate::scrape::Endpoint;

/// Where Prometheus finds the metrics of all devices, if `path` says so:
/// `[metrics] listen = "127.0.0.1:9123"`.
pub fn metrics(path: &Path) -> Result<Option<Endpoint>, Error> {
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
        let wrong = |reason: String| Error::Wrong { path: file.clone(), reason };
        if let Some(Metrics { listen }) = document(&text).map_err(wrong)?.metrics {
            return listen
                .parse()
                .map(Some)
                .map_err(|reason: String| wrong(format!("[metrics]: {reason}")));
        }
    }
    Ok(None)
}

fn unreadable(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    |error| Error::Read { path, error }
}

/// The files of a manifest, in their order.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries =
            fs::read_dir(path).map_err(unreadable(path))?.flatten().map(|entry| entry.path());
        files = entries
            .filter(|file| file.extension().is_some_and(|extension| extension == "toml"))
            .collect();
        files.sort();
    }
    Ok(files)
}

/// All that `path`, a file or a folder, wants, by name.
pub fn read(path: &Path) -> Result<Vec<ManifestEntry>, Error> {
    let mut all: BTreeMap<String, (ManifestEntry, PathBuf)> = BTreeMap::new();
    for file in files(path)? {
        let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
        for wanted in wanted(&text).map_err(|reason| Error::Wrong { path: file.clone(), reason })? {
            let name = wanted.name().to_owned();
            if let Some((_, other)) = all.get(&name) {
                let reason =
                    format!("{name} is in {}, too: name one of them otherwise", other.display());
                return Err(Error::Wrong { path: file, reason });
            }
            all.insert(name, (wanted, file.clone()));
        }
    }
    let all: Vec<_> = all.into_values().map(|(wanted, _)| wanted).collect();
    twice(&devices(&all))
        .map_or(Ok(()), |reason| Err(Error::Wrong { path: path.to_owned(), reason }))?;
    if all.is_empty() {
        return Err(Error::Empty { path: path.to_owned() });
    }
    Ok(all)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: BTreeMap<String, Device>,
    #[serde(default)]
    split: BTreeMap<String, UserHalf>,
    metrics: Option<Metrics>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metrics {
    listen: String,
}

fn document(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// The devices of one document.
pub fn parse(text: &str) -> Result<Vec<Device>, String> {
    Ok(devices(&wanted(text)?).into_iter().cloned().collect())
}

fn devices(all: &[ManifestEntry]) -> Vec<&Device> {
    all.iter().filter_map(ManifestEntry::device).collect()
}

/// All that one document wants.
fn wanted(text: &str) -> Result<Vec<ManifestEntry>, String> {
    let file = document(text)?;
    let device = |(name, device)| {
        let device = Device { name, ..device };
        device.check().map_err(|reason| format!("[device.{}]: {reason}", device.name))?;
        Ok(ManifestEntry::Device(Box::new(device)))
    };
    let half = |(name, half)| {
        let half = UserHalf { name, ..half };
        half.check()
            .map_err(|reason| format!("[split.{}]: {reason}", half.name))
            .map(|()| ManifestEntry::UserHalf(half))
    };
    file.device.into_iter().map(device).chain(file.split.into_iter().map(half)).collect()
}

/// Whether a disk or a partition of `device` might be called `name`: `NAME-2`, `NAME-part1`,
/// `NAME-2-part1`. How many it has, its driver says.
fn may_be_called(device: &Device, name: &str) -> bool {
    let is_number = |text: &str| {
        text.parse::<u32>().is_ok_and(|number| number > 0 && number.to_string() == text)
    };
    let Some(rest) = name.strip_prefix(device.link()).and_then(|rest| rest.strip_prefix('-'))
    else {
        return false;
    };
    let is_part = |rest: &str| rest.strip_prefix("part").is_some_and(is_number);
    // One that was asked for is the only one.
    let is_disk = |rest: &str| device.part.is_none() && is_number(rest);
    is_part(rest)
        || is_disk(rest)
        || rest.split_once('-').is_some_and(|(disk, part)| is_disk(disk) && is_part(part))
}

/// Two devices of which one may come to have the other's name.
fn derived(devices: &[&Device]) -> Option<String> {
    let disks = || devices.iter().filter(|device| device.export.kind == Kind::Ublk);
    let pair = disks()
        .find_map(|one| disks().find(|two| may_be_called(one, two.link())).map(|two| (one, two)))?;
    let ((one, two), link) = (pair, pair.1.link());
    Some(format!(
        "[device.{}] may have a disk or a partition that is called {link}, as [device.{}] is: name \
         one of them otherwise, or write part = ... in [device.{}] if it has one disk",
        one.name, two.name, one.name
    ))
}

/// Why two devices cannot be had at the same time.
fn twice(devices: &[&Device]) -> Option<String> {
    if let Some(why) = derived(devices) {
        return Some(why);
    }
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for device in devices {
        let matched =
            (!matches!(device.r#match, Match::Class(_))).then(|| format!("{:?}", device.r#match));
        let name = match device.export.kind {
            Kind::Ublk => format!("the link {}", device.link()),
            Kind::Tap => format!("the interface {}", device.interface()),
            Kind::SharedDisk | Kind::SharedCard => format!("the sockets of {}", device.name),
        };
        let keys = [matched, Some(name), device.export.id.map(|id| format!("id = {id}"))];
        for key in keys.into_iter().flatten() {
            if let Some(other) = seen.insert(key.clone(), &device.name) {
                return Some(format!(
                    "[device.{}] and [device.{other}] are the same or want the same: {key}",
                    device.name
                ));
            }
        }
    }
    None
}
