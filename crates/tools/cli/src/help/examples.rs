//! The examples of each command, which stand at the end of its help and of its manual page.
//!
//! Where a command needs a device, the example takes a simulated one (`sim:`) or one of QEMU's
//! (`qtest:`), so that it works without hardware. A test parses all of them.

/// Commands as they are typed behind `ring3`, with one to three examples each.
pub const EXAMPLES: &[(&str, &[&str])] = &[
    ("ata id", &["ring3 ata id --device sim:ahci", "ring3 ata id --device qtest:piix3-ide"]),
    ("bench dde", &["ring3 bench dde --quick", "ring3 bench dde --load udp-1472-echo --out out"]),
    (
        "bench disk",
        &[
            "ring3 bench disk --quick",
            "ring3 bench disk --mode wall --placement kernel-none --placement export",
            "ring3 bench disk --workload randread-4k-qd32 --rivals --out out",
        ],
    ),
    ("bench effort", &["ring3 bench effort"]),
    (
        "bench forward",
        &["ring3 bench forward --quick", "ring3 bench forward --card igb --mode wall"],
    ),
    ("bench instructions", &["ring3 bench instructions --rounds 1"]),
    ("bench irq-delay", &["ring3 bench irq-delay --quick"]),
    (
        "bench kill",
        &[
            "ring3 bench kill --quick",
            "ring3 bench kill --model ahci --times 200",
            "ring3 bench kill --hand-over --quick",
        ],
    ),
    ("bench loopback", &["ring3 bench loopback --quick"]),
    (
        "bench outage",
        &["ring3 bench outage --quick", "ring3 bench outage --card e1000 --hosted --kills 5"],
    ),
    ("bench ping", &["ring3 bench ping --quick --and-kernel none"]),
    ("bench places", &["ring3 bench places --quick", "ring3 bench places --out out/places --json"]),
    (
        "bench restart",
        &[
            "ring3 bench restart --quick",
            "ring3 bench restart --databases 60",
            "ring3 bench restart --controller ahci --kills 20 --upgrades 0",
        ],
    ),
    ("bench split", &["ring3 bench split e1000 --quick"]),
    ("bench tcp", &["ring3 bench tcp --quick"]),
    ("bench udp-echo", &["ring3 bench udp-echo --quick", "ring3 bench udp-echo --cpu"]),
    (
        "bind",
        &[
            "ring3 bind 0000:01:00.0 --dry-run",
            "sudo ring3 bind 0000:01:00.0",
            "sudo ring3 bind 0000:01:00.0 --owner nobody",
        ],
    ),
    (
        "blk bench",
        &[
            "ring3 blk bench --device sim:nvme --workload randread-4k-qd32",
            "ring3 blk bench --device sim:nvme --workload randwrite-4k-qd8 --overwrite --verify",
            "ring3 blk bench --device qtest:nvme --seconds 5 --latency",
        ],
    ),
    (
        "blk check",
        &[
            "ring3 blk check --destroy --device sim:nvme",
            "ring3 blk check --destroy --device qtest:ich9-ahci --requests 200",
            "ring3 blk check --destroy --driver dde:nvme --device qtest:nvme",
        ],
    ),
    (
        "blk info",
        &["ring3 blk info --device sim:nvme", "ring3 blk info --device qtest:nvme --json"],
    ),
    ("blk lend", &["ring3 blk lend --share /run/ring3/share --size 128"]),
    (
        "blk read",
        &[
            "ring3 blk read --device sim:nvme --length 1M --to data",
            "ring3 blk read --device sim:nvme --offset 8b --length 1b | xxd",
        ],
    ),
    ("blk write", &["ring3 blk write --device sim:nvme --from data --pad"]),
    ("cache", &["ring3 cache"]),
    (
        "cache prune",
        &[
            "ring3 cache prune --dry-run",
            "ring3 cache prune --older-than 30d --larger-than 1G --dry-run",
            "ring3 cache prune snapshots runs",
        ],
    ),
    (
        "completion",
        &[
            "ring3 completion bash >~/.local/share/bash-completion/completions/ring3",
            "ring3 completion fish >~/.config/fish/completions/ring3.fish",
        ],
    ),
    ("dde build", &["ring3 dde build e1000e", "ring3 dde build nvme --kernel 7.2"]),
    ("dde fuzz", &["ring3 dde fuzz e1000e --seconds 60"]),
    ("dde list", &["ring3 dde list"]),
    (
        "dde run",
        &[
            "ring3 dde run e1000e --device qtest:e1000e --lwip 10.0.0.2/24",
            "ring3 dde run nvme --device qtest:nvme --socket /tmp/disk",
            "ring3 dde run snd-ens1370 --device qtest:ES1370 --play sound.wav",
        ],
    ),
    ("demo", &["ring3 demo", "ring3 demo --no-bench --kernel 7.2"]),
    ("devices", &["ring3 devices", "ring3 devices --json"]),
    ("doctor", &["ring3 doctor", "ring3 doctor 0000:01:00.0"]),
    (
        "faults",
        &[
            "ring3 faults --quick",
            "ring3 faults --count 5000 --only dma",
            "ring3 faults --reproduce 1:17",
        ],
    ),
    ("faults hunt", &["ring3 faults hunt --count 100"]),
    ("faults lone", &["ring3 faults lone --device sim:nvme,registers=set/0x1:read:3"]),
    ("faults merge", &["ring3 faults merge out/faults-1-of-2.json out/faults-2-of-2.json"]),
    ("hardware list", &["ring3 hardware list", "ring3 hardware list folder"]),
    (
        "hardware test",
        &[
            "ring3 hardware test sim:nvme,size=64M --quick",
            "sudo ring3 hardware test 0000:01:00.0",
            "sudo ring3 hardware test 0000:01:00.0 --destroy --verify 10m --out drive.json",
        ],
    ),
    ("lab list", &["ring3 lab list"]),
    ("lab prepare", &["ring3 lab prepare", "ring3 lab prepare --kernel 7.2"]),
    ("lab run", &["ring3 lab run two-disks", "ring3 lab run nvme --kernel 7.2 --out out"]),
    ("lab shell", &["ring3 lab shell", "ring3 lab shell cards --kernel 7.2"]),
    (
        "logs",
        &[
            "sudo ring3 logs scratch",
            "sudo ring3 logs scratch -f",
            "sudo ring3 logs scratch --json",
        ],
    ),
    ("man", &["ring3 man --out man1"]),
    ("model", &["ring3 model nvme,size=64M --socket /tmp/nvme"]),
    ("net bench", &["ring3 net bench --device vfio:0000:02:00.0 --seconds 10"]),
    (
        "net check",
        &[
            "ring3 net check --device sim:e1000,wire=cable/a --peer sim:e1000,wire=cable/a",
            "ring3 net check --driver dde:e1000e --device qtest:e1000e",
        ],
    ),
    ("net info", &["ring3 net info --device sim:e1000", "ring3 net info --device qtest:e1000e"]),
    (
        "new driver",
        &["ring3 new driver adder", "ring3 new driver adder --source ~/ring3 --at /tmp/adder"],
    ),
    ("nvme errors", &["ring3 nvme errors --device sim:nvme"]),
    ("nvme id", &["ring3 nvme id --device sim:nvme", "ring3 nvme id --device qtest:nvme --json"]),
    ("nvme firmware", &["ring3 nvme firmware --device vfio:0000:01:00.0"]),
    ("nvme format", &["ring3 nvme format --device sim:nvme --namespace 1 --block 4096 --destroy"]),
    ("nvme namespaces", &["ring3 nvme namespaces --device sim:nvme,namespaces=2,block=512p1"]),
    ("nvme power", &["ring3 nvme power --device sim:nvme,sleep=2ms/3ms+20ms/40ms --idle 3000"]),
    ("nvme smart", &["ring3 nvme smart --device sim:nvme"]),
    ("plot", &["ring3 plot out/restart.json --out restart.svg"]),
    ("quirks compare", &["ring3 quirks compare /usr/src/linux-source-6.12"]),
    ("quirks show", &["ring3 quirks show", "ring3 quirks show --markdown"]),
    ("record", &["ring3 record -o id.rec -- nvme id --device sim:nvme"]),
    ("reload", &["sudo ring3 reload"]),
    ("replay", &["ring3 replay id.rec", "ring3 replay id.rec --show"]),
    (
        "report",
        &["ring3 report --run --quick", "ring3 report --from out/report --out out/report.html"],
    ),
    ("restart", &["sudo ring3 restart scratch"]),
    (
        "run ata",
        &[
            "sudo ring3 run ata --device sim:ahci",
            "sudo ring3 run ata --device vfio:0000:00:1f.2 --drive 0",
        ],
    ),
    ("run disk", &["sudo ring3 run disk --device remote:/run/ring3/a"]),
    ("run edu", &["ring3 run edu --device sim:edu", "ring3 run edu --device qtest:edu --json"]),
    (
        "run net",
        &[
            "sudo ring3 run net --device sim:e1000,wire=mirror --name net0",
            "sudo ring3 run net --device vfio:0000:02:00.0 --user nobody",
        ],
    ),
    ("run null", &["sudo ring3 run null --size 1024"]),
    (
        "run nvme",
        &[
            "sudo ring3 run nvme --device sim:nvme,size=64M",
            "sudo ring3 run nvme --device vfio:0000:01:00.0",
            "sudo ring3 run nvme --device vfio:0000:01:00.0 --share /run/ring3/share",
        ],
    ),
    ("run virtio", &["sudo ring3 run virtio --device sim:virtio-blk"]),
    ("sandbox show", &["ring3 sandbox show nvme", "ring3 sandbox show dde:e1000e --json"]),
    (
        "serve disk",
        &[
            "ring3 serve disk --device sim:nvme --socket /tmp/a,size=16M",
            "ring3 serve disk --device qtest:nvme --socket /tmp/a,access=ro,iops=1000",
        ],
    ),
    (
        "serve net",
        &["ring3 serve net --device sim:e1000,wire=mirror --socket /tmp/c --socket /tmp/d,vlan=7"],
    ),
    ("sleep", &["sudo ring3 sleep", "sudo ring3 sleep --hibernate"]),
    ("split", &["ring3 split show e1000", "ring3 split run snd-ens1370 --guest"]),
    (
        "suites",
        &[
            "ring3 suites --quick",
            "ring3 suites selftests postgres --on kernel,killed",
            "ring3 suites xfstests --tests generic/001,generic/005 --on killed",
        ],
    ),
    ("status", &["sudo ring3 status", "sudo ring3 status scratch", "sudo ring3 status --watch"]),
    ("stop", &["sudo ring3 stop scratch"]),
    ("top", &["sudo ring3 top", "sudo ring3 top --once --json"]),
    ("ublk delete", &["sudo ring3 ublk delete", "sudo ring3 ublk delete 3"]),
    ("ublk list", &["sudo ring3 ublk list"]),
    ("unbind", &["sudo ring3 unbind 0000:01:00.0"]),
    (
        "upgrade",
        &["sudo ring3 upgrade scratch", "sudo ring3 upgrade scratch --program ./ring3-driver"],
    ),
    ("vduse delete", &["sudo ring3 vduse delete", "sudo ring3 vduse delete r3disk0"]),
    ("vduse list", &["sudo ring3 vduse list"]),
    ("wake", &["sudo ring3 wake"]),
];
