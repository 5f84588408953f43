//! Which drivers can be hosted: the folders of `dde/linux/drivers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Arguments of `ring3 dde list`.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object for each driver.
    #[arg(long)]
    json: bool,
}

/// What `driver.toml` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    about: String,
    class: String,
    qtest: Vec<String>,
    status: String,
}

/// A driver as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    driver: String,
    about: String,
    class: String,
    devices: Vec<String>,
    status: String,
}

/// `dde:NAME`, where a driver is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("dde:") {
            Some(name) if is_name(name) => Ok(Self(name.into())),
            _ => Err(format!(
                "{text:?} names no hosted driver: dde:e1000e is one, ring3 dde list has them; ring3's own driver is found without --driver"
            )),
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// The folder `dde` of ring3's source: `$RING3_DDE`, or in a folder above this program.
pub fn root() -> Result<PathBuf> {
    let is_root = |folder: &PathBuf| folder.join("linux/Makefile").is_file();
    if let Some(named) = std::env::var_os("RING3_DDE").filter(|value| !value.is_empty()).map(PathBuf::from) {
        return match is_root(&named) {
            true => Ok(named),
            false => bail!("RING3_DDE={} is not the folder dde of ring3's source", named.display()),
        };
    }
    let program = std::env::current_exe().context("finding this program")?;
    let found = program.ancestors().map(|folder| folder.join("dde")).find(is_root);
    found.context("the folder dde of ring3's source is not above this program: name it by RING3_DDE")
}

/// Makes sure that there is such a driver.
pub fn check(root: &Path, driver: &str) -> Result<()> {
    if is_name(driver) && root.join("linux/drivers").join(driver).join("driver.list").is_file() {
        return Ok(());
    }
    let names: Vec<_> = names(root)?;
    bail!("no driver {driver:?} can be hosted: there are {}", names.join(", "))
}

fn names(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("linux/drivers");
    let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
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

/// Lists them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let root = root()?;
    let listed = names(&root)?.into_iter().map(|name| describe(&root, name)).collect::<Result<Vec<_>>>()?;
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
    fn every_driver_of_the_source_says_what_it_is_and_of_which_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dde");
        let names = names(&root).unwrap();
        assert!(names.contains(&"e1000e".to_owned()));
        for name in names {
            check(&root, &name).unwrap();
            assert!(!describe(&root, name).unwrap().devices.is_empty());
        }
        assert!(check(&root, "nosuch").unwrap_err().to_string().contains("e1000e"));
    }
}
