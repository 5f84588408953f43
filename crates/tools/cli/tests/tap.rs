//! `ring3 run net` on simulated cards, in network namespaces that each test makes. Without
//! /dev/net/tun, iproute2 or the right to make a namespace a test is skipped, and says so.

mod supervised;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Shell functions of every script. `serve OPTION...` starts ring3 and returns when its interface
/// is there, or when it has ended; `ended` prints its exit code and what it said.
const PRELUDE: &str = r#"
serve() {
    : >$DIR/ready
    $RING3 run net --json "$@" >$DIR/ready 2>$DIR/log &
    PID=$!
    for try in $(seq 400); do
        grep -q interface $DIR/ready && return
        [ -d /proc/$PID ] || break
        sleep 0.05
    done
    return 1
}
# Without the quotes in which a script of bash is.
driver() { sed "s/.*\"pid\":\([0-9]*\).*/\1/" $DIR/ready; }
ended() { wait $PID; echo "exit code $?"; cat $DIR/log; }
# Waits until net0 is said to be WORD, and prints what is said.
link() {
    for try in $(seq 200); do ip -o link show net0 | grep -q "[<,]$1[,>]" && break; sleep 0.05; done
    ip -o link show net0
}
names() { ip -o link | cut -d: -f2; }
"#;

/// What `script` prints in a namespace of its own; `None` if this machine has none for it.
fn namespace(script: &str) -> Option<String> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: /dev/net/tun is missing");
        return None;
    }
    if !Command::new("unshare")
        .args(["-n", "-m", "ip", "link"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        println!("skipped: unshare -n, or iproute2, is missing or refused");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["-n", "-m", "sh", "-c", &format!("{PRELUDE}\n{script}")])
        .env("RING3", env!("CARGO_BIN_EXE_ring3"))
        .env("DIR", directory.path())
        .output()
        .unwrap();
    Some(text(&output))
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Checks that `script` prints each of `wanted`.
#[track_caller]
fn says(script: &str, wanted: &[&str]) {
    let Some(said) = namespace(script) else { return };
    wanted
        .iter()
        .for_each(|wanted| assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}"));
}

#[test]
fn a_card_is_an_interface_until_it_is_told_to_stop() {
    // A shell's background processes are started to ignore SIGINT; control-C is the next test's.
    for signal in ["TERM", "HUP"] {
        let script = format!(
            "serve --device sim:virtio-net --name net7; ip -o link show net7; kill -{signal} $PID; \
            ended; echo names: $(names)"
        );
        says(&script, &["mtu 1500", "exit code 0\n", "names: lo\n"]);
    }
}

#[test]
fn control_c_ends_it() {
    if namespace("true").is_none() {
        return;
    }
    let words =
        ["-n", env!("CARGO_BIN_EXE_ring3"), "run", "net", "--device", "sim:e1000", "--json"];
    let mut child = Command::new("unshare").args(words).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("r3net0"), "{line}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_is_exported_is_said_for_programs() {
    let Some(said) = namespace(
        "serve --device sim:e1000,mac=52:54:00:00:00:07; cat $DIR/ready; kill $PID; ended",
    ) else {
        return;
    };
    let object: Value = serde_json::from_str(said.lines().next().unwrap())
        .unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(
        (&object["interface"], &object["model"]),
        (&"r3net0".into(), &"82574L".into()),
        "{object}"
    );
    assert_eq!(
        (&object["mac"], &object["mtu"]),
        (&"52:54:00:00:00:07".into(), &1500.into()),
        "{object}"
    );
    assert_eq!((&object["queues"], &object["link"]), (&1.into(), &true.into()), "{object}");
}

#[test]
fn what_is_sent_and_received_is_counted() {
    let script =
        "serve --device sim:e1000,wire=mirror --name net0 --engine tap --stats $DIR/stats \
                  &&
    ip link set net0 up
        ip address add 10.1.1.1/24 dev net0
        ip neighbour add 10.1.1.2 lladdr 02:00:00:00:00:09 dev net0
        for try in 1 2 3 4 5; do echo hello >/dev/udp/10.1.1.2/9; done
        sleep 0.3
        kill $PID
        ended
        cat $DIR/stats";
    let Some(said) = namespace(&format!("exec bash -c '{PRELUDE}\n{script}'")) else { return };
    let (_, report) = said.split_once("exit code 0\n").unwrap_or_else(|| panic!("{said}"));
    let report: Value =
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(
        report["tx_packets"].as_u64() >= Some(5) && report["rx_packets"].as_u64() >= Some(5),
        "{report}"
    );
}

#[test]
fn a_process_that_is_killed_leaves_no_interface() {
    let script = "serve --device sim:e1000 --name net0; names; kill -9 $PID; wait $PID
        for try in $(seq 100); do names | grep -q net0 || break; sleep 0.05; done
        echo names: $(names)";
    says(script, &["net0\n", "names: lo\n"]);
}

#[test]
fn an_interface_that_stays_is_gone_on_with_by_its_name() {
    let script = "serve --device sim:e1000 --name net0 --persist && ip link set net0 up &&
    ip address add 10.1.1.1/24 dev net0
        link LOWER_UP; kill -9 $PID; wait $PID; link NO-CARRIER
        serve --device sim:e1000 --name net0 && link LOWER_UP
        ip -o address show net0
        kill $PID
        ended";
    says(script, &["<NO-CARRIER,", "LOWER_UP", "inet 10.1.1.1/24", "exit code 0"]);
}

#[test]
fn an_ordinary_user_uses_an_interface_that_root_has_made_for_him() {
    let script =
        "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200; chmod 755 $DIR
        ip tuntap add dev net0 mode tap user 54321 vnet_hdr && ip link set net0 up
        RING3=\"setpriv --reuid 54321 --regid 54321 --clear-groups --bounding-set=-all $RING3\"
        serve --device sim:e1000,mac=52:54:00:00:00:07 --name net0 && link LOWER_UP
        kill $PID
        ended
        serve --device sim:e1000 --name net1; ended";
    says(
        script,
        &[
            "link/ether 52:54:00:00:00:07",
            "exit code 0",
            "net1: making an interface needs CAP_NET_ADMIN",
        ],
    );
}

#[test]
fn a_card_is_driven_by_a_confined_process_of_an_ordinary_user_whose_end_leaves_the_interface() {
    supervised::programs();
    let script = "serve --device sim:e1000,wire=mirror,mac=52:54:00:00:00:07 --user nobody && \
         cat $DIR/ready; ip link set r3net0 up
        grep -E '^(Uid|CapEff|Seccomp):' /proc/$(driver)/status | tr '\t\n' '  '; echo
        for try in $(seq 200); do ip -o link show r3net0 | grep -q LOWER_UP && break; sleep 0.05; \
            done; ip -o link show r3net0
        kill $PID; ended; echo names: $(names)
        serve --device sim:virtio-net --name net0 --user nobody;
        before=$(cat /sys/class/net/net0/ifindex); kill -9 $(driver)
        for try in $(seq 200); do grep -q 'users waited' $DIR/log && break; sleep 0.05; done
        [ $(cat /sys/class/net/net0/ifindex) = $before ] && echo the same interface
        kill $PID; ended; echo names: $(names)";
    says(
        script,
        &[
            "Uid: 65534 65534 65534 65534 CapEff: 0000000000000000 Seccomp: 2",
            "LOWER_UP",
            "link/ether 52:54:00:00:00:07",
            "exit code 0\n",
            "names: lo\n",
            "the same interface\nexit code 0\n",
            "was ended by signal 9",
        ],
    );
}

#[test]
fn what_a_confined_driver_cannot_do_is_refused() {
    let run = "$RING3 run net --device sim:e1000 --user nobody";
    let script = format!(
        "{run} --persist; {run} --unprotected; $RING3 run net --device sim:e1000 --user root; \
        $RING3 run net --device remote:/s --user nobody"
    );
    says(
        &script,
        &["cannot be used with", "leave --unprotected out", "is root", "leave --user out"],
    );
}

#[test]
fn what_stands_in_the_way_is_named_with_what_mends_it() {
    let run = "$RING3 run net --device sim:e1000";
    let cases = [
        ("mount -t tmpfs none /dev/net; $RUN", "modprobe tun"),
        (
            "[ -e /dev/vhost-net ] && mount --bind /dev/null /dev/vhost-net; $RUN --engine vhost",
            "modprobe vhost_net",
        ),
        (
            "[ -e /dev/vhost-net ] && mount --bind /dev/null /dev/vhost-net; $RUN --user nobody \
            --engine vhost",
            "modprobe vhost_net",
        ),
        ("setpriv --bounding-set=-net_admin --inh-caps=-net_admin $RUN", "CAP_NET_ADMIN"),
        (
            "ip tuntap add dev net0 mode tun; $RUN --name net0",
            "net0: there is an interface of this name",
        ),
        (
            "serve --device sim:e1000 --name net0; $RUN --name net0; kill $PID",
            "net0: another process has this interface",
        ),
        ("$RUN --name sixteen-letters-", "no name of an interface"),
        ("$RUN --owner nobody-at-all", "no user"),
        ("$RUN --mtu 9001", "the card takes 68 to 9000"),
        ("$RING3 run net --device sim:nvme", "it is no network card"),
        ("$RING3 run net --device sim:toaster", "sim:toaster"),
        ("$RUN --stats /no/such/folder/stats", "--stats /no/such/folder/stats"),
    ];
    for (script, wanted) in cases {
        says(
            &format!("{}; echo exit code $?; echo names: $(names)", script.replace("$RUN", run)),
            &[wanted],
        );
    }
}

#[test]
fn where_there_is_no_vhost_net_packets_go_by_calls_and_one_line_says_so() {
    let script = "[ -e /dev/vhost-net ] && mount --bind /dev/null /dev/vhost-net
        serve --device sim:e1000 --name net0 && ip link set net0 up && kill $PID; ended";
    says(script, &["exit code 0", "packets go by read and write at any load"]);
    says(&script.replace("serve", "serve --engine tap"), &["exit code 0"]);
}

#[test]
fn a_card_that_goes_ends_with_its_own_exit_code() {
    let script = "serve --device sim:e1000,fault=remove:send:1 --name net0 && \
                  ip link set net0 up && ended; echo names: $(names)";
    says(script, &["exit code 4\n", "the device is gone", "names: lo\n"]);
}
