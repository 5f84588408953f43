//! Kernel modules: which files a module needs, in the order in which they must be loaded.

use crate::bzimage;
use crate::error::{Doing, Error};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What depmod found out about one kernel's modules. Names are kept with underscores: `nvme-core`
/// is `nvme_core`.
pub(crate) struct Modules {
    folder: PathBuf,
    /// Name to file and files that it depends on, as `modules.dep` has them.
    files: BTreeMap<String, (String, Vec<String>)>,
    built_in: BTreeSet<String>,
    soft: BTreeMap<String, SoftDependencies>,
    aliases: BTreeMap<String, Vec<String>>,
}

/// Modules that should be loaded before and after another one, if there are any of that name.
#[derive(Default)]
struct SoftDependencies {
    before: Vec<String>,
    after: Vec<String>,
}

impl Modules {
    /// Reads the tables in `folder` (`lib/modules/RELEASE`).
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let table = |name: &str| fs::read_to_string(folder.join(name));
        let dep = table("modules.dep")
            .doing("reading the module dependencies", &folder.join("modules.dep"))?;
        // Tables that a small kernel may not have.
        let optional = |name| table(name).unwrap_or_default();
        Ok(Self::parse(
            folder,
            &dep,
            &optional("modules.builtin"),
            &optional("modules.softdep"),
            &optional("modules.alias"),
        ))
    }

    fn parse(folder: &Path, dep: &str, built_in: &str, soft: &str, alias: &str) -> Self {
        let files = dep.lines().filter_map(|line| line.split_once(':')).map(|(file, needs)| {
            let needs = needs.split_whitespace().map(String::from).collect();
            (name_of(file), (file.to_string(), needs))
        });
        let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in alias.lines() {
            if let ["alias", name, module] = line.split_whitespace().collect::<Vec<_>>()[..] {
                aliases.entry(normal(name)).or_default().push(normal(module));
            }
        }
        Self {
            folder: folder.into(),
            files: files.collect(),
            built_in: built_in.lines().map(name_of).collect(),
            soft: soft.lines().filter_map(soft_dependency).collect(),
            aliases,
        }
    }

    /// Files of `names` and of everything that they need, in loading order, each once. Built-in
    /// modules have none.
    pub(crate) fn closure(&self, names: &[String]) -> Result<Vec<Module>, Error> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let name = normal(name);
            if !self.known(&name) {
                return Err(Error::Request(format!(
                    "kernel module '{name}' is not in {}",
                    self.folder.display()
                )));
            }
            self.visit(&name, &mut seen, &mut order);
        }
        Ok(order)
    }

    fn known(&self, name: &str) -> bool {
        self.files.contains_key(name)
            || self.built_in.contains(name)
            || self.aliases.contains_key(name)
    }

    /// Dependencies that this kernel cannot fulfil are left out.
    fn visit(&self, name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<Module>) {
        if !seen.insert(name.into()) {
            return;
        }
        if let Some((file, needs)) = self.files.get(name) {
            let none = SoftDependencies::default();
            let SoftDependencies { before, after } = self.soft.get(name).unwrap_or(&none);
            before.iter().for_each(|wish| self.visit(wish, seen, order));
            // modules.dep lists the nearest first, so loading goes from the back.
            needs.iter().rev().for_each(|need| self.visit(&name_of(need), seen, order));
            order.push(Module { name: name.into(), path: self.folder.join(file) });
            after.iter().for_each(|wish| self.visit(wish, seen, order));
        } else if let Some(modules) =
            self.aliases.get(name).filter(|_| !self.built_in.contains(name))
        {
            modules.iter().for_each(|module| self.visit(module, seen, order));
        }
    }
}

/// One file to load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Module {
    /// Name with underscores.
    pub(crate) name: String,
    /// The file, packed or not.
    pub(crate) path: PathBuf,
}

impl Module {
    /// The module's code, decompressed: the guest is slow at that.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Error> {
        let packed = fs::read(&self.path).doing("reading a kernel module", &self.path)?;
        bzimage::unpack(&packed, &self.path.to_string_lossy())
    }
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// `kernel/drivers/nvme/host/nvme-core.ko.xz` is `nvme_core`.
fn name_of(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    normal(base.split_once(".ko").map_or(base, |(name, _)| name))
}

/// A line `softdep NAME pre: A B post: C`.
fn soft_dependency(line: &str) -> Option<(String, SoftDependencies)> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|word| *word == "softdep").and_then(|_| words.next())?;
    let mut soft = SoftDependencies::default();
    let mut post = false;
    for word in words {
        match word {
            "pre:" => post = false,
            "post:" => post = true,
            module if post => soft.after.push(normal(module)),
            module => soft.before.push(normal(module)),
        }
    }
    Some((normal(name), soft))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/a/nvme.ko.xz: kernel/a/nvme-core.ko.xz kernel/a/nvme-auth.ko.xz
kernel/a/nvme-core.ko.xz: kernel/a/nvme-auth.ko.xz
kernel/a/nvme-auth.ko.xz:
kernel/v/vfio.ko:
kernel/v/vfio_iommu_type1.ko: kernel/v/vfio.ko
kernel/f/ext4.ko: kernel/f/jbd2.ko
kernel/f/jbd2.ko:
kernel/c/crc32c_generic.ko:
";
    const SOFT: &str = "# comment\nsoftdep ext4 pre: crypto-crc32c\nsoftdep vfio post: \
                        vfio_iommu_type1 vfio_iommu_spapr_tce\n";

    fn order(names: &[&str]) -> Result<Vec<String>, Error> {
        let modules = Modules::parse(
            Path::new("/m"),
            DEP,
            "kernel/v/virtio_pci.ko\n",
            SOFT,
            "alias crypto-crc32c crc32c_generic\n",
        );
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        Ok(modules.closure(&names)?.into_iter().map(|module| module.name).collect())
    }

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        assert_eq!(order(&["nvme", "nvme-core"]).unwrap(), ["nvme_auth", "nvme_core", "nvme"]);
    }

    #[test]
    fn soft_dependencies_come_before_and_after_and_may_be_missing() {
        assert_eq!(order(&["vfio"]).unwrap(), ["vfio", "vfio_iommu_type1"]);
        assert_eq!(order(&["ext4"]).unwrap(), ["crc32c_generic", "jbd2", "ext4"]);
    }

    #[test]
    fn a_built_in_module_needs_no_file() {
        assert_eq!(order(&["virtio-pci"]).unwrap(), [""; 0]);
    }

    #[test]
    fn an_unknown_module_is_an_error_that_names_it() {
        assert!(order(&["nvmee"]).unwrap_err().to_string().contains("'nvmee'"));
    }

    #[test]
    fn a_packed_module_is_read_unpacked() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.ko.xz");
        let mut packed = liblzma::write::XzEncoder::new(Vec::new(), 6);
        packed.write_all(b"\x7fELF module").unwrap();
        fs::write(&path, packed.finish().unwrap()).unwrap();
        assert_eq!(Module { name: "x".into(), path }.read().unwrap(), b"\x7fELF module");
    }
}
