//! The program of a hosted driver: one that was put beside this program, where drivers cannot be
//! built, or one that is built now.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ring3_lab::Guest;

use super::build;
use super::catalogue::is_name;
use super::tools::Tools;
use super::{Class, Name};

/// Folders in which a hosted driver's program may lie, from that of this program.
const PLACES: [&str; 2] = [".", "../lib/ring3"];
/// Folders in which the library may lie, from that of such a program, as its linker was told.
const LIBRARIES: [&str; 3] = [".", "..", "../lib"];

/// A hosted driver's program, which can be started.
pub struct Program {
    path: PathBuf,
    /// Where `libring3.so` is, if the program does not find it itself.
    library: Option<PathBuf>,
}

impl Program {
    /// That of a driver, built if nobody has put it there and it was not built before: of what is
    /// built, one of another class than the `wanted` is refused.
    pub fn of(Name(driver): &Name, wanted: Option<Class>) -> Result<Self> {
        let own = std::env::current_exe().context("finding this program")?;
        if let Some(path) = installed(own.parent().unwrap_or(Path::new("/")), driver) {
            return Ok(Self { path, library: None });
        }
        wanted.map_or(Ok(()), |class| Name(driver.clone()).check(class))?;
        let built = build::build(driver, true)?;
        Ok(Self { path: built.program, library: Some(built.library) })
    }

    /// The same, built as `tools` want it.
    pub fn with(name: &Name, wanted: Option<Class>, tools: &Tools) -> Result<Self> {
        tools.check()?;
        if !tools.wants_a_build() {
            return Self::of(name, wanted);
        }
        wanted.map_or(Ok(()), |class| name.check(class))?;
        let built = build::build_as(&name.0, &tools.form(), true)?;
        Ok(Self { path: built.program, library: Some(built.library) })
    }

    /// Adds it to a guest, with the library.
    pub fn enter(&self, guest: Guest) -> Result<Guest> {
        let beside = || {
            let folder = self.path.parent().unwrap_or(Path::new("/"));
            LIBRARIES
                .map(|place| folder.join(place))
                .into_iter()
                .find(|folder| folder.join(build::SONAME).is_file())
        };
        let library = self.library.clone().or_else(beside);
        let library = library
            .with_context(|| format!("{} is not near {}", build::SONAME, self.path.display()))?;
        let has_it = guest.libraries.contains(&library);
        Ok(if has_it { guest } else { guest.libraries(&library) }.program(&self.path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What starts it, under what `tools` name; `alone` if nobody is there to talk to a debugger.
    pub fn command(&self, tools: &Tools, alone: bool) -> Command {
        let mut command = tools.command(&self.path, alone);
        command.envs(self.library.iter().map(|folder| ("LD_LIBRARY_PATH", folder)));
        command
    }
}

fn installed(folder: &Path, driver: &str) -> Option<PathBuf> {
    let place = |place: &str| folder.join(place).join(format!("dde-{driver}"));
    PLACES.map(place).into_iter().find(|path| is_name(driver) && path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_was_put_beside_the_program_or_in_lib_ring3_is_taken_and_no_other_path() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib/ring3"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&lib).unwrap();
        assert_eq!(installed(&bin, "e1000e"), None);
        std::fs::write(lib.join("dde-e1000e"), "").unwrap();
        assert!(installed(&bin, "e1000e").unwrap().ends_with("lib/ring3/dde-e1000e"));
        std::fs::write(bin.join("dde-e1000e"), "").unwrap();
        assert!(installed(&bin, "e1000e").unwrap().ends_with("bin/./dde-e1000e"));
        assert_eq!(installed(&bin, "../bin/dde-e1000e"), None);
    }

    #[test]
    fn a_driver_that_lies_beside_the_program_goes_into_a_guest_with_the_library_near_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str| Program {
            path: folder.path().join("lib/ring3").join(name),
            library: None,
        };
        let error = program("dde-a").enter(Guest::new("g")).err().unwrap().to_string();
        assert!(error.contains(&format!("{} is not near", build::SONAME)), "{error}");
        std::fs::create_dir_all(folder.path().join("lib/ring3")).unwrap();
        std::fs::write(folder.path().join("lib").join(build::SONAME), "").unwrap();
        let guest =
            program("dde-b").enter(program("dde-a").enter(Guest::new("g")).unwrap()).unwrap();
        assert_eq!((guest.programs.len(), guest.libraries.len()), (2, 1));
        assert!(guest.libraries[0].join(build::SONAME).is_file());
    }
}
