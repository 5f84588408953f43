"""The user half of a split card as ring3d keeps it: started, killed, hung, taken over, stopped.

And ring3d itself killed.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import tomlkit

from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import generate
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject
from ring3_split.profile import lab

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
# Of the user nobody.
NOBODY = 65534
EXAMPLES = Path(__file__).parents[1] / "examples"
# After split.sh, network.sh and network-split.sh.
SUPERVISED = """
half() { ring3 status e1000 | sed -n 's/.*, process \\([0-9]*\\),.*/\\1/p'; }
# is STATE: it comes into that state.
is() {
    for try in $(seq 150); do
        ! ring3 status e1000 | grep -q "state *$1" || return 0
        usleep 100000
    done
    ring3 status e1000; ring3 logs e1000; cat /tmp/ring3d; dmesg | tail -n 20
    return 1
}
# another: a user half that is not the one of /tmp/user-half.pid has attached, and is that from now
# on.
another() {
    old=$(cat /tmp/user-half.pid)
    for try in $(seq 150); do
        if [ "$(half)" != "$old" ] && ring3 status e1000 | grep -q "state *running"; then
            half >/tmp/user-half.pid
            return 0
        fi
        usleep 100000
    done
    is another
}
split_restart() { another; }
answers() {
    before=$(failures)
    net control "$(interface "$CARD")" answers >/dev/null
    [ "$(failures)" = "$before" ]
}
ring3d_begins() {
    ring3d --program "$(command -v split-e1000)" >>/tmp/ring3d 2>&1 &
    echo $! >/tmp/ring3d.pid
    for try in $(seq 100); do ! ring3 status >/dev/null 2>&1 || return 0; usleep 100000; done
    cat /tmp/ring3d
    return 1
}
begins() {
    prepare || return
    mkdir -p /etc/ring3
    printf '[split.e1000]\\n[split.e1000.restart]\\nburst = 20\\n' >/etc/ring3/e1000.toml
    echo 0 >/tmp/user-half.pid
    ring3d_begins && is absent || return
    insmod /lib/ring3/ring3_split.ko grace_ms=5000 && insmod /lib/ring3/e1000.ko || return
    another && up && answers && ring3 status e1000 && echo "it answers under ring3d"
}
is_killed() {
    kill -9 "$(cat /tmp/user-half.pid)"
    another && answers && ring3 logs e1000 | grep SIGKILL && echo "another one answers"
}
hangs() {
    echo 1500 >/sys/module/ring3_split/parameters/deadline_ms
    kill -STOP "$(cat /tmp/user-half.pid)"
    answers && return 1
    another && answers && ring3 logs e1000 | grep "taken for dead" &&
        echo "one that hangs is replaced"
    echo 0 >/sys/module/ring3_split/parameters/deadline_ms
}
stops() {
    ring3 stop e1000 && is stopped && dead "$(cat /tmp/user-half.pid)" || return
    ping -c 3 -i 0.2 $THERE && ring3 restart e1000 && another && answers &&
        echo "it is stopped and started"
}
is_upgraded() {
    ring3 upgrade e1000 && another && answers && ring3 status e1000 | grep "1 upgrades"
}
ring3d_dies() {
    kill -9 "$(cat /tmp/ring3d.pid)"
    for try in $(seq 100); do ! dead "$(cat /tmp/user-half.pid)" || break; usleep 50000; done
    dead "$(cat /tmp/user-half.pid)" || { echo "it outlives ring3d"; return 1; }
    ring3d_begins && another && answers && echo "it ends with ring3d, and the next one has another"
}
ends() {
    rmmod e1000 && is absent && insmod /lib/ring3/e1000.ko && another || return
    kill "$(cat /tmp/ring3d.pid)" && wait "$(cat /tmp/ring3d.pid)" 2>/dev/null
    for try in $(seq 100); do ! dead "$(cat /tmp/ring3d.pid)" || break; usleep 100000; done
    dead "$(cat /tmp/user-half.pid)" && rmmod e1000 && runtime_unload && cat /tmp/ring3d &&
        kernel_is_well
}
"""
STEPS = ("begins", "is_killed", "hangs", "confined", "stops", "is_upgraded", "ring3d_dies", "ends")


@pytest.fixture(scope="module")
def log(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("split")
    ring3d = Path(lab.program()).with_name("ring3d")
    if not ring3d.is_file():
        pytest.fail(f"{ring3d} is missing: cargo build")
    plan, answers = (
        load(EXAMPLES / "e1000.plan.toml"),
        file.load(EXAMPLES / "e1000.annotations.toml").answers(),
    )
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    built = build.build(
        kernel,
        generate(kernel, kernel.module("e1000"), found, Wishes.of(plan, answers), folder / "out"),
    )
    one = run.guest_run(kernel, "e1000", built, 0.2)
    script = folder / "supervised.sh"
    script.write_text(SUPERVISED)
    whole_run = dataclasses.replace(one, programs=(ring3d, *one.programs))
    document = tomlkit.parse(
        run.text(whole_run, "network", built.layout, run.Wanted(work=script))
    ).unwrap()
    shell = "".join(
        f". /lib/ring3/{name}.sh; " for name in ("split", "network", "network-split", "supervised")
    )
    document["step"] = [{"name": name, "run": f"{shell}{name}"} for name in STEPS]
    (folder / "scenario.toml").write_text(tomlkit.dumps(document))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "files",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def test_a_user_half_is_started_before_its_driver_is_there_and_answers(log: str) -> None:
    assert "it answers under ring3d" in log


def test_one_that_is_killed_is_followed_by_another(log: str) -> None:
    assert "another one answers" in log


def test_one_that_does_not_answer_in_time_is_taken_for_dead(log: str) -> None:
    assert "one that hangs is replaced" in log


def test_it_has_no_rights_and_is_ended_for_a_file_a_socket_a_process_or_a_program(log: str) -> None:
    user = re.search(
        r"^.*user (\d+), capabilities 0+, bounding 0+, no new privileges 1, filter 2",
        log,
        re.MULTILINE,
    )
    assert user, "it is confined"
    assert int(user[1]) != NOBODY, "one of nobody's may end all others of nobody"
    assert "file: refused: Permission denied" in log
    for call in ("device", "socket", "fork", "exec", "code"):
        assert f"{call}: ended by signal 31" in log


def test_users_stop_start_and_replace_it(log: str) -> None:
    assert "it is stopped and started" in log
    assert "1 upgrades" in log


def test_it_ends_with_ring3d(log: str) -> None:
    assert "it ends with ring3d, and the next one has another" in log


def test_the_kernel_says_nothing_of_a_bug(log: str) -> None:
    assert "the kernel is well" in log
