//! A guest with two identical NVMe disks, which measures itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::disk::{Event, Plan};
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
    pub fn new(plan: &Plan) -> Self {
        let mut lab = Lab::new("bench-disk");
        lab.kernel = plan.kernel.clone();
        lab.mode = if plan.instructions { Mode::Instructions } else { Mode::Wall };
        lab.devices = vec![
            Device::nvme("kernel", SIZE, Backing::Untouched),
            Device::nvme("ring3", SIZE, Backing::Untouched).bound("vfio-pci"),
        ];
        lab.modules = vec!["nvme".into(), "ublk_drv".into()];
        if !plan.translated {
            // The kernel's driver at its best: it skips the IOMMU. What VFIO claims is behind it all the same.
            lab.kernel_arguments = vec!["iommu=pt".into()];
        }
        lab.time_limit = time_limit(plan);
        Self { lab }
    }
}

/// Ten times what it should take; under the instruction clock, a second takes about five.
fn time_limit(plan: &Plan) -> Duration {
    let cell = Duration::from_millis(1000 + 2 * plan.millis);
    Duration::from_secs(120) + cell * plan.cells() as u32 * if plan.instructions { 30 } else { 3 }
}

fn command(plan: &Plan, first: u32) -> String {
    let mode = if plan.instructions { "instructions" } else { "wall" };
    let mut words =
        format!("ring3 bench disk --here --events --overwrite --disk /dev/nvme0n1 --device vfio:$RING3 --mode {mode}");
    words += &format!(" --first {first} --rounds {} --millis {}", plan.rounds, plan.millis);
    plan.workloads.iter().for_each(|name| words += &format!(" --workload {name}"));
    plan.placements.iter().for_each(|placement| words += &format!(" --placement {placement}"));
    words
}

impl Machine for Guest {
    fn measure(&mut self, plan: &Plan, first: u32, progress: &mut dyn FnMut(&Event)) -> Result<String> {
        let program = std::env::current_exe().context("finding this program, which goes into the guest")?;
        let guest = self.lab.clone().program(&program).step("measure", &command(plan, first));
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
