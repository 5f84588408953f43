//! `ring3 lab`: guests under QEMU.

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use ring3_lab::{Cache, Event, Guest, Machine, Need, Outcome, Scenario, prepare, verify};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::{dde, leave};

/// Arguments of `ring3 lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios that come with ring3.
    List {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Boot a scenario's guest and run its steps.
    ///
    /// The exit code is that of the steps.
    Run {
        /// Name of a scenario (ring3 lab list), or path of a .toml file.
        scenario: String,
        #[command(flatten)]
        choice: Choice,
        /// Print the outcome as JSON at the end, and nothing else.
        #[arg(long)]
        json: bool,
        /// Folder for the files that the steps leave in $OUT. Default: they are discarded.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Print the guest's console, too.
        #[arg(long)]
        console: bool,
    },
    /// Boot a scenario's guest to a shell on this terminal.
    ///
    /// `exit`, or Ctrl-A x, ends it.
    Shell {
        /// Name of a scenario (ring3 lab list), or path of a .toml file.
        #[arg(default_value = "two-disks")]
        scenario: String,
        #[command(flatten)]
        choice: Choice,
    },
    /// Fetch and build what the lab needs.
    ///
    /// Verifies the cache, and fetches or builds what is missing or damaged.
    Prepare {
        /// A guest kernel, by version prefix: 6.1, 6.12 or 7.2. May be repeated.
        #[arg(long = "kernel", default_value = ring3_lab::DEFAULT_KERNEL)]
        kernels: Vec<String>,
    },
}

/// What may be chosen for a scenario.
#[derive(Debug, clap::Args)]
struct Choice {
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2. Default: the scenario's.
    #[arg(long)]
    kernel: Option<String>,
    /// What the guest's clock counts. Default: the scenario's.
    #[arg(long)]
    mode: Option<Clock>,
    /// Set a variable or a simple key of the scenario. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Clock {
    /// Real time, on two processors.
    Wall,
    /// Instructions, one per nanosecond, on one processor. Repeatable.
    Instructions,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// Runs the command. The exit code is 0, or that of the job in the guest.
pub fn run(lab: Args) -> Result<ExitCode> {
    match lab.command {
        Command::List { json } => list(json),
        Command::Run { scenario, choice, json, out, console } => {
            leave::nothing_behind()?;
            if let Some(folder) = &out {
                std::fs::create_dir_all(folder).with_context(|| {
                    format!("creating the folder for results {}", folder.display())
                })?;
            }
            let outcome = run_scenario(&choice.load(&scenario)?, json)?;
            report(&outcome, json, console)?;
            if let Some(folder) = out {
                outcome.save(&folder)?;
            }
            Ok(ExitCode::from(u8::try_from(outcome.exit).unwrap_or(1)))
        }
        Command::Shell { scenario, choice } => {
            leave::nothing_behind()?;
            let guest = guest(&choice.load(&scenario)?)?;
            errln!("starting the guest; control-A x ends it");
            guest.shell(&Cache::open()?, &mut |event| follow(&event))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Prepare { kernels } => {
            let needs = [Need::Tools, Need::Fio, Need::Btrfs]
                .into_iter()
                .chain(kernels.into_iter().map(Need::Kernel));
            let cache = Cache::open()?;
            let needs: Vec<_> = needs.collect();
            prepare(&cache, &needs, &mut |line| errln!("{line}"))?;
            verify(&cache, &mut |line| errln!("{line}"))?;
            outln!("the lab is ready in {}", cache.root().display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

impl Choice {
    fn load(&self, scenario: &str) -> Result<Scenario> {
        let named = |name: &str, value: &str| (name.to_string(), value.to_string());
        let mut settings = self.settings.clone();
        settings.extend(self.kernel.as_deref().map(|version| named("kernel", version)));
        settings.extend(self.mode.map(|mode| {
            named("mode", if matches!(mode, Clock::Wall) { "wall" } else { "instructions" })
        }));
        Ok(Scenario::load(scenario, &settings)?)
    }
}

fn list(json: bool) -> Result<ExitCode> {
    let scenarios = Scenario::shipped()?;
    if json {
        let rows: Vec<_> = scenarios
            .iter()
            .map(|s| serde_json::json!({ "name": s.name, "about": s.about }))
            .collect();
        outln!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(ExitCode::SUCCESS);
    }
    let width = scenarios.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0);
    for scenario in scenarios {
        outln!("{:width$}  {}", scenario.name, scenario.about);
    }
    Ok(ExitCode::SUCCESS)
}

fn run_scenario(scenario: &Scenario, quiet: bool) -> Result<Outcome> {
    let outcome = guest(scenario)?.run(&Cache::open()?, &mut |event| {
        if !quiet {
            follow(&event);
        }
    })?;
    Ok(outcome)
}

/// The guest of `scenario`, with this program, that of its drivers, and the drivers of Linux that
/// the scenario names.
fn guest(scenario: &Scenario) -> Result<Guest> {
    let mut guest = dde::enter(scenario.guest(), &scenario.hosted)?;
    let mut program =
        std::env::current_exe().context("finding this program, which goes into the guest")?;
    if guest.machine == Machine::Virt {
        program = of_arm64(&program)?;
    }
    let drivers = program.with_file_name("ring3-driver");
    guest.programs.extend(drivers.exists().then_some(drivers));
    guest.programs.push(program);
    Ok(guest)
}

/// The same program for arm64, where `tests/arm64` builds it beside this one.
fn of_arm64(program: &Path) -> Result<PathBuf> {
    let profile = program.parent().unwrap_or(Path::new(""));
    let name = profile.file_name().unwrap_or_default();
    let target = profile.with_file_name("arm64").join("aarch64-unknown-linux-gnu").join(name);
    let found = target.join("ring3");
    if found.exists() {
        return Ok(found);
    }
    bail!("there is no {}, which this guest runs; next: tests/arm64 build", found.display())
}

fn follow(event: &Event) {
    match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Step(name) => crate::output::title(format_args!("== {name}")),
        Event::Line(line) => outln!("{line}"),
        Event::Done(step) if step.exit != 0 => {
            crate::output::title(format_args!("-- failed with exit code {}", step.exit));
        }
        _ => {}
    }
}

fn report(outcome: &Outcome, json: bool, console: bool) -> Result<()> {
    if json {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let files: serde_json::Map<_, _> = outcome
            .files
            .iter()
            .map(|(name, bytes)| {
                (name.clone(), serde_json::from_slice(bytes).unwrap_or_else(|_| text(bytes).into()))
            })
            .collect();
        let value = serde_json::json!({
            "exit": outcome.exit, "kernel": outcome.kernel, "qemu": outcome.qemu,
            "steps": outcome.steps,
            "messages": outcome.messages, "files": files, "retried": outcome.retried,
            "seconds": { "boot": outcome.seconds.0, "total": outcome.seconds.1 },
        });
        outln!("{}", serde_json::to_string_pretty(&value)?);
    } else {
        if console {
            outln!("{}", outcome.console);
        }
        for (step, text) in
            outcome.steps.iter().flat_map(|step| step.missed.iter().map(move |text| (step, text)))
        {
            outln!("-- step '{}' did not print {text:?}", step.name);
        }
        let word = if outcome.succeeded() { "passed" } else { "FAILED" };
        let again = outcome
            .retried
            .as_ref()
            .map(|fault| format!(" at the second try ({fault})"))
            .unwrap_or_default();
        outln!(
            "{word}{again} on {} in {:.1} s, {:.1} s of it to boot",
            outcome.kernel,
            outcome.seconds.1,
            outcome.seconds.0
        );
    }
    Ok(())
}
