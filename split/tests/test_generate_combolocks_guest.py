"""Combolocks in guests.

A driver of our own that counts under one, and 8139too's rx_lock, which its poll takes.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import tomlkit

from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import RUNTIME, generate
from ring3_split.kbuild.catalogue import Catalogue, Target
from ring3_split.kernel import Kernel
from ring3_split.model import Module
from ring3_split.plan import load, planner, subject, weights
from ring3_split.plan.check import check
from ring3_split.plan.file import Side
from ring3_split.profile import lab, scenario
from ring3_split.profile.headers import version

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
COUNTER = Path(__file__).parent / "split_counter.c"
EXAMPLES = Path(__file__).parents[1] / "examples"
PREPARE = """
at=/proc/split_counter
user_half() { split-split_counter 30 >>/tmp/user-half 2>&1 & process=$!; }
begin() {
    insmod /lib/ring3/ring3_split.ko grace_ms=3000 && insmod /lib/ring3/split_counter.ko &&
        user_half || exit 1
    echo 0 >$at/hold || { cat /tmp/user-half; dmesg | tail; exit 1; }
}
end() {
    cat /tmp/user-half
    rmmod split_counter && wait $process; rmmod ring3_split || exit 1
    dmesg | grep -E 'split_counter|ring3_split'
    ! dmesg | grep -E 'BUG|WARNING|Oops|Call Trace|INFO:'
}
begin
"""
STEPS = {
    "held": """
        interrupts=$(cat $at/interrupts)
        echo 5000 >$at/hold & holding=$!
        usleep 500000
        ticks=$(cat $at/ticks); echo 1 >$at/inject; usleep 500000
        ticked=$(($(cat $at/ticks) - ticks)) interrupted=$(($(cat $at/interrupts) - interrupts))
        echo "while it is held: $ticked ticks, $interrupted interrupts"
        [ "$(cat $at/take)" -gt 200 ] && echo "a process sleeps for it"
        wait $holding && echo "nobody has counted meanwhile"
        usleep 200000
        [ "$(cat $at/ticks)" -gt "$ticks" ] && echo "the timer goes on"
        echo "afterwards: $(($(cat $at/interrupts) - interrupts)) interrupts"
        for i in 1 2 3 4; do echo 100 >$at/hold & done
        for job in $(jobs -p); do
            [ $job = $process ] || wait $job || echo "one of four has failed"
        done
        echo "four have held it"
    """,
    "killed": """
        echo 8000 >$at/hold & holding=$!
        usleep 500000
        { usleep 500000; kill -9 $process; } &
        waited=$(cat $at/take)
        [ "$waited" -gt 200 ] && [ "$waited" -lt 4000 ] &&
            echo "it is given back when its holder is killed"
        wait $holding || echo "the upcall has failed"
        ticks=$(cat $at/ticks); usleep 200000
        [ "$(cat $at/ticks)" -gt "$ticks" ] && echo "the timer goes on"
        user_half
        echo 10 >$at/hold && echo "the next one has it"
    """,
    "deadlock": """
        echo 1000 >/sys/module/ring3_split/parameters/deadline_ms
        echo 0 >$at/ask || echo "the upcall has failed"
        echo "the lock is free after $(cat $at/take) ms"
        ticks=$(cat $at/ticks); usleep 200000
        [ "$(cat $at/ticks)" -gt "$ticks" ] && echo "the timer goes on"
        echo 10 >$at/hold && echo "the user half has it again"
    """,
    "intruded": """
        echo 4000 >$at/hold & holding=$!
        usleep 500000
        echo 1 >$at/intrude && echo "it has not waited"
        wait $holding || echo "the upcall has failed"
        echo 10 >$at/hold && echo "the user half has it again"
    """,
}


def with_driver(kernel: Kernel, folder: Path) -> Kernel:
    """The kernel with a driver of our own in its tree."""
    root, place = folder / "tree", Path("drivers/counter")
    (root / place).mkdir(parents=True)
    for path in kernel.root.iterdir():
        if path.name != "drivers":
            (root / path.name).symlink_to(path)
    shutil.copy(COUNTER, root / place)
    target = Target(
        Module(name="split_counter", directory=str(place), sources=(str(place / COUNTER.name),))
    )
    return dataclasses.replace(
        kernel,
        root=root,
        key=f"{kernel.key}-counter",
        folder=folder / "cache",
        load=partial(Catalogue, (target,)),
    )


@pytest.fixture(scope="module")
def counter(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("counter")
    beside = with_driver(kernel, folder)
    whole = subject.load(beside, "split_counter", "field")
    whole = dataclasses.replace(whole, combolocks=frozenset({"counter.lock"}))
    plan = planner.cut(whole, weights.places(whole), Fraction(1))
    for key, placed in plan.functions.items():
        placed.placement = Side.USER if key.rpartition(":")[2] in ("hold", "ask") else Side.KERNEL
    assert check(whole, plan).holds
    found = survey(whole.graph, plan.sides(), kernel.name)
    generated = generate(
        beside, beside.module("split_counter"), found, Wishes.of(plan, {}), folder / "out"
    )
    # What no plan allows, a user half that lies may do: it has the kernel half take what it holds.
    user = generated.folder / "user/split_counter_main.c"
    asked = "static int ask(struct counter *this)\n{\n"
    user.write_text(user.read_text().replace(asked, f"{asked}\tspin_lock(&this->lock);"))
    built = build.build(kernel, generated)
    document = {
        "about": "a driver that counts under a combolock",
        "kernel": version(kernel),
        "iommu": "none",
        "time_limit": 240,
        "programs": [str(built.program)],
        "files": {f"/lib/ring3/{file.name}": str(file) for file in (built.runtime, built.driver)},
        "step": [{"name": name, "run": f"{PREPARE}{text}\nend"} for name, text in STEPS.items()],
    }
    (folder / "scenario.toml").write_text(tomlkit.dumps(document))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "out",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def part(log: str, step: str) -> str:
    return log.partition(f"== {step}")[2].partition("\n==")[0]


def test_nobody_takes_a_lock_that_the_user_half_holds(counter: str) -> None:
    assert "nobody has counted meanwhile" in part(counter, "held")


def test_who_can_sleep_sleeps_for_it(counter: str) -> None:
    assert "a process sleeps for it" in part(counter, "held")


def test_a_timer_comes_later(counter: str) -> None:
    assert "while it is held: 0 ticks" in part(counter, "held")
    assert "the timer goes on" in part(counter, "held")


def test_an_interrupt_waits_until_it_is_given_back(counter: str) -> None:
    assert "while it is held: 0 ticks, 0 interrupts" in part(counter, "held")
    assert "afterwards: 1 interrupts" in part(counter, "held")


def test_upcalls_take_it_one_after_the_other(counter: str) -> None:
    assert "four have held it" in part(counter, "held")
    assert "one of four has failed" not in part(counter, "held")


def test_it_is_given_back_and_all_is_let_go_when_its_holder_is_killed(counter: str) -> None:
    for line in (
        "it is given back when its holder is killed",
        "the timer goes on",
        "the next one has it",
    ):
        assert line in part(counter, "killed")


def test_a_user_half_that_has_the_kernel_wait_for_itself_loses_it(counter: str) -> None:
    assert "taken from it: its upcall has ended" in part(counter, "deadlock")
    for line in ("the upcall has failed", "the timer goes on", "the user half has it again"):
        assert line in part(counter, "deadlock")


def test_what_cannot_sleep_never_waits_and_the_upcall_fails(counter: str) -> None:
    assert "taken from it: what takes it is called in atomic context" in part(counter, "intruded")
    for line in ("it has not waited", "the upcall has failed", "the user half has it again"):
        assert line in part(counter, "intruded")


HELD = """
begins() { split_load && works && split_kill; }
liar() {
    holder 8139too "$LAYOUT" $COMBOLOCK $SPINLOCK 1500 >/tmp/holder 2>&1 &
    echo $! >/tmp/user-half.pid
    usleep 200000
    name=$(interface "$CARD")
    while ! grep -q 'upcall 2' /tmp/holder; do net control "$name" levels; done >/dev/null 2>&1 &
    usleep 500000
    ping -c 10 -i 0.1 -W 5 $THERE >/tmp/pings; tail -n 2 /tmp/pings
    ! grep -q ' 0% packet loss' /tmp/pings || echo "its packets come when it is given back"
    for try in $(seq 100); do ! grep -q 'upcall 2' /tmp/holder || break; usleep 100000; done
    cat /tmp/holder
    ping -c 1 -W 1 $THERE >/dev/null && { echo "packets come while it is held"; return 1; }
    echo "no packet comes while it is held"
    split_kill && ping -c 3 -i 0.2 $THERE && echo "packets come after its death"
}
again() { split_restart && works; }
dies() { split_kill && lies; }
mended() { honest && works && split_unload && kernel_is_well; }
"""


@pytest.fixture(scope="module")
def realtek(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rx_lock")
    plan, answers = (
        load(EXAMPLES / "8139too.plan.toml"),
        file.load(EXAMPLES / "8139too.annotations.toml").answers(),
    )
    plan.combolocks = ["rtl8139_private.rx_lock"]
    whole = subject.load(kernel, "8139too", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    generated = generate(
        kernel, kernel.module("8139too"), found, Wishes.of(plan, answers), folder / "out"
    )
    built = build.build(kernel, generated)
    behind = generated.border.behind["net_device"][1]
    places = generated.border.places_of("rtl8139_private", ["rx_lock", "lock"])
    variables = {
        "COMBOLOCK": str(behind + places["rx_lock"][0]),
        "SPINLOCK": str(behind + places["lock"][0]),
    }
    (folder / "held.sh").write_text(HELD)
    one = run.guest_run(kernel, "8139too", built, 0.2)
    holder = lab.compiled_file(
        Path(__file__).parent / "holder.c", kernel.folder.parent / "guest", RUNTIME
    )
    with_holder = dataclasses.replace(one, programs=(holder, *one.programs))
    document = tomlkit.parse(
        run.text(
            with_holder, "network", built.layout, run.Wanted(lies=3000, work=folder / "held.sh")
        )
    ).unwrap()
    document["variables"] |= variables
    shell = "".join(
        f". /lib/ring3/{name}.sh; " for name in ("split", "network", "network-split", "held")
    )
    steps = {"begins": f"{scenario.prepare(one)} && begins"} | {
        name: name for name in ("liar", "again", "dies", "mended")
    }
    document["step"] = [
        {"name": name, "run": f"{shell}{command}"} for name, command in steps.items()
    ]
    (folder / "scenario.toml").write_text(tomlkit.dumps(document))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "files",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def test_a_card_whose_poll_takes_a_combolock_works(realtek: str) -> None:
    for step in ("begins", "again", "mended"):
        assert "eth0 is up" in part(realtek, step)
    assert "the kernel is well" in part(realtek, "mended")


def test_packets_wait_while_the_user_half_holds_the_lock_of_the_poll(realtek: str) -> None:
    text = part(realtek, "liar")
    assert "its packets come when it is given back" in text
    found = re.search(r"round-trip min/avg/max = [\d.]+/[\d.]+/([\d.]+) ms", text)
    assert found
    assert float(found[1]) > 300
    assert "no packet comes while it is held" in text
    assert "packets come after its death" in text


def test_only_a_lock_that_the_plan_names_can_be_taken_and_only_what_is_held_given_back(
    realtek: str,
) -> None:
    text = part(realtek, "liar")
    for what, answer in (
        ("unlock before lock", "Operation not permitted"),
        ("a spinlock that the plan does not name", "Protocol wrong type for socket"),
        ("beside it", "Protocol wrong type for socket"),
        ("as a mutex", "Protocol wrong type for socket"),
        ("an address", "Bad file descriptor"),
        ("nothing", "Invalid argument"),
        ("lock", "done"),
        ("lock again", "Resource deadlock avoided"),
        ("unlock", "done"),
        ("unlock again", "Operation not permitted"),
    ):
        assert f"\n{what}: {answer}\n" in text


def test_an_upcall_that_ends_with_the_lock_has_given_it_back(realtek: str) -> None:
    assert "upcall 1 takes it: done\nupcall 2 takes it: done" in part(realtek, "liar")


def test_the_card_lives_through_lies_about_locks(realtek: str) -> None:
    assert "messages, " in part(realtek, "dies")
