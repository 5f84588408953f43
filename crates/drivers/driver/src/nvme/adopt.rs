//! Adoption: continues with a running controller whose driver process was killed, without a reset.
//!
//! # Why it is safe
//! Until an I/O queue is deleted, the device may still read and write the dead process's DMA
//! memory. So nobody uses that memory meanwhile: only the admin queue is claimed, at the address
//! where it was. After a successful Delete I/O Submission Queue the controller holds no command of
//! that queue [NVMe 5.2.4]. Then all memory except the admin queue's is free, and the kernel
//! re-issues the requests.
//!
//! # Trust
//! The saved state and the [checkpoint](super::checkpoint) come from the dead process and are not
//! trusted. First CC, AQA, ASQ, ACQ and CSTS are compared with what they must be. Then Identify
//! Controller is sent, which shows how far the queue is: its completion must arrive, must be the
//! only one, and its SQHD must cover all earlier commands. A controller with memory of the host is
//! asked whether it is the memory that was saved. After any error, or when it takes too
//! long, the caller opens the controller (`crates/processes/host/src/drive`), which stops it first.

use std::sync::Arc;
use std::time::Duration;

use ring3_class::Saved;
use ring3_device::dma::{Arena, Claims};
use ring3_device::{Deadline, Device, Error, Registers};
use ring3_spec::nvme::identify::{self, cns};
use ring3_spec::nvme::registers::{AQA, CC, CSTS, Csts, doorbells_end};
use ring3_spec::nvme::{Status, Submission};
use ring3_spec::text::Printable;

use super::DRIVER;
use super::admin::{Admin, ENTRIES};
use super::checkpoint::Checkpoint;
use super::controller::Controller;
use super::host_memory::Wanted;
use super::identity::ControllerFeatures;
use super::init;
use super::saved::{SavedAdmin, SavedController};
use crate::disk::Controller as _;
use crate::lifetime::lock;

/// All of it ends within this: a controller that takes longer is not faster than one that is
/// disabled.
const LIMIT: Duration = Duration::from_millis(500);

impl Controller {
    /// The state by which another process can [`adopt`](Self::adopt) the controller if this one is
    /// killed from now on. It need not be renewed.
    pub fn record(&self) -> Result<Saved, Error> {
        let mut admin = lock(&self.shared.admin);
        self.shared.lifetime.check()?;
        if self.shared.generation() != 0 {
            return Err(Error::Unsupported(
                "a controller that was reset is not adopted: if its driver dies, it is fenced"
                    .into(),
            ));
        }
        let saved = self.state(&admin, Vec::new()).to_saved()?;
        admin.keep_checkpoint();
        Ok(saved)
    }

    /// Goes on with a controller whose driver, which had [recorded](Self::record) `saved`, was
    /// killed; nothing goes on that it had begun. The memory that nobody has claimed is free
    /// afterwards: whoever has adopted the arena [releases](Arena::release) it.
    ///
    /// After an error the controller may run or not, and may still reach what it could reach:
    /// [`open`](Self::open) stops it first.
    pub fn adopt(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        let mut state = SavedController::of_saved(saved)?;
        if !state.queues.is_empty() || state.generation != 0 {
            return Err(Error::Invalid(
                "what was saved is of a controller that was left, and not of one whose driver was \
                 killed"
                    .into(),
            ));
        }
        check_registers(&Registers::new(device.bar(0)?, doorbells_end(1, 0))?)?;
        state.admin.follow_checkpoint(device.dma().arena())?;
        let controller = Self::resume_running(device, poll, state)?;
        let shared = &controller.shared;
        let mut admin = lock(&shared.admin);
        match drain(&mut admin, &shared.traits) {
            Ok(()) => {
                admin.unread = true;
                // Whatever the dead driver has written.
                shared.caches().iter().for_each(|(_, cache)| cache.wrote(|| false));
            }
            Err(error) => {
                shared.give_up(&mut admin, &error, "it cannot be adopted");
                return Err(error);
            }
        }
        drop(admin);
        Ok(controller)
    }
}

/// Fails unless the controller is as [`init::enable`] has left it.
fn check_registers(registers: &Registers) -> Result<(), Error> {
    let cap = init::capabilities(registers)?;
    init::running(registers)?;
    let shutdown = registers.read_alive(CSTS)?.shutdown();
    let is_ours = registers.read_alive(CC)? == init::configuration(cap).with_enable(1)
        && registers.read_alive(AQA)? == init::admin_sizes();
    if is_ours && shutdown == Csts::SHUTDOWN_NONE {
        return Ok(());
    }
    Err(Error::Invalid(
        "the controller does not run as this driver has started it (CC, AQA, CSTS.SHST)".into(),
    ))
}

/// Has the controller end all that its I/O queues have, which may be there or not.
fn drain(admin: &mut Admin, traits: &ControllerFeatures) -> Result<(), Error> {
    let (serial, queues) = (&traits.identity.serial, traits.identity.queues);
    let deadline = Deadline::after(LIMIT);
    let within = |admin: &mut Admin, command| admin.execute_within(command, deadline.remaining());
    let identify = Submission::identify(cns::CONTROLLER, 0).with_data(admin.page.iova(), 0);
    within(admin, identify)?
        .map_err(|status| Error::Fatal(format!("it does not identify itself: {status}")))?;
    if admin.submission.space() != ENTRIES - 1 {
        return Err(Error::Fatal(
            "it has not taken all admin commands, or others than there were".into(),
        ));
    }
    let mut bytes = [0; identify::SIZE];
    admin.page.read(0, &mut bytes)?;
    let identity = identify::Controller(bytes);
    let found = Printable(identity.serial()).to_string();
    if found != *serial {
        return Err(Error::Fatal(format!("it is {found:?} and not {serial:?}")));
    }
    for id in 1..=queues {
        for (what, command) in
            [("submission", Submission::delete_sq(id)), ("completion", Submission::delete_cq(id))]
        {
            if let Err(status) = within(admin, command)?
                && !is_absent(status)
            {
                return Err(Error::Fatal(format!(
                    "it does not delete {what} queue {id}: {status}"
                )));
            }
        }
    }
    // What it has and nobody here knows of would be given out as free. Its own word counts: what
    // was recorded of it may be anything.
    if Wanted::of(&identity).is_nothing() && admin.host_memory.is_none() {
        return Ok(());
    }
    admin.check_host_memory(deadline.remaining())
}

/// Whether a queue was not deleted because it is not there. QEMU says of a completion queue what it
/// says of a submission queue's.
fn is_absent(status: Status) -> bool {
    [Status::INVALID_QUEUE_ID, Status::INVALID_CQ].contains(&status.plain())
}

impl SavedAdmin {
    /// Brings the state of a queue up to what it was when its process was killed.
    fn follow_checkpoint(&mut self, arena: &Arena) -> Result<(), Error> {
        let span = self.checkpoint.ok_or_else(|| {
            Error::Invalid("what was saved has no checkpoint of the admin queue".into())
        })?;
        let word = Claims::new(arena).claim(span)?;
        let progress = Checkpoint::read(&word).ok_or_else(|| {
            Error::Busy(
                "the controller's driver was killed while an admin command was under way, \
                 or after a reset"
                    .into(),
            )
        })?;
        (self.submission.state, self.completion.state) = progress.rings();
        (self.next_id, self.armed) = (progress.next_id, progress.armed);
        self.events.clear();
        Ok(())
    }
}
