//! `ring3 bind` and `ring3 unbind`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use ring3_pci::{
    Address, BindReport, Blocked, Function, Host, PassthroughDriver, bind, uio_file, unbind,
};

/// Options of `ring3 bind`.
#[derive(clap::Args)]
pub struct BindArgs {
    /// The function, such as 0000:01:00.0.
    address: Address,
    /// The driver that hands it to processes: vfio-pci, or uio_pci_generic, with which nothing
    /// confines its transfers.
    #[arg(long, default_value_t)]
    driver: PassthroughDriver,
    /// Take it even if it is in use; says first what it takes and from whom. Whoever uses it will
    /// see errors, and what is not written yet is lost.
    #[arg(long)]
    force: bool,
    /// Give the group's file to this user, who can then run drivers without root. With vfio-pci
    /// only.
    #[arg(long, value_name = "NAME|UID")]
    owner: Option<String>,
}

/// Options of `ring3 unbind`.
#[derive(clap::Args)]
pub struct UnbindArgs {
    /// The function, such as 0000:01:00.0.
    address: Address,
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
    let mut told = |blocked: &Blocked| errln!("taken by force: {}", blocked.problem());
    let done =
        bind(&host, args.address, args.driver, if args.force { Some(&mut told) } else { None })?;
    outln!("{}", describe(&done));
    match args.driver {
        PassthroughDriver::Vfio => share_group(&host, args.address, owner)?,
        PassthroughDriver::Uio => warn_of_uio(&host, args.address),
    }
    outln!("undo: sudo ring3 unbind {}", args.address);
    Ok(ExitCode::SUCCESS)
}

fn warn_of_uio(host: &Host, address: Address) {
    let file = uio_file(host, address).map(|file| format!(" (/dev/{file})")).unwrap_or_default();
    outln!(
        "nothing confines its transfers now: uio:{address}{file} is opened with --unprotected only"
    );
}

/// Gives the group's file to `owner`, or says how.
fn share_group(host: &Host, address: Address, owner: Option<u32>) -> anyhow::Result<()> {
    let Some(group) = Function::read(host, address).ok().and_then(|function| function.iommu_group)
    else {
        return Ok(());
    };
    let file = PathBuf::from(format!("/dev/vfio/{group}"));
    match owner {
        Some(owner) => {
            std::os::unix::fs::chown(&file, Some(owner), None)
                .with_context(|| format!("giving {} to user {owner}", file.display()))?;
            outln!("{} belongs to user {owner}", file.display());
        }
        None => {
            outln!("to run drivers on it without root: sudo chown \"$(id -u)\" {}", file.display())
        }
    }
    Ok(())
}

/// Gives a function back.
pub fn run_unbind(args: UnbindArgs) -> anyhow::Result<ExitCode> {
    outln!("{}", describe(&unbind(&Host::this(), args.address)?));
    Ok(ExitCode::SUCCESS)
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
    use super::*;

    #[test]
    fn what_was_done_is_said_in_one_line_and_a_loaded_module_in_another() {
        let done = BindReport {
            address: "0000:01:00.0".parse().unwrap(),
            before: Some("nvme".into()),
            now: Some("vfio-pci".into()),
            loaded: Some("vfio-pci".into()),
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
