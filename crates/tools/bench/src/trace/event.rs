//! Lines of the kernel's trace.

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When, by the time stamp counter.
    pub at: u64,
    /// On top of which thread.
    pub thread: u32,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A system call begins.
    Call,
    /// It ends.
    Return,
    /// An interrupt's handler begins; the interrupt's name.
    Interrupt(String),
    /// A thread is to run again.
    Waking(u32),
    /// This thread runs from here on.
    Running(u32),
    /// A request goes to the driver of a block device; major and minor number.
    Issue(String),
}

impl Event {
    /// Reads `TASK-PID [CPU] FLAGS TIME: EVENT: DETAILS`; `None` if the line is another, or of an
    /// event that is not in [`What`].
    pub fn parse(line: &str) -> Option<Self> {
        let (task, rest) = line.split_once(" [")?;
        let thread = task.rsplit_once('-')?.1.trim().parse().ok()?;
        let (head, rest) = rest.split_once(": ")?;
        let at = head.split_ascii_whitespace().last()?.parse().ok()?;
        let (event, details) = rest.split_once(": ").or_else(|| rest.split_once(' '))?;
        let what = match event {
            "sys_enter" => What::Call,
            "sys_exit" => What::Return,
            "irq_handler_entry" => What::Interrupt(after(details, "name=")?.to_owned()),
            "sched_waking" => What::Waking(word(after(details, " pid=")?)?.parse().ok()?),
            "sched_switch" => What::Running(word(after(details, "next_pid=")?)?.parse().ok()?),
            "block_rq_issue" => What::Issue(word(details)?.to_owned()),
            _ => return None,
        };
        Some(Self { at, thread, what })
    }
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

fn word(text: &str) -> Option<&str> {
    text.split_ascii_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<(u64, u32, What)> {
        Event::parse(line).map(|event| (event.at, event.thread, event.what))
    }

    #[test]
    fn each_event_is_read_with_its_time_and_its_thread() {
        let lines = [
            (
                " fio-142 [000] ..... 1486362593: block_rq_issue: 259,0 RS 4096 () 392 + 8 be,0,4 \
                [fio]",
                142,
                What::Issue("259,0".into()),
            ),
            (
                "  <idle>-0       [000] d.h1.   1486362593: irq_handler_entry: irq=29 name=nvme0q1",
                0,
                What::Interrupt("nvme0q1".into()),
            ),
            (
                " <idle>-0 [000] d.h4. 1486362593: sched_waking: comm=fio pid=142 prio=120 \
                target_cpu=000",
                0,
                What::Waking(142),
            ),
            (
                " <idle>-0 [000] d..2. 1486362593: sched_switch: prev_comm=swapper/0 prev_pid=0 \
                prev_prio=120 prev_state=R ==> next_comm=my io next_pid=142 next_prio=120",
                0,
                What::Running(142),
            ),
            (
                " my-io thread-9 [001] ..... 1486362593: sys_enter: NR 17 (7, 7f, 1000, 31000, 0, \
                40000000)",
                9,
                What::Call,
            ),
            (" fio-142 [000] ..... 1486362593: sys_exit: NR 17 = 4096", 142, What::Return),
        ];
        for (line, thread, what) in lines {
            assert_eq!(parse(line), Some((1_486_362_593, thread, what)), "{line}");
        }
    }

    #[test]
    fn what_is_no_event_is_left_out() {
        for line in [
            "",
            "# tracer: nop",
            "CPU:0 [LOST 12 EVENTS]",
            " fio-1 [000] ..... 5: sys_enter_read: x",
            " fio-x [000] . y: sys_enter: z",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
