//! The parts: which commands measure what a report shows. A word with `@` before it is a file of
//! the splitter's folder.

use super::parts::{Gives, Part};

/// Of the four-place table.
pub const PLACES: [Part; 17] = [
    Part {
        name: "plan-e1000",
        about: "lines of the split e1000 in the kernel",
        command: "split plan --check @examples/e1000.plan.toml --json",
        gives: Gives::Plan("e1000"),
        minutes: 1,
        quick_seconds: 1,
    },
    Part {
        name: "plan-e1000e",
        about: "lines of e1000e that an automatic plan leaves in the kernel",
        command: "split plan e1000e --json",
        gives: Gives::Plan("e1000e"),
        minutes: 1,
        quick_seconds: 4,
    },
    Part {
        name: "plan-nvme",
        about: "lines of nvme that an automatic plan leaves in the kernel",
        command: "split plan nvme --json",
        gives: Gives::Plan("nvme"),
        minutes: 1,
        quick_seconds: 3,
    },
    Part {
        name: "split-e1000",
        about: "TCP through e1000 in all four places",
        command: "split bench e1000 --plan @examples/e1000.plan.toml --annotations \
                  @examples/e1000.annotations.toml --everywhere --rounds {5|1} --seconds {4|1} \
                  --json",
        gives: Gives::Output,
        minutes: 30,
        quick_seconds: 55,
    },
    Part {
        name: "udp-e1000",
        about: "packets through e1000",
        command: "bench udp-echo --card e1000 --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                  --placement kernel --placement export --placement hosted --rounds {3|1} --millis \
                  {500|300}",
        gives: Gives::Folder,
        minutes: 8,
        quick_seconds: 21,
    },
    Part {
        name: "udp-e1000e",
        about: "packets through e1000e",
        command: "bench udp-echo --card e1000e --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                  --placement kernel --placement export --placement hosted --rounds {3|1} --millis \
                  {500|300}",
        gives: Gives::Folder,
        minutes: 8,
        quick_seconds: 17,
    },
    Part {
        name: "tcp-e1000e",
        about: "TCP through e1000e",
        command: "bench tcp --card e1000e --placement kernel --placement export --placement hosted \
                  --rounds {3|1} --millis {500|300}",
        gives: Gives::Folder,
        minutes: 6,
        quick_seconds: 19,
    },
    Part {
        name: "disk-nvme",
        about: "reads of an NVMe disk",
        command: "bench disk --mode instructions --rounds {5|1} --brief --workload \
                  randread-4k-qd32 --placement kernel --placement kernel-nomultipath --placement \
                  process --placement export",
        gives: Gives::Folder,
        minutes: 12,
        quick_seconds: 26,
    },
    Part {
        name: "disk-nvme-hosted",
        about: "reads of an NVMe disk by Linux's nvme in a process",
        command: "bench disk --mode instructions --rounds {5|1} --brief --workload \
                  randread-4k-qd32 --placement kernel-nomultipath --placement hosted",
        gives: Gives::Folder,
        minutes: 8,
        quick_seconds: 23,
    },
    Part {
        name: "latency-nvme",
        about: "how long a read of an NVMe disk takes",
        command: "bench disk --mode wall --rounds {3|1} --millis {1000|500} --workload \
                  randread-4k-qd1 --placement kernel --placement kernel-nomultipath --placement \
                  process --placement export",
        gives: Gives::Folder,
        minutes: 4,
        quick_seconds: 18,
    },
    Part {
        name: "latency-nvme-hosted",
        about: "how long one by Linux's nvme in a process takes",
        command: "bench disk --mode wall --rounds {3|1} --millis {1000|500} --workload \
                  randread-4k-qd1 --placement kernel-nomultipath --placement hosted",
        gives: Gives::Folder,
        minutes: 3,
        quick_seconds: 16,
    },
    Part {
        name: "outage-e1000",
        about: "kills of ring3's driver of e1000",
        command: "bench outage --card e1000 {|--quick}",
        gives: Gives::Folder,
        minutes: 5,
        quick_seconds: 19,
    },
    Part {
        name: "outage-e1000-hosted",
        about: "kills of Linux's e1000 in a process",
        command: "bench outage --card e1000 --hosted {|--quick}",
        gives: Gives::Folder,
        minutes: 5,
        quick_seconds: 23,
    },
    Part {
        name: "outage-e1000e",
        about: "kills of ring3's driver of e1000e",
        command: "bench outage --card e1000e {|--quick}",
        gives: Gives::Folder,
        minutes: 5,
        quick_seconds: 19,
    },
    Part {
        name: "outage-e1000e-hosted",
        about: "kills of Linux's e1000e in a process",
        command: "bench outage --card e1000e --hosted {|--quick}",
        gives: Gives::Folder,
        minutes: 5,
        quick_seconds: 23,
    },
    Part {
        name: "restart-nvme",
        about: "kills of ring3's driver of NVMe",
        command: "bench restart {--kills 50 --upgrades 0|--quick}",
        gives: Gives::Folder,
        minutes: 7,
        quick_seconds: 35,
    },
    Part {
        name: "restart-nvme-hosted",
        about: "kills of Linux's nvme in a process",
        command: "bench restart {--kills 20 --upgrades 0|--quick} --driver dde:nvme",
        gives: Gives::Folder,
        minutes: 7,
        quick_seconds: 50,
    },
];

/// Of the papers, beside those.
const PAPERS: [Part; 12] = [
    Part {
        name: "leslie",
        about: "a disk read by size",
        command: "bench disk --figure leslie --controller ahci --controller ide --controller nvme \
                  --mode instructions --rounds {3 --bytes 8M --requests 4000|1 --quick}",
        gives: Gives::Folder,
        minutes: 240,
        quick_seconds: 80,
    },
    Part {
        name: "udp-echo",
        about: "UDP echo over the offered load",
        command: "bench udp-echo {|--quick}",
        gives: Gives::Folder,
        minutes: 30,
        quick_seconds: 17,
    },
    Part {
        name: "timeline",
        about: "where the time of a request goes",
        command: "bench disk --timeline --mode instructions --controller ahci {--controller \
                  nvme|--quick}",
        gives: Gives::Folder,
        minutes: 10,
        quick_seconds: 27,
    },
    Part {
        name: "kill",
        about: "kills of a driver of a model",
        command: "bench kill {|--quick} --json",
        gives: Gives::Output,
        minutes: 1,
        quick_seconds: 1,
    },
    Part {
        name: "faults",
        about: "faults of drivers of models",
        command: "faults {|--quick} --json",
        gives: Gives::Output,
        minutes: 15,
        quick_seconds: 18,
    },
    Part {
        name: "dde",
        about: "a hosted card",
        command: "bench dde {--rounds 3|--quick}",
        gives: Gives::Folder,
        minutes: 60,
        quick_seconds: 31,
    },
    Part {
        name: "irq-delay",
        about: "delays of interrupts",
        command: "bench irq-delay {|--quick}",
        gives: Gives::Folder,
        minutes: 5,
        quick_seconds: 18,
    },
    Part {
        name: "effort",
        about: "source lines",
        command: "bench effort --json",
        gives: Gives::Output,
        minutes: 1,
        quick_seconds: 9,
    },
    Part {
        name: "study",
        about: "critical functions by family",
        command: "split study {|--quick} --json",
        gives: Gives::Output,
        minutes: 20,
        quick_seconds: 15,
    },
    Part {
        name: "delays",
        about: "a split driver while its crossings take longer",
        command: "split bench e1000 --plan @examples/e1000.plan.toml --annotations \
                  @examples/e1000.annotations.toml --delays {|0,10,20000} --rounds {3|1} --seconds \
                  {6|1} --json",
        gives: Gives::Output,
        minutes: 45,
        quick_seconds: 44,
    },
    Part {
        name: "work",
        about: "polling or interrupts",
        command: "bench disk --work --mode wall {|--quick}",
        gives: Gives::Folder,
        minutes: 10,
        quick_seconds: 11,
    },
    Part {
        name: "loopback",
        about: "two cards at a cable",
        command: "bench loopback {|--quick --placement kernel --placement process --load \
                  loop-1514-stream --load loop-60-paced}",
        gives: Gives::Folder,
        minutes: 20,
        quick_seconds: 30,
    },
];

/// All parts: those of the papers first, which need no guest or a short one.
pub fn all() -> Vec<Part> {
    PLACES.iter().chain(&PAPERS).cloned().collect()
}

/// The command that measures a part, as a user types it.
pub fn command(part: &str) -> String {
    let found = PLACES.iter().chain(&PAPERS).find(|one| one.name == part);
    found.map_or_else(String::new, |part| part.shown(false))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ring3_bench::paper::PAPERS as FIGURES;

    use super::*;

    #[test]
    fn each_part_has_a_name_of_its_own_and_commands_that_are_taken() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|part| part.name).collect();
        assert_eq!(names.len(), all.len());
        for words in all.iter().flat_map(|part| [part.words(false), part.words(true)]) {
            let words = std::iter::once("ring3").chain(words.split_whitespace());
            if let Err(error) = crate::parse(words) {
                panic!("{error}");
            }
        }
    }

    #[test]
    fn the_short_form_of_a_command_has_its_own_words_where_they_differ() {
        let plan = all().into_iter().find(|part| part.name == "outage-e1000").unwrap();
        assert_eq!(plan.words(false), "bench outage --card e1000");
        assert_eq!(plan.words(true), "bench outage --card e1000 --quick");
        let restart = all().into_iter().find(|part| part.name == "restart-nvme").unwrap();
        assert_eq!(restart.words(false), "bench restart --kills 50 --upgrades 0");
        assert_eq!(restart.words(true), "bench restart --quick");
    }

    #[test]
    fn each_figure_is_of_a_part() {
        for figure in &FIGURES.figures {
            assert!(command(&figure.part).starts_with("ring3 "), "{}", figure.id);
        }
    }
}
