//! `ring3 bind` and `ring3 unbind`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use ring3_pci::{
    Address, BindError, BindReport, Blocked, Function, Host, PassthroughDriver, UnbindPlan, bind,
    examine, plan_unbind, uio_file, unbind,
};

/// Options of `ring3 bind`.
#[derive(clap::Args)]
pub struct BindArgs {
    /// The PCI function: DOMAIN:BUS:DEVICE.FUNCTION, such as 0000:01:00.0.
    address: Address,
    /// The passthrough driver: vfio-pci, or uio_pci_generic, with which no IOMMU checks the
    /// device's transfers.
    #[arg(long, default_value_t)]
    driver: PassthroughDriver,
    /// Take the function even if it is in use. Prints first what is taken from whom. Its users see
    /// errors, and data that is not written yet is lost.
    #[arg(long)]
    force: bool,
    /// Make this user the owner of the group's file /dev/vfio/N, so that the user can run drivers
    /// without root. With vfio-pci only.
    #[arg(long, value_name = "NAME|UID")]
    owner: Option<String>,
    /// Print what would be done, and do nothing. The exit code is 1 if it would be refused.
    #[arg(long)]
    dry_run: bool,
}

/// Options of `ring3 unbind`.
#[derive(clap::Args)]
pub struct UnbindArgs {
    /// The PCI function: DOMAIN:BUS:DEVICE.FUNCTION, such as 0000:01:00.0.
    address: Address,
    /// Print what would be done, and do nothing. The exit code is 1 if it would be refused.
    #[arg(long)]
    dry_run: bool,
}

/// Hands a function to a driver that hands it on.
pub fn run_bind(args: BindArgs) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    // Before anything is changed: a name that does not exist leaves everything as it is.
    let owner = args.owner.as_deref().map(|owner| user_id(&host, owner)).transpose()?;
    if owner.is_some() && args.driver == PassthroughDriver::Uio {
        bail!(
            "{}: only root can drive it by uio_pci_generic, so it has no other owner",
            args.address
        );
    }
    if args.dry_run {
        return dry_run(&host, &args, owner);
    }
    let mut told = |blocked: &Blocked| errln!("taken by force: {}", blocked.problem());
    let done =
        bind(&host, args.address, args.driver, if args.force { Some(&mut told) } else { None })?;
    outln!("{}", describe(&done));
    for (state, off) in &done.link {
        match off {
            Ok(()) => outln!("{}: {state} of its link is off: it hangs with that", args.address),
            Err(error) => errln!(
                "{}: {state} of its link cannot be switched off ({error}), and it may hang with \
                 that: boot with pcie_aspm=off",
                args.address
            ),
        }
    }
    match args.driver {
        PassthroughDriver::Vfio => share_files(&host, args.address, owner)?,
        PassthroughDriver::Uio => warn_of_uio(&host, args.address),
    }
    outln!("undo: sudo ring3 unbind {}", args.address);
    Ok(ExitCode::SUCCESS)
}

/// Obstacles for which [`bind`] refuses, and those that `--force` overrides. All others are of
/// opening the function later, or are what bind removes.
const REFUSED: [&str; 7] =
    ["bridge", "no-iommu", "translated", "busy", "unreadable", "reserved-memory", "lockdown"];
const FORCED: [&str; 2] = ["in-use", "use-unknown"];

/// Says what [`run_bind`] would do. Reads the system and changes nothing.
fn dry_run(host: &Host, args: &BindArgs, owner: Option<u32>) -> anyhow::Result<ExitCode> {
    let (steps, code) = match plan(host, args, owner)? {
        Ok(steps) => (steps, ExitCode::SUCCESS),
        Err(steps) => (steps, ExitCode::FAILURE),
    };
    steps.iter().for_each(|step| outln!("{step}"));
    Ok(code)
}

/// The steps in words; as an error, why it would be refused.
fn plan(
    host: &Host,
    args: &BindArgs,
    owner: Option<u32>,
) -> anyhow::Result<Result<Vec<String>, Vec<String>>> {
    let (address, driver) = (args.address, args.driver);
    let function = Function::read(host, address).map_err(|obstacle| obstacle.at(address))?;
    if function.way() == Some(driver) {
        return Ok(Ok(vec![format!("{address}: {driver}, as before; nothing to do")]));
    }
    let blocked: Vec<Blocked> = examine(host, address, driver, 0)
        .into_iter()
        .filter_map(|check| check.found.err())
        .collect();
    let is = |names: &[&str], blocked: &Blocked| names.contains(&blocked.obstacle.name());
    let refusals: Vec<_> = blocked
        .iter()
        .filter(|blocked| is(&REFUSED, blocked) || !args.force && is(&FORCED, blocked))
        .collect();
    if !refusals.is_empty() {
        return Ok(Err(refusals.into_iter().flat_map(refused).collect()));
    }
    let forced = blocked.iter().filter(|blocked| is(&FORCED, blocked));
    let mut steps: Vec<_> =
        forced.map(|blocked| format!("would take by force: {}", blocked.problem())).collect();
    if !host.path(&format!("sys/bus/pci/drivers/{driver}")).is_dir() {
        steps.push(format!("would load the module {driver}"));
    }
    let before = function.driver.as_deref().unwrap_or("no driver");
    steps.push(format!("would change the driver of {address}: {before} -> {driver}"));
    if let (Some(owner), Some(group)) = (owner, function.iommu_group) {
        steps.push(format!("would give /dev/vfio/{group} to user {owner}"));
    }
    steps.push(format!("undo then: sudo ring3 unbind {address}"));
    Ok(Ok(steps))
}

/// Why the function would be refused, and what mends it.
fn refused(blocked: &Blocked) -> Vec<String> {
    let mends = blocked.remedy().into_iter().map(|step| format!("  mend: {step}"));
    std::iter::once(format!("would be refused: {}", blocked.problem())).chain(mends).collect()
}

fn warn_of_uio(host: &Host, address: Address) {
    let file = uio_file(host, address).map(|file| format!(" (/dev/{file})")).unwrap_or_default();
    outln!(
        "nothing confines its transfers now: uio:{address}{file} is opened with --unprotected only"
    );
}

/// Gives the function's files to `owner`, or says how. That of iommufd is everybody's and stays as
/// it is: without it, the group is the way.
fn share_files(host: &Host, address: Address, owner: Option<u32>) -> anyhow::Result<()> {
    let Ok(function) = Function::read(host, address) else { return Ok(()) };
    if function.iommu_group.is_none() {
        return Ok(());
    }
    let files: Vec<_> = function.files(host).iter().map(|file| format!("/{file}")).collect();
    let Some(owner) = owner else {
        let files = files.join(" ");
        outln!("to run drivers on it without root: sudo chown \"$(id -u)\" {files}");
        return Ok(());
    };
    // A kernel may have nodes alone.
    for file in files.iter().filter(|file| Path::new(file).exists()) {
        std::os::unix::fs::chown(file, Some(owner), None)
            .with_context(|| format!("giving {file} to user {owner}"))?;
        outln!("{file} belongs to user {owner}");
    }
    Ok(())
}

/// Gives a function back.
pub fn run_unbind(args: UnbindArgs) -> anyhow::Result<ExitCode> {
    let host = Host::this();
    if !args.dry_run {
        outln!("{}", describe(&unbind(&host, args.address)?));
        return Ok(ExitCode::SUCCESS);
    }
    match plan_unbind(&host, args.address) {
        Ok(plan) => planned_unbind(&plan).iter().for_each(|step| outln!("{step}")),
        Err(BindError::Blocked(blocked)) => {
            refused(&blocked).iter().for_each(|step| outln!("{step}"));
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The steps of [`run_unbind`] in words.
fn planned_unbind(plan: &UnbindPlan) -> Vec<String> {
    let address = plan.address;
    let before = plan.before.as_deref().unwrap_or("no driver");
    if plan.is_done {
        return vec![format!("{address}: {before}, as before; nothing to do")];
    }
    let load = plan.load.as_ref().map(|module| format!("would load the module {module}"));
    let next = plan.wanted.as_deref().unwrap_or("the driver that the kernel finds for it, if any");
    let change = format!("would change the driver of {address}: {before} -> {next}");
    load.into_iter().chain([change]).collect()
}

fn describe(done: &BindReport) -> String {
    let driver = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".into());
    let loaded = done
        .loaded
        .as_ref()
        .map(|module| format!("loaded the module {module}\n"))
        .unwrap_or_default();
    let (before, now) = (driver(&done.before), driver(&done.now));
    match before == now {
        true => format!("{}: {now}, as before; nothing to do", done.address),
        false => format!("{loaded}{}: {before} -> {now}", done.address),
    }
}

/// The id of a user given by number or by name in `/etc/passwd`.
fn user_id(host: &Host, user: &str) -> anyhow::Result<u32> {
    if let Ok(id) = user.parse() {
        return Ok(id);
    }
    let users = std::fs::read_to_string(host.path("etc/passwd")).context("reading /etc/passwd")?;
    // Name, password, id, ... [passwd(5)]
    let id = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields[0] == user);
    id.and_then(|fields| fields.get(2)?.parse().ok()).ok_or_else(|| {
        anyhow!("there is no user {user:?} in /etc/passwd: name one or give a number")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use ring3_pci::{Kernel, Node};

    use super::*;

    /// A kernel of which only questions are asked.
    struct Untouched;

    impl Kernel for Untouched {
        fn write(&self, path: &Path, _: &str) -> io::Result<()> {
            panic!("a dry run writes {}", path.display())
        }

        fn load_module(&self, name: &str) -> io::Result<()> {
            panic!("a dry run loads {name}")
        }

        fn node(&self, _: &Path) -> io::Result<Option<Node>> {
            Ok(None)
        }

        fn claim(&self, path: &Path) -> io::Result<OwnedFd> {
            panic!("a dry run claims {}", path.display())
        }

        fn under_loop(&self, _: &Path) -> io::Result<Option<Node>> {
            Ok(None)
        }
    }

    /// A machine with an NVMe controller that has the driver nvme, in an IOMMU group or in none.
    fn machine(group: Option<u32>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices/0000:01:00.0");
        let driver = root.path().join("sys/bus/pci/drivers/nvme");
        for folder in [&device, &driver, &root.path().join("proc/self")] {
            fs::create_dir_all(folder).unwrap();
        }
        for (name, text) in [
            ("vendor", "0x8086\n"),
            ("device", "0x0953\n"),
            ("class", "0x010802\n"),
            ("driver_override", "(null)\n"),
            ("reset_method", "flr\n"),
            ("resource", ""),
        ] {
            fs::write(device.join(name), text).unwrap();
        }
        symlink(&driver, device.join("driver")).unwrap();
        if let Some(group) = group {
            let folder = root.path().join(format!("sys/kernel/iommu_groups/{group}"));
            fs::create_dir_all(folder.join("devices")).unwrap();
            symlink(&device, folder.join("devices/0000:01:00.0")).unwrap();
            symlink(&folder, device.join("iommu_group")).unwrap();
        }
        root
    }

    fn planned(group: Option<u32>, owner: Option<u32>) -> Result<Vec<String>, Vec<String>> {
        let root = machine(group);
        let args = BindArgs {
            address: "0000:01:00.0".parse().unwrap(),
            driver: PassthroughDriver::Vfio,
            force: true,
            owner: None,
            dry_run: true,
        };
        plan(&Host::at(root.path(), Arc::new(Untouched)), &args, owner).unwrap()
    }

    #[test]
    fn a_dry_run_says_the_steps_and_changes_nothing() {
        let steps = planned(Some(7), Some(1000)).unwrap();
        let steps: Vec<_> = steps.iter().filter(|step| !step.contains("by force")).collect();
        assert_eq!(
            steps,
            [
                "would load the module vfio-pci",
                "would change the driver of 0000:01:00.0: nvme -> vfio-pci",
                "would give /dev/vfio/7 to user 1000",
                "undo then: sudo ring3 unbind 0000:01:00.0",
            ]
        );
    }

    #[test]
    fn a_dry_run_says_what_would_be_refused_and_the_remedy() {
        let refusal = planned(None, None).unwrap_err();
        assert!(refusal[0].starts_with("would be refused: 0000:01:00.0: "), "{refusal:?}");
        assert!(refusal.len() > 1 && refusal[1].starts_with("  mend: "), "{refusal:?}");
    }

    #[test]
    fn a_dry_run_names_everything_that_stands_in_the_way_at_once() {
        let root = machine(None);
        let args = BindArgs {
            address: "0000:01:00.0".parse().unwrap(),
            driver: PassthroughDriver::Vfio,
            force: false,
            owner: None,
            dry_run: true,
        };
        let said = plan(&Host::at(root.path(), Arc::new(Untouched)), &args, None).unwrap();
        let said = said.unwrap_err();
        let refusals = said.iter().filter(|line| line.starts_with("would be refused: "));
        assert_eq!(refusals.count(), 2, "no IOMMU, and nobody knows who uses it: {said:?}");
    }

    #[test]
    fn a_dry_run_of_unbind_says_the_steps_and_changes_nothing() {
        let root = machine(Some(7));
        let host = Host::at(root.path(), Arc::new(Untouched));
        let address = "0000:01:00.0".parse().unwrap();
        let done = planned_unbind(&plan_unbind(&host, address).unwrap());
        assert_eq!(done, ["0000:01:00.0: nvme, as before; nothing to do"]);

        fs::remove_file(root.path().join("sys/bus/pci/devices/0000:01:00.0/driver")).unwrap();
        fs::create_dir_all(root.path().join("run/ring3/bound")).unwrap();
        fs::write(root.path().join("run/ring3/bound/0000:01:00.0"), "driver=gone\noverride=\n")
            .unwrap();
        let steps = planned_unbind(&plan_unbind(&host, address).unwrap());
        assert_eq!(
            steps,
            [
                "would load the module gone",
                "would change the driver of 0000:01:00.0: no driver -> gone",
            ]
        );
    }

    #[test]
    fn what_was_done_is_said_in_one_line_and_a_loaded_module_in_another() {
        let done = BindReport {
            address: "0000:01:00.0".parse().unwrap(),
            before: Some("nvme".into()),
            now: Some("vfio-pci".into()),
            loaded: Some("vfio-pci".into()),
            link: Vec::new(),
        };
        assert_eq!(describe(&done), "loaded the module vfio-pci\n0000:01:00.0: nvme -> vfio-pci");
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        assert_eq!(user_id(&Host::this(), "root").unwrap(), 0);
        assert_eq!(user_id(&Host::this(), "1000").unwrap(), 1000);
        assert!(user_id(&Host::this(), "no such user").is_err());
    }
}
