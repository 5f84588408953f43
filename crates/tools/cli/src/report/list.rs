//! The parts: which commands measure what a report shows. A word with `@` before it is a file of
//! the splitter's folder.

use super::parts::{Gives, Part};

/// Of the four-place table.
pub const PLACES: [Part; 15] = [
    Part {
        name: "plan-e1000",
        about: "lines of the split e1000 in the kernel",
        words: "split plan --check @examples/e1000.plan.toml --json",
        quick: "split plan --check @examples/e1000.plan.toml --json",
        gives: Gives::Plan("e1000"),
        minutes: (1, 1),
    },
    Part {
        name: "plan-e1000e",
        about: "lines of e1000e that an automatic plan leaves in the kernel",
        words: "split plan e1000e --json",
        quick: "split plan e1000e --json",
        gives: Gives::Plan("e1000e"),
        minutes: (1, 1),
    },
    Part {
        name: "plan-nvme",
        about: "lines of nvme that an automatic plan leaves in the kernel",
        words: "split plan nvme --json",
        quick: "split plan nvme --json",
        gives: Gives::Plan("nvme"),
        minutes: (1, 1),
    },
    Part {
        name: "split-e1000",
        about: "TCP through e1000 in all four places",
        words: "split bench e1000 --plan @examples/e1000.plan.toml --annotations \
                @examples/e1000.annotations.toml --everywhere --rounds 5 --seconds 4 --json",
        quick: "split bench e1000 --plan @examples/e1000.plan.toml --annotations \
                @examples/e1000.annotations.toml --everywhere --rounds 1 --seconds 2 --json",
        gives: Gives::Output,
        minutes: (30, 6),
    },
    Part {
        name: "udp-e1000",
        about: "packets through e1000",
        words: "bench udp-echo --card e1000 --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                --placement kernel --placement export --placement hosted --rounds 3 --millis \
                500",
        quick: "bench udp-echo --card e1000 --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                --placement kernel --placement export --placement hosted --rounds 1 --millis \
                300",
        gives: Gives::Folder,
        minutes: (8, 3),
    },
    Part {
        name: "udp-e1000e",
        about: "packets through e1000e",
        words: "bench udp-echo --card e1000e --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                --placement kernel --placement export --placement hosted --rounds 3 --millis \
                500",
        quick: "bench udp-echo --card e1000e --load udp-64-echo-qd1 --load udp-64-echo-qd32 \
                --placement kernel --placement export --placement hosted --rounds 1 --millis \
                300",
        gives: Gives::Folder,
        minutes: (8, 3),
    },
    Part {
        name: "tcp-e1000e",
        about: "TCP through e1000e",
        words: "bench tcp --card e1000e --placement kernel --placement export --placement \
                hosted --rounds 3 --millis 500",
        quick: "bench tcp --card e1000e --placement kernel --placement export --placement \
                hosted --rounds 1 --millis 300",
        gives: Gives::Folder,
        minutes: (6, 2),
    },
    Part {
        name: "disk-nvme",
        about: "reads of an NVMe disk",
        words: "bench disk --mode instructions --rounds 5 --brief --workload randread-4k-qd32 \
                --placement kernel --placement kernel-nomultipath --placement process \
                --placement export --placement hosted",
        quick: "bench disk --mode instructions --rounds 1 --brief --workload randread-4k-qd32 \
                --placement kernel --placement kernel-nomultipath --placement process \
                --placement export --placement hosted",
        gives: Gives::Folder,
        minutes: (15, 4),
    },
    Part {
        name: "latency-nvme",
        about: "how long a read of an NVMe disk takes",
        words: "bench disk --mode wall --rounds 3 --millis 1000 --workload randread-4k-qd1 \
                --placement kernel --placement kernel-nomultipath --placement export \
                --placement hosted",
        quick: "bench disk --mode wall --rounds 1 --millis 500 --workload randread-4k-qd1 \
                --placement kernel --placement kernel-nomultipath --placement export \
                --placement hosted",
        gives: Gives::Folder,
        minutes: (5, 2),
    },
    Part {
        name: "outage-e1000",
        about: "kills of ring3's driver of e1000",
        words: "bench outage --card e1000",
        quick: "bench outage --card e1000 --quick",
        gives: Gives::Folder,
        minutes: (5, 2),
    },
    Part {
        name: "outage-e1000-hosted",
        about: "kills of Linux's e1000 in a process",
        words: "bench outage --card e1000 --hosted",
        quick: "bench outage --card e1000 --hosted --quick",
        gives: Gives::Folder,
        minutes: (5, 2),
    },
    Part {
        name: "outage-e1000e",
        about: "kills of ring3's driver of e1000e",
        words: "bench outage --card e1000e",
        quick: "bench outage --card e1000e --quick",
        gives: Gives::Folder,
        minutes: (5, 2),
    },
    Part {
        name: "outage-e1000e-hosted",
        about: "kills of Linux's e1000e in a process",
        words: "bench outage --card e1000e --hosted",
        quick: "bench outage --card e1000e --hosted --quick",
        gives: Gives::Folder,
        minutes: (5, 2),
    },
    Part {
        name: "restart-nvme",
        about: "kills of ring3's driver of NVMe",
        words: "bench restart --kills 50 --upgrades 0",
        quick: "bench restart --kills 5 --upgrades 0",
        gives: Gives::Folder,
        minutes: (7, 3),
    },
    Part {
        name: "restart-nvme-hosted",
        about: "kills of Linux's nvme in a process",
        words: "bench restart --kills 20 --upgrades 0 --driver dde:nvme",
        quick: "bench restart --kills 3 --upgrades 0 --driver dde:nvme",
        gives: Gives::Folder,
        minutes: (7, 3),
    },
];
