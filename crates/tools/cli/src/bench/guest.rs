//! A guest with two identical disks, which measures itself.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use ring3_bench::cpu::Others;
use ring3_bench::disk::{Controller, Driver, Event, Placement, Plan, Study};
use ring3_bench::report::Measurement;
use ring3_lab::{
    Backing, Cache, Device, Event as LabEvent, Guest as Lab, Iommu, Machine as Model, Mode, Need,
    Size, prepare,
};

use super::accesses::Accesses;
use super::campaign::Machine;
use super::disk::{Target, Turns, linuxs};
use super::ring3d::with_supervisor;
use crate::dde;
use crate::job::Job;

/// Bytes of each disk.
const SIZE: Size = Size(1 << 30);

/// MiB of a guest that has QEMU's programs twice: as they came, and where they run.
const QEMU_MEMORY: u32 = 1024;

/// Huge pages of a guest: more than the largest arena of a plan.
const HUGE_PAGES: u32 = 64;

/// The machine that a plan is measured on.
pub struct Guest {
    lab: Lab,
    accesses: Option<Accesses>,
}

impl Guest {
    /// Two disks of one model with the same options; the second is handed to vfio-pci.
    pub fn new(plan: &Plan) -> Result<Self> {
        let mut lab = Lab::new("bench-disk");
        lab.kernel = plan.kernel.clone();
        lab.mode = if plan.instructions { Mode::Instructions } else { Mode::Wall };
        // For the arena: behind an IOMMU, QEMU follows a transfer page by page, and so does
        // hardware's translation cache.
        lab.hugepages = HUGE_PAGES;
        lab.devices = vec![disk("kernel", plan), disk("ring3", plan).bound("vfio-pci")];
        if plan.controller == Controller::Ide {
            // It is the machine's own, and there is one: the kernel and ring3 take turns.
            lab.machine = Model::Pc;
            lab.iommu = Some(Iommu::Virtio);
            lab.devices.remove(0);
        }
        let vduse = plan.placements.iter().any(|placement| placement.is_by_vduse());
        let exports: &[&str] =
            if vduse { &["ublk_drv", "vduse", "virtio_vdpa", "virtio_blk"] } else { &["ublk_drv"] };
        lab.modules =
            [modules(plan.controller), exports].concat().into_iter().map(Into::into).collect();
        if !plan.translated {
            // The kernel's driver skips the IOMMU, which costs it nothing then. What VFIO claims is
            // behind it all the same.
            lab.kernel_arguments = vec!["iommu=pt".into()];
        }
        if !matches!(plan.study, Study::Loads { .. }) {
            // As in the papers, and so that utilisation means one thing: all that others do is done
            // by this processor.
            lab.vcpus = Some(1);
        }
        if plan.placements.iter().any(|placement| placement.takes_a_processor()) {
            lab.vcpus = Some(2);
        }
        if plan.instructions && !plan.sleeps() {
            // For every controller: the lab by itself knows it of those that answer late.
            lab.idle_poll = Some(true);
        }
        if plan.sleeps() {
            // While the guest sleeps, its clock follows real time, which is that of a disk with a
            // pace.
            lab.instruction_shift = Some(plan.instruction_ns().ilog2());
        }
        let accesses = matches!(plan.study, Study::Timeline(_))
            .then(|| Accesses::new(plan.controller))
            .transpose()?;
        lab.qemu_arguments.extend(accesses.iter().flat_map(Accesses::arguments));
        lab.time_limit = time_limit(plan);
        Ok(Self { lab, accesses })
    }
}

/// Where the guest has the files of those modules.
const MODULES: &str = "/job/late";

/// The modules of the kernel's driver.
fn modules(controller: Controller) -> &'static [&'static str] {
    match controller {
        Controller::Nvme => &["nvme"],
        Controller::Ahci => &["ahci", "sd_mod"],
        Controller::Ide => &["ata_piix", "sd_mod"],
    }
}

fn disk(id: &str, plan: &Plan) -> Device {
    let (rate, commands) = plan.pace.map(|pace| (Size(pace.bytes), pace.commands)).unzip();
    match plan.controller {
        Controller::Nvme => Device { rate, commands, ..Device::nvme(id, SIZE, Backing::Untouched) },
        Controller::Ahci => with_pace(Device::ahci(id, SIZE, Backing::Untouched), rate, commands),
        Controller::Ide => {
            let drives = Device::ahci(id, SIZE, Backing::Untouched).drives;
            with_pace(Device { drives, ..Device::new(id, "piix3-ide") }, rate, commands)
        }
    }
}

fn with_pace(mut device: Device, rate: Option<Size>, commands: Option<u64>) -> Device {
    device.drives.iter_mut().for_each(|drive| (drive.rate, drive.commands) = (rate, commands));
    device
}

/// Some times what it should take on an idle host.
fn time_limit(plan: &Plan) -> Duration {
    let measuring = Duration::from_millis(plan.total_millis());
    // A driver that is loaded anew and QEMU's programs, which open the device for each load, take
    // their time.
    let prepares =
        plan.placements.iter().any(|placement| placement.is_qemus() || placement.is_iopoll());
    let between = Duration::from_secs(if prepares { 4 } else { 1 }) * plan.cells() as u32;
    let slower = if plan.instructions && !plan.sleeps() { 30 } else { 4 };
    Duration::from_secs(180) + (measuring + between) * slower
}

/// Makes this program be called ring3 in the guest, whatever its file is called here.
pub const NAME: &str = r#"[ -e /usr/local/bin/ring3 ] ||
    ln -s "$(command -v "$PROGRAM")" /usr/local/bin/ring3
"#;

/// Lines of a guest that failed that are shown.
const SAID: usize = 40;

/// Where the guest has QEMU's programs.
const QEMU_ROOT: &str = "/rivals";

/// Makes that a root in which they run, and has a driver killed in the middle of its work.
///
/// QEMU's own driver enables messages after the controller. QEMU's model of one gives no interrupts
/// then for the queue that was there before, so that the driver waits for its first command for
/// ever; but a message that another driver has used, and not given back, is taken for used from
/// then on.
const QEMU_TOOLS: &str = r"
mkdir -p /rivals
tar -xf /rivals.tar -C /rivals && rm /rivals.tar
for folder in dev proc sys; do
    mkdir -p /rivals/$folder; mount -o bind /$folder /rivals/$folder
done
mkdir -p /rivals/tmp /rivals/var/tmp
ring3 blk bench --device vfio:$RING3 --seconds 600 >/dev/null 2>&1 & KILLED=$!
for try in $(seq 200); do grep -q vfio-msix /proc/interrupts && break; sleep 0.05; done
sleep 0.3; kill -9 $KILLED; wait $KILLED 2>/dev/null
";

/// Puts this program into the guest; a step that calls it begins with [`NAME`].
pub fn with_this_program(guest: Lab) -> Result<Lab> {
    let program =
        std::env::current_exe().context("finding this program, which goes into the guest")?;
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(guest.program(&program).variable("PROGRAM", &name))
}

fn command(plan: &Plan, first: u32) -> Result<String> {
    // Ports by instruction: through VFIO's file, each access would be a system call.
    let (disk, options) = match plan.controller {
        Controller::Nvme => ("/dev/nvme0n1", ""),
        Controller::Ahci => ("/dev/sda", ""),
        Controller::Ide => ("/dev/sda", ",ports=direct"),
    };
    let is_qemus = plan.placements.iter().any(|placement| placement.is_qemus());
    let target = Target {
        disk: Some(disk.into()),
        device: Some(format!("vfio:$RING3{options}")),
        shared: plan.controller == Controller::Ide,
        qemu_root: is_qemus.then(|| QEMU_ROOT.into()),
        modules: (plan.controller == Controller::Nvme).then(|| MODULES.into()),
        ..Target::default()
    };
    let job = Job::Disk(Turns { plan: plan.clone(), first, target }).command()?;
    Ok(format!("{NAME}{}{job}", if is_qemus { QEMU_TOOLS } else { "" }))
}

/// Runs `guest`, which tells its steps by lines that `read` reads, and adds what others took of the
/// host in each round. Gives QEMU's version.
pub fn follow(
    guest: &Lab,
    read: &mut dyn FnMut(&str) -> Option<Event>,
    progress: &mut dyn FnMut(&Event),
) -> Result<String> {
    let mut others = None;
    let outcome = guest.run(&Cache::open()?, &mut |event| match event {
        LabEvent::Progress(line) => errln!("{line}"),
        LabEvent::Line(line) => {
            let Some(event) = read(line) else { return };
            match event {
                // Also the second boot of a guest whose QEMU failed.
                Event::Begin(_) => others = Others::start(),
                Event::Round { round } => {
                    if let Some(busy) = others.as_mut().and_then(Others::percent) {
                        let host = Measurement::new(round, "host", "host");
                        progress(&Event::Measured(host.with("others_percent", busy)));
                    }
                }
                _ => {}
            }
            progress(&event);
        }
        _ => {}
    })?;
    if outcome.succeeded() {
        return Ok(outcome.qemu);
    }
    let output = outcome.output();
    let said: Vec<_> = output.lines().filter(|line| !line.starts_with('{')).collect();
    bail!(
        "the measurement in the guest failed (exit code {}):\n{}\n{}",
        outcome.exit,
        said[said.len().saturating_sub(SAID)..].join("\n"),
        outcome.messages
    )
}

impl Machine for Guest {
    fn measure(
        &mut self,
        plan: &Plan,
        first: u32,
        progress: &mut dyn FnMut(&Event),
    ) -> Result<String> {
        let accesses = &mut self.accesses;
        let mut guest = with_this_program(self.lab.clone())?;
        let is_held = |placement: &Placement| {
            use Placement::{ExportShared, ExportSharedBatch, Supervised};
            matches!(placement, Supervised | ExportShared | ExportSharedBatch)
        };
        if plan.placements.iter().any(is_held) {
            guest = with_supervisor(guest)?;
        }
        let cache = Cache::open()?;
        if plan.placements.iter().any(|placement| placement.driver() == Driver::Hosted) {
            guest = dde::enter(guest, &[linuxs(plan.controller).to_owned()])?;
        }
        if plan.placements.iter().any(|placement| placement.is_qemus()) {
            prepare(&cache, &[Need::Rivals], &mut |line| errln!("{line}"))?;
            guest = guest.file("/rivals.tar", &cache.path("rivals/rivals.tar"));
            guest.memory_mib = guest.memory_mib.max(QEMU_MEMORY);
        }
        let guest = guest.step("measure", &command(plan, first)?);
        let mut read = |line: &str| {
            let event = serde_json::from_str(line).ok()?;
            Some(match accesses {
                Some(accesses) => accesses.see(event),
                None => event,
            })
        };
        follow(&guest, &mut read, progress)
    }
}
