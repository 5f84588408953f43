//! Memory-based controller initialisation: from a PCI function to a controller that takes commands.
//! [NVMe 3.5.1]

use std::time::Duration;

use ring3_device::{Deadline, Device, Error, Registers, poll_until};
use ring3_quirks::Quirks;
use ring3_spec::nvme::registers::{ACQ, AQA, ASQ, Aqa, CAP, CC, CRTO, CSTS, Cap, Cc, Csts};
use ring3_spec::nvme::{COMPLETION_SHIFT, SUBMISSION_SHIFT};

use super::admin::{Admin, ENTRIES};
use super::quirks::{SHORT_ADDRESSES, SLOW_READY};
use crate::disk::Condition;
use crate::lifetime::{StopFailed, stop_function};

/// Shutting down takes this long if the controller does not say (RTD3E). [NVMe 3.6.1]
const SHUTDOWN: Duration = Duration::from_secs(5);
/// And no longer than this, whatever it says: RTD3E can say 71 minutes, and who stops the device
/// waits. The kernel's driver has the same limit.
const SHUTDOWN_MOST: Duration = Duration::from_secs(60);
/// A start takes no longer than this, whatever CRTO says, which can be nine hours; twice what
/// CAP.TO can say.
const START_MOST: Duration = Duration::from_secs(256);
/// Entries of a queue where CAP.MQES is 0, which would be one entry and is not allowed [NVMe
/// 3.1.4.1]. PM1725 drives with some firmware say so and take queues of 64 entries, which is what
/// the kernel's driver gives them. A controller that does not take them refuses the queue.
const ENTRIES_UNSAID: u64 = 64;
/// Between clearing CC.EN and reading CSTS, for controllers that need it: as the kernel's driver
/// has it, which found it by trying (NVME_QUIRK_DELAY_AMOUNT).
const BEFORE_READY: Duration = Duration::from_millis(2300);

/// The controller's capabilities, with those that the driver cannot work with refused. [NVMe
/// 3.1.4.1]
pub(super) fn capabilities(registers: &Registers) -> Result<Cap, Error> {
    let mut cap = registers.read_alive(CAP)?;
    if cap.command_sets() & (Cap::CSS_NVM | Cap::CSS_IO_SETS) == 0 {
        return Err(Error::Unsupported(
            "the controller does not have the NVM command set (CAP.CSS)".into(),
        ));
    }
    if cap.max_queue_entries() < 2 {
        tracing::warn!(
            "the controller says that its queues have one entry (CAP.MQES): {ENTRIES_UNSAID} are \
            tried"
        );
        cap = cap.with_max_queue_entries_0based(ENTRIES_UNSAID - 1);
    }
    // Queues are whole pages, and an arena holds few of the largest that the register could say
    // (128 MiB).
    if cap.page_min() > 4 {
        return Err(Error::Unsupported(format!(
            "memory pages of at least {} bytes (CAP.MPSMIN); up to 65536 are supported: leave it \
            to the kernel's driver",
            4096u64 << cap.page_min()
        )));
    }
    Ok(cap)
}

/// Fails if the controller, which was enabled, takes no commands: it is gone, reports a fatal
/// error, or was reset by somebody else: the function or its bus by the administrator or the
/// platform, or all of it by a loss of power.
pub(super) fn running(registers: &Registers) -> Result<(), Error> {
    running_status(registers).map(drop)
}

/// The same; CSTS of a controller that takes commands.
pub(super) fn running_status(registers: &Registers) -> Result<Csts, Error> {
    let status = registers.read_alive(CSTS)?;
    if status.fatal() == 1 {
        return Err(Error::Fatal("CSTS.CFS is set".into()));
    }
    // Every such reset clears CC. An NVM subsystem reset does, too, so that CSTS.NSSRO says nothing
    // more. [NVMe 3.7.1, 3.7.2]
    if status.ready() == 0 || registers.read_alive(CC)?.enable() == 0 {
        return Err(Error::Fatal(
            "it was reset behind the driver's back (CSTS.RDY or CC.EN is 0)".into(),
        ));
    }
    Ok(status)
}

/// What has become of a controller that was enabled, by its registers.
pub(super) fn condition(registers: &Registers) -> Condition {
    match (registers.read_alive(CC), registers.read_alive(CSTS)) {
        (Ok(_), Ok(status)) if status.fatal() == 1 => Condition::Crashed,
        (Ok(configuration), Ok(status)) if configuration.enable() == 1 && status.ready() == 1 => {
            Condition::Running
        }
        _ => Condition::Disturbed,
    }
}

/// Bytes of the memory page that the driver sets: the smallest that the controller has. [NVMe
/// 3.1.4.5, CC.MPS]
pub(super) fn page_size(cap: Cap) -> u64 {
    4096 << cap.page_min()
}

/// Whether there may be namespaces of other command sets than NVM. [NVMe 3.1.4.1, CAP.CSS]
pub(super) fn has_command_sets(cap: Cap) -> bool {
    cap.command_sets() & Cap::CSS_IO_SETS != 0
}

/// How long a change of CC.EN may take. [NVMe 3.1.4.1, CAP.TO]
fn limit(cap: Cap) -> Duration {
    Duration::from_millis(cap.timeout_ms().max(500))
}

/// How long a start may take: CRTO, where it exists, says it for controllers that CAP.TO is too
/// short for. Some say less there, which is wrong. [NVMe 3.1.4.21]
///
/// Controllers with CRTO may change CAP.TO when CC is written, so both are read after that.
fn start_limit(registers: &Registers, cap: Cap) -> Result<Duration, Error> {
    if cap.ready_modes() & Cap::READY_WITH_MEDIA == 0 {
        return Ok(limit(cap));
    }
    let cap = registers.read_alive(CAP)?;
    let ready = Duration::from_millis(registers.read_alive(CRTO)?.with_media_ms());
    Ok(ready.min(START_MOST).max(limit(cap)))
}

/// Disables the controller. When this succeeds, the controller owns no queue and starts no
/// transfer. [NVMe 3.7.2]
pub(super) fn disable(registers: &Registers, cap: Cap, quirks: &Quirks) -> Result<(), Error> {
    let configuration = registers.read_alive(CC)?;
    if configuration.enable() == 1 {
        // A controller that is starting is not to be stopped before it is ready [NVMe 3.1.4.5]. One
        // that never is, or that has failed at it, is stopped nevertheless.
        let _ = wait_ready(
            registers,
            Deadline::after(limit(cap)),
            1,
            "the controller to start, so that it can be stopped",
        );
        registers.write(CC, configuration.with_enable(0).with_shutdown(Cc::SHN_NONE));
    }
    if quirks.has(SLOW_READY) {
        // Also if it was disabled already: perhaps a moment ago, by whoever had it before.
        std::thread::sleep(BEFORE_READY);
    }
    wait_ready(
        registers,
        Deadline::after(limit(cap)),
        0,
        "the controller to stop (CSTS.RDY = 0 after CC.EN = 0)",
    )
}

/// Confines a controller that does not drive all address lines to what it reaches; fails if not all
/// of its memory lies there.
pub(super) fn confine(device: &dyn Device, quirks: &Quirks) -> Result<(), Error> {
    if !quirks.has(SHORT_ADDRESSES) || device.dma().confine(1 << 48) {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{}: it reaches only addresses of 48 bits (quirk {SHORT_ADDRESSES}) and its memory lies \
        above them: open it with below=256T",
        device.name()
    )))
}

/// Stops the device: disables the controller, and if it does not obey, takes its bus mastering away
/// and resets the function. When this succeeds, nothing that was started before can write to
/// memory. Bus mastering may be off afterwards.
pub(super) fn stop(
    device: &dyn Device,
    registers: &Registers,
    cap: Cap,
    quirks: &Quirks,
) -> Result<(), StopFailed> {
    disable(registers, cap, quirks).or_else(|error| stop_function(device, error))
}

/// Disables a controller that somebody else may have left running; one that does not obey gets a
/// reset of its function, which ends all that it was told. Bus mastering may be off afterwards.
pub(super) fn stop_previous(
    device: &dyn Device,
    registers: &Registers,
    cap: Cap,
    quirks: &Quirks,
) -> Result<(), Error> {
    match disable(registers, cap, quirks) {
        Err(error @ Error::Timeout { .. }) => {
            stop_function(device, error).map_err(|unstopped| unstopped.error)?;
            disable(registers, cap, quirks)
        }
        disabled => disabled,
    }
}

/// Stops a controller whose start has failed. If it cannot be stopped, its memory never goes back
/// to the arena.
pub(super) fn stop_after_failed_start(
    device: &dyn Device,
    admin: &mut Admin,
    cap: Cap,
    quirks: &Quirks,
) {
    let stopped = stop(device, admin.registers(), cap, quirks);
    if let Err(StopFailed { quiesced: false, .. }) = stopped {
        admin.abandon();
    }
}

/// What the driver writes to AQA: the sizes of the admin rings.
pub(super) fn admin_sizes() -> Aqa {
    Aqa(0).with_submission_0based(ENTRIES - 1).with_completion_0based(ENTRIES - 1)
}

/// What the driver writes to CC, before CC.EN: command sets, memory page, arbitration (round
/// robin), and the sizes of I/O queues' entries. [NVMe 3.1.4.5]
pub(super) fn configuration(cap: Cap) -> Cc {
    Cc(0)
        .with_command_set(if has_command_sets(cap) { Cc::CSS_ALL } else { Cc::CSS_NVM })
        .with_page_size(cap.page_min() as u32)
        .with_submission_entry(SUBMISSION_SHIFT)
        .with_completion_entry(COMPLETION_SHIFT)
}

/// Enables the controller with `admin` as its queue 0. It is disabled now. [NVMe 3.5.1]
pub(super) fn enable(admin: &mut Admin, cap: Cap) -> Result<(), Error> {
    // Step 1: CSTS.RDY is 0, as `disable` left it. Step 2: the admin queue's attributes and
    // addresses.
    admin.reset();
    let (submission, completion) = admin.addresses();
    let registers = admin.registers();
    registers.write(AQA, admin_sizes());
    registers.write(ASQ, submission);
    registers.write(ACQ, completion);
    // Step 3: the command sets. All that there are: with the NVM command set alone, namespaces of
    // others would not be listed. Step 4: arbitration (round robin), memory page, and the entry
    // sizes that I/O queues will have.
    let configuration = configuration(cap);
    registers.write(CC, configuration);
    // Steps 5 and 6: enable, wait until it is ready.
    let limit = start_limit(registers, cap)?;
    registers.write(CC, configuration.with_enable(1));
    wait_ready(
        registers,
        Deadline::after(limit),
        1,
        "the controller to start (CSTS.RDY = 1 after CC.EN = 1)",
    )
}

/// Notifies the controller of the shutdown and waits for its consent. [NVMe 3.6.1]
pub(super) fn shut_down(registers: &Registers, expected: Duration) -> Result<(), Error> {
    let configuration = registers.read_alive(CC)?;
    registers.write(CC, configuration.with_shutdown(Cc::SHN_NORMAL));
    poll_until(
        Deadline::after(shutdown_limit(expected)),
        "the controller's shutdown (CSTS.SHST)",
        || {
            let status = registers.read_alive(CSTS)?;
            Ok((status.shutdown() == Csts::SHUTDOWN_DONE).then_some(()))
        },
    )
}

/// How long a shutdown may take that the controller expects to take so long.
fn shutdown_limit(expected: Duration) -> Duration {
    expected.clamp(SHUTDOWN, SHUTDOWN_MOST)
}

fn wait_ready(
    registers: &Registers,
    deadline: Deadline,
    ready: u32,
    what: &'static str,
) -> Result<(), Error> {
    poll_until(deadline, what, || {
        let status = registers.read_alive(CSTS)?;
        // A fatal error does not stop a controller from being disabled, which clears it. [NVMe 9.5]
        if ready == 1 && status.fatal() == 1 {
            return Err(Error::Fatal("CSTS.CFS was set while the controller started".into()));
        }
        Ok((status.ready() == ready).then_some(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shutdown_is_waited_for_a_minute_at_most_whatever_the_controller_says() {
        let limits = [0, 9, u64::from(u32::MAX) / 1_000_000]
            .map(|secs| shutdown_limit(Duration::from_secs(secs)).as_secs());
        assert_eq!(limits, [5, 9, 60]);
    }
}
