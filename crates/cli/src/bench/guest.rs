//! A guest with two identical disks, which measures itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::disk::{Controller, Event, PACED_SHIFT, Pace, Plan, Study};
use ring3_lab::{Backing, Cache, Device, Event as LabEvent, Guest as Lab, Mode, Size};

use super::campaign::Machine;

/// Bytes of each disk.
const SIZE: Size = Size(1 << 30);

/// The machine that a plan is measured on.
pub struct Guest {
    lab: Lab,
}

impl Guest {
    /// Two disks of one model with the same options; the second is handed to vfio-pci.
    pub fn new(plan: &Plan) -> Result<Self> {
        let mut lab = Lab::new("bench-disk");
        lab.kernel = plan.kernel.clone();
        lab.mode = if plan.instructions { Mode::Instructions } else { Mode::Wall };
        if plan.controller != Controller::Nvme {
            bail!("the lab has no {} disks yet", plan.controller.name());
        }
        lab.devices = vec![disk("kernel", plan.pace), disk("ring3", plan.pace).bound("vfio-pci")];
        lab.modules = vec!["nvme".into(), "ublk_drv".into()];
        if !plan.translated {
            // The kernel's driver at its best: it skips the IOMMU. What VFIO claims is behind it all the same.
            lab.kernel_arguments = vec!["iommu=pt".into()];
        }
        if let Study::Leslie(_) = plan.study {
            // As in the paper, and so that utilisation means one thing: all that is not the other placements' is this processor's.
            lab.vcpus = Some(1);
        }
        if let Some(pace) = plan.pace {
            lab.qemu_arguments = paced_nodes(&["kernel", "ring3"], pace);
            if plan.instructions {
                // While the guest waits for its disk, its clock follows real time, which is the disk's.
                lab.qemu_arguments.extend(["-icount".into(), format!("shift={PACED_SHIFT},sleep=on")]);
                lab.idle_poll = Some(false);
            }
        }
        lab.time_limit = time_limit(plan);
        Ok(Self { lab })
    }
}

fn disk(id: &str, pace: Option<Pace>) -> Device {
    match pace {
        None => Device::nvme(id, SIZE, Backing::Untouched),
        Some(_) => Device::new(id, "nvme").option("drive", format!("{id}-paced")),
    }
}

/// QEMU's words for disks of nothing behind a throttle each.
fn paced_nodes(ids: &[&str], pace: Pace) -> Vec<String> {
    let mut words = Vec::new();
    for id in ids {
        let Pace { commands, bytes } = pace;
        words.push("-object".into());
        words.push(format!("throttle-group,id={id}-pace,x-bps-total={bytes},x-iops-total={commands}"));
        words.push("-blockdev".into());
        words.push(format!("driver=null-co,node-name={id}-nothing,size={},read-zeroes=off", SIZE.0));
        words.push("-blockdev".into());
        words.push(format!("driver=throttle,node-name={id}-paced,throttle-group={id}-pace,file={id}-nothing"));
    }
    words
}

/// Some times what it should take on an idle host.
fn time_limit(plan: &Plan) -> Duration {
    let measuring = Duration::from_millis(plan.total_millis());
    let between = Duration::from_secs(1) * plan.cells() as u32;
    let slower = if plan.instructions && plan.pace.is_none() { 30 } else { 4 };
    Duration::from_secs(180) + (measuring + between) * slower
}

/// Makes this program be called ring3 in the guest, whatever its file is called here.
pub const NAME: &str = r#"[ -e /usr/local/bin/ring3 ] || ln -s "$(command -v "$PROGRAM")" /usr/local/bin/ring3
"#;

/// Puts this program into the guest; a step that calls it begins with [`NAME`].
pub fn with_this_program(guest: Lab) -> Result<Lab> {
    let program = std::env::current_exe().context("finding this program, which goes into the guest")?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(guest.program(&program).variable("PROGRAM", &name))
}

fn command(plan: &Plan, first: u32) -> String {
    let mode = if plan.instructions { "instructions" } else { "wall" };
    let mut words =
        format!("ring3 bench disk --here --events --overwrite --disk /dev/nvme0n1 --device vfio:$RING3 --mode {mode}");
    words += &format!(" --first {first} --rounds {} --controller {}", plan.rounds, plan.controller.name());
    if let Some(Pace { commands, bytes }) = plan.pace {
        words += &format!(" --commands {commands} --rate {bytes}");
    }
    match &plan.study {
        Study::Loads { millis, workloads } => {
            words += &format!(" --millis {millis}");
            workloads.iter().for_each(|name| words += &format!(" --workload {name}"));
        }
        Study::Leslie(leslie) => {
            let sizes = leslie.sectors.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            words += &format!(" --figure leslie --bytes {} --sizes {sizes}", leslie.bytes);
            leslie.requests.iter().for_each(|requests| words += &format!(" --requests {requests}"));
        }
    }
    plan.placements.iter().for_each(|placement| words += &format!(" --placement {placement}"));
    format!("{NAME}{words}")
}

impl Machine for Guest {
    fn measure(&mut self, plan: &Plan, first: u32, progress: &mut dyn FnMut(&Event)) -> Result<String> {
        let guest = with_this_program(self.lab.clone())?.step("measure", &command(plan, first));
        let outcome = guest.run(&Cache::open()?, &mut |event| match event {
            LabEvent::Progress(line) => eprintln!("{line}"),
            LabEvent::Line(line) => {
                if let Ok(event) = serde_json::from_str(line) {
                    progress(&event);
                }
            }
            _ => {}
        })?;
        if !outcome.succeeded() {
            let said: Vec<_> = outcome.output().lines().filter(|line| !line.starts_with('{')).map(str::to_owned).collect();
            let said = said[said.len().saturating_sub(20)..].join("\n");
            bail!("the measurement in the guest failed (exit code {}): {said}\n{}", outcome.exit, outcome.messages);
        }
        Ok(outcome.qemu)
    }
}
