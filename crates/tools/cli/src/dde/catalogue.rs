//! Which drivers can be hosted: the folders of `dde/linux/drivers`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Arguments of `ring3 dde list`.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object for each driver, instead of a table.
    #[arg(long)]
    json: bool,
}

/// What `driver.toml` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    about: String,
    class: Class,
    qtest: Vec<String>,
    status: String,
}

/// What a driver makes of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A network card.
    Net,
    /// A disk.
    Block,
    /// What plays sound.
    Sound,
}

impl Class {
    /// By which the files that its drivers have in common are named.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Block => "block",
            Self::Sound => "sound",
        }
    }
}

/// A driver as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    driver: String,
    about: String,
    class: Class,
    devices: Vec<String>,
    status: String,
}

/// `dde:NAME`, where a driver is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dde:{}", self.0)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("dde:") {
            Some(name) if is_name(name) => Ok(Self(name.into())),
            _ => Err(format!(
                "{text:?} names no hosted driver: dde:e1000e and dde:nvme are such, ring3 dde list \
                has them; ring3's own driver is found without --driver"
            )),
        }
    }
}

impl Name {
    /// Makes sure that there is such a driver, and that its device is a `wanted` one.
    pub fn check(&self, wanted: Class) -> Result<()> {
        let root = root()?;
        check(&root, &self.0)?;
        match (class(&root, &self.0)?, wanted) {
            (Class::Block, Class::Net) => bail!("dde:{} drives a disk: ring3 blk check", self.0),
            (Class::Net, Class::Block) => {
                bail!("dde:{} drives a network card: ring3 net check", self.0)
            }
            (Class::Sound, Class::Net | Class::Block) => {
                bail!(
                    "dde:{} drives a sound card: ring3 dde run {} --device URI --play FILE.wav",
                    self.0,
                    self.0
                )
            }
            _ => Ok(()),
        }
    }
}

/// Whether a driver may be called so: a folder, and no path.
pub fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// The folder `dde` of ring3's source: `$RING3_DDE`, or in a folder above this program, where that
/// may be installed.
pub fn root() -> Result<PathBuf> {
    let is_root = |folder: &PathBuf| folder.join("linux/Makefile").is_file();
    if let Some(named) =
        std::env::var_os("RING3_DDE").filter(|value| !value.is_empty()).map(PathBuf::from)
    {
        return match is_root(&named) {
            true => Ok(named),
            false => bail!("RING3_DDE={} is not the folder dde of ring3's source", named.display()),
        };
    }
    let program = std::env::current_exe().context("finding this program")?;
    let places =
        program.ancestors().flat_map(|folder| [folder.join("dde"), folder.join("share/ring3/dde")]);
    let found = places.into_iter().find(is_root);
    found.context(
        "hosted drivers are built of the folder dde of ring3's source, which is not above this \
         program: name it by RING3_DDE, or put the built program dde-NAME beside this one",
    )
}

/// Makes sure that there is such a driver.
pub fn check(root: &Path, driver: &str) -> Result<()> {
    if is_name(driver) && root.join("linux/drivers").join(driver).join("driver.list").is_file() {
        return Ok(());
    }
    let names: Vec<_> = names(root)?;
    bail!("no driver {driver:?} can be hosted: there are {}", names.join(", "))
}

/// The drivers of the folder `dde` that is `root`, in the order of their names.
pub fn names(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("linux/drivers");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn describe(root: &Path, driver: String) -> Result<Listed> {
    let path = root.join("linux/drivers").join(&driver).join("driver.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let said: Description = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let devices = said.qtest.iter().map(|model| format!("qtest:{model}")).collect();
    Ok(Listed { driver, about: said.about, class: said.class, devices, status: said.status })
}

/// What `driver`, which there is, makes of its device.
pub fn class(root: &Path, driver: &str) -> Result<Class> {
    Ok(describe(root, driver.to_owned())?.class)
}

/// The first device that `driver` was tried with.
pub fn device(root: &Path, driver: &str) -> Result<String> {
    let listed = describe(root, driver.to_owned())?;
    listed
        .devices
        .into_iter()
        .next()
        .with_context(|| format!("dde:{driver} was tried with no device: name one by --device"))
}

/// Lists them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let root = root()?;
    let listed =
        names(&root)?.into_iter().map(|name| describe(&root, name)).collect::<Result<Vec<_>>>()?;
    if args.json {
        outln!("{}", serde_json::to_string(&listed)?);
        return Ok(ExitCode::SUCCESS);
    }
    for Listed { driver, about, devices, status, .. } in listed {
        outln!("dde:{driver:<12} {about}");
        outln!("{:16} tried with {}: {status}", "", devices.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_folder_and_no_path() {
        assert_eq!("dde:e1000e".parse(), Ok(Name("e1000e".into())));
        for wrong in ["e1000e", "dde:", "dde:../linux", "dde:a b"] {
            assert!(wrong.parse::<Name>().unwrap_err().contains("ring3 dde list"), "{wrong}");
        }
    }

    #[test]
    fn every_driver_has_files_of_its_own_of_which_is_counted_and_fuzzed_what_was_reached() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dde");
        for name in names(&root).unwrap() {
            let list =
                std::fs::read_to_string(root.join("linux/drivers").join(&name).join("driver.list"))
                    .unwrap();
            assert!(list.lines().any(|line| line.ends_with(".o")), "{name}: {list}");
        }
    }

    #[test]
    fn every_driver_of_the_source_says_what_it_is_and_of_which_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dde");
        let names = names(&root).unwrap();
        assert!(names.contains(&"e1000e".to_owned()));
        for name in names {
            check(&root, &name).unwrap();
            let listed = describe(&root, name).unwrap();
            assert!(!listed.devices.is_empty());
            assert!(
                root.join("linux/lists")
                    .join(listed.class.folder())
                    .with_extension("list")
                    .is_file()
            );
        }
        assert!(check(&root, "nosuch").unwrap_err().to_string().contains("e1000e"));
    }
}
