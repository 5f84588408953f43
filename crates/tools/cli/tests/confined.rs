//! `ring3 run --user`: an ordinary user's process drives a disk in a guest, confined, and is
//! followed by another one when it dies. `RING3_TEST_KERNEL` chooses another kernel than the lab's
//! usual one, such as 7.2.

mod supervised;

use std::process::Command;
use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Guest, Outcome, SharedOutcome, Size};
use supervised::with_programs;

/// Shell functions of every step.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/ready
    ring3 run nvme --device "vfio:$DISK" --id 0 --json --user 1000 "$@" >/tmp/ready 2>/tmp/log &
    RUN=$!
    for try in $(seq 600); do
        grep -q ublkb /tmp/ready && return
        [ -d /proc/$RUN ] || break
        sleep 0.05
    done
    cat /tmp/ready /tmp/log
    return 1
}
driver() { sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /tmp/ready; }
verify() {
    fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 \
        --output=/tmp/fio "$@" >/dev/null && return
    cat /tmp/fio
    return 1
}
"#;

const SERVED: &str = r#"
serve || exit 1
verify --filename=/dev/ublkb0 --rw=randwrite --bsrange=4k-256k --blockalign=4k --iodepth=32 \
    --size=16M --fsync=16 && echo "it holds"
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '; echo
ls /proc/$(driver)/root | wc -l
ls -l /proc/$(driver)/fd 2>/dev/null | grep -c vfio
cat /proc/$(driver)/cgroup
kill $RUN; wait $RUN; echo "ended $?"; cat /tmp/log; ls /dev/ublkb0 2>&1
"#;

const KILLED: &str = r#"
serve || exit 1
kill -9 $(driver)
dd if=/dev/ublkb0 of=/dev/null bs=4k count=16 iflag=direct 2>/dev/null && echo "it is read"
for try in $(seq 200); do grep -q 'users waited' /tmp/log && break; sleep 0.05; done
cat /tmp/log; kill $RUN; wait $RUN; echo "ended $?"; ls /dev/ublkb0 2>&1
serve && echo "and again"; kill $RUN; wait $RUN; echo "ended $?"
"#;

/// Ends that are no good ends, and the exit code of each.
const ENDINGS: &str = r#"
serve || exit 1
victim=$(driver)
kill -STOP $victim; kill $RUN; sleep 2; kill $RUN; sleep 1; kill -9 $victim
wait $RUN; echo "killed while it stopped: $?"; cat /tmp/log
serve --stats /tmp/stats || exit 1
exec 7</dev/ublkb0
kill $RUN
for try in $(seq 100); do grep -q 'is in use' /tmp/log && break; sleep 0.05; done
kill -9 $(driver)
for try in $(seq 200); do grep -q 'users waited' /tmp/log && break; sleep 0.05; done
dd if=/dev/ublkb0 of=/dev/null bs=4k count=16 iflag=direct 2>/dev/null && echo "refused, and read"
echo "$DISK" >/sys/bus/pci/drivers/vfio-pci/unbind
wait $RUN; echo "lost after a refusal: $?"; cat /tmp/log; grep -c bytes_moved /tmp/stats
exec 7<&-
echo "$DISK" >/sys/bus/pci/drivers/vfio-pci/bind
"#;

const REFUSED: &str = r#"
ring3 run nvme --device "vfio:$DISK" --user root 2>&1; echo "root $?"
ring3 run nvme --device "vfio:$DISK" --user nobody-at-all 2>&1; echo "nobody-at-all $?"
ring3 run nvme --device "vfio:$DISK" --user 1000 --in-process 2>&1 | head -n 1
ring3 run null --user 1000 2>&1; echo "null $?"
"#;

const UNLIMITED: &str = r#"
cd /sys/fs/cgroup
echo -cpu -memory -pids >cgroup.subtree_control 2>/dev/null
rmdir ring3-*
mkdir part
echo +memory >cgroup.subtree_control
sh -c 'echo $$ >part/cgroup.procs; cat' </dev/null; ls -d /sys/fs/cgroup/*/
start() {
    : >/tmp/ready
    sh -c 'echo $$ >/sys/fs/cgroup/part/cgroup.procs
        exec ring3 run nvme --device "vfio:$DISK" --id 0 --json --user 1000' \
        >/tmp/ready 2>/tmp/log &
    RUN=$!
    for try in $(seq 600); do
        grep -q ublkb /tmp/ready && break
        [ -d /proc/$RUN ] || break
        sleep 0.05
    done
    kill $RUN; wait $RUN; echo "ended $?"; cat /tmp/log
}
start; cd /; umount /sys/fs/cgroup; serve; kill $RUN; wait $RUN; echo "ended $?"; cat /tmp/log
"#;

fn guest() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let disk = Device::nvme("disk", Size(64 << 20), Backing::Memory).bound("vfio-pci");
        let step = |text: &str| format!("{PRELUDE}(\n{text}\n)\ntrue");
        let guest = Guest { time_limit: Duration::from_secs(600), ..Guest::new("confined") };
        let mut guest = with_programs(guest)
            .device(disk)
            .module("ublk_drv")
            .step(
                "start",
                "echo 'driver:x:1000:1000::/:/bin/false' >>/etc/passwd; echo \
                'root:x:0:0::/:/bin/sh' >>/etc/passwd; true",
            )
            .step("served", &step(SERVED))
            .step("killed", &step(KILLED))
            .step("endings", &step(ENDINGS))
            .step("refused", &step(REFUSED))
            .step("unlimited", &step(UNLIMITED));
        if let Ok(kernel) = std::env::var("RING3_TEST_KERNEL") {
            guest.kernel = kernel;
        }
        let outcome = Cache::open()
            .and_then(|cache| guest.run(&cache, &mut |_| {}))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
        outcome
    })
}

#[track_caller]
fn says(step: &str, wanted: &[&str]) {
    let said = guest().said(step).unwrap();
    wanted
        .iter()
        .for_each(|wanted| assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_disk_is_driven_by_a_process_of_an_ordinary_user_without_rights_files_or_the_devices_descriptor()
 {
    let status = "Uid: 1000 1000 1000 1000 CapEff: 0000000000000000 CapBnd: 0000000000000000 \
                  NoNewPrivs: 1 Seccomp: 2";
    says("served", &["it holds", status, "\n0\n0\n", "/ring3-run-", "ended 0", "No such file"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn an_end_that_loses_something_has_an_exit_code_of_its_own_and_says_why() {
    says(
        "endings",
        &[
            "killed while it stopped: 1\n",
            "before it had stopped the device",
            "refused, and read",
            "lost after a refusal: 3\n",
            "the system wants the device back",
        ],
    );
    let said = guest().said("endings").unwrap();
    let figures = said.split("wants the device back").nth(1).unwrap_or_default();
    assert!(figures.contains("\n1\n"), "the figures are not empty:\n{said}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_driver_that_is_killed_is_followed_by_another_one_and_its_disk_stays() {
    says(
        "killed",
        &["it is read", "was ended by signal 9", "ended 0", "No such file", "and again"],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_user_who_is_root_or_not_there_and_what_needs_no_driver_are_refused_by_name() {
    says(
        "refused",
        &[
            "\"root\" is root",
            "root 2",
            "there is no user \"nobody-at-all\"",
            "nobody-at-all 2",
            "cannot be used with",
            "needs no driver",
            "null 1",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_limit_that_the_machine_does_not_keep_is_said() {
    // As much of the processors as all of them have is no limit.
    says(
        "unlimited",
        &[
            "the number of its threads is not limited: the controller pids is not delegated",
            "ended 0",
        ],
    );
    says("unlimited", &["only each process's own memory is limited: no cgroup v2 is mounted"]);
}

#[test]
fn the_sandbox_of_a_driver_is_shown_in_words_and_as_json() {
    let show = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_ring3"))
            .args(["sandbox", "show"])
            .args(words)
            .output()
            .unwrap()
    };
    let words = String::from_utf8(show(&["nvme"]).stdout).unwrap();
    for wanted in [
        "user 65534",
        "no capabilities",
        "mmap (nothing to execute)",
        "io_uring_enter",
        "clone (threads)",
    ] {
        assert!(words.contains(wanted), "{wanted:?} is not in:\n{words}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&show(&["ahci", "--json"]).stdout).unwrap();
    let calls: Vec<_> = json["system_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["name"].as_str().unwrap())
        .collect();
    assert!(
        calls.contains(&"recvmsg") && !calls.contains(&"ioctl") && !calls.contains(&"openat"),
        "{calls:?}"
    );
    let wrong = show(&["toaster"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("no driver has such a name"));
}
