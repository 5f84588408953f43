"""The file of a plan.

What is written is read, what is edited stays edited, and each function has its reason.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from by_hand import Made, key, random_driver, weights
from ring3_split.errors import Refusal
from ring3_split.model import Kind
from ring3_split.plan import Plan, Side, load, planner, save
from ring3_split.plan.check import check
from ring3_split.plan.file import Recovery, text
from ring3_split.plan.weights import Weights


def driver() -> Made:
    """An interrupt and an ioctl."""
    return Made().root("irq").entry("ioctl", "process").call("irq", "clean").call("ioctl", "speed")


def plan() -> Plan:
    return planner.cut(
        driver().subject(), weights({"irq clean": 9, "ioctl speed": 1}, {"irq": 9}), Fraction("0.5")
    )


def reason(made: Plan, name: str) -> str:
    return made.functions[key(name)].reason


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(plan(), tmp_path / "p.toml")
    assert load(tmp_path / "p.toml") == plan()


def test_what_a_person_says_of_single_functions_is_written_again(tmp_path: Path) -> None:
    made = plan()
    made.limits = {"own.count": (48, 4096)}
    made.undo = {"down": "up"}
    made.requires = {"start": "own->rings"}
    made.ensures = {"open": "own->rings"}
    made.failed = {"clean": "clean_one(own)"}
    made.recovery = {"own": Recovery("reset_task", "object->running", "let_go(object)")}
    made.nullable = ["start(buffer)"]
    made.alone = ["start"]
    next(iter(made.functions.values())).without = "refuse"
    save(made, tmp_path / "plan.toml")
    assert load(tmp_path / "plan.toml") == made


def test_a_file_of_annotations_is_told_from_a_plan(tmp_path: Path) -> None:
    file = tmp_path / "card.annotations.toml"
    file.write_text('version = 1\ndriver = "card"\nplan = "cut"\n[inferred]\n')
    with pytest.raises(
        Refusal,
        match=r"not a plan; it is judged by: ring3 split annotate card --check --out "
        r".*card\.annotations\.toml",
    ):
        load(file)


def test_the_same_plan_is_the_same_file() -> None:
    assert text(plan()) == text(plan())


def test_functions_stand_in_the_order_of_their_ids() -> None:
    lines = [line for line in text(plan()).splitlines() if line.startswith("[functions.")]
    assert lines == sorted(lines)


def test_a_placement_is_one_line_of_the_file() -> None:
    made = plan()
    before = text(made).splitlines()
    made.functions[key("speed")].placement = Side.KERNEL
    changed = [
        line for line, now in zip(before, text(made).splitlines(), strict=True) if line != now
    ]
    assert changed == ['placement = "user"']


def test_an_edit_and_a_comment_survive_and_the_edit_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    save(plan(), file)
    head, table, rest = file.read_text().partition(f'[functions."{key("clean")}"]\n')
    file.write_text(
        head
        + table
        + "# moved by hand\n"
        + rest.replace('placement = "kernel"', 'placement = "user"', 1)
    )
    made = load(file)
    assert made.functions[key("clean")].placement is Side.USER
    assert "# moved by hand" in file.read_text()
    assert [fault.function for fault in check(driver().subject(), made).faults] == [key("clean")]


def test_a_plan_is_never_overwritten(tmp_path: Path) -> None:
    save(plan(), tmp_path / "p.toml")
    with pytest.raises(Refusal, match="is there already"):
        save(plan(), tmp_path / "p.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'placement = "user"',
            'placement = "moon"',
            r"functions\.d/a\.c:ioctl: Invalid enum value 'moon'",
        ),
        ("version = 1", "version = 9", "version 9 of a plan"),
        ("version = 1", "", "not a plan, it has no version"),
        (
            'rule = "critical"',
            'rul = "critical"',
            r"functions\.d/a\.c:clean: Object contains unknown field `rul`",
        ),
        ("lines = 10", "lines = ", "not a TOML file.*line"),
        ('driver = "made"', "", "missing required field `driver`"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    (tmp_path / "p.toml").write_text(text(plan()).replace(old, new, 1))
    with pytest.raises(Refusal, match=words):
        load(tmp_path / "p.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="No such file"):
        load(tmp_path / "p.toml")


def test_a_chain_from_a_root_is_told_with_its_last_call() -> None:
    assert (
        reason(plan(), "clean")
        == "reached from irq (critical root, interrupt): irq -> clean, a.c:1"
    )


def test_a_call_under_a_lock_is_told_with_the_lock() -> None:
    made = (
        Made()
        .root("tick")
        .call("tick", "x")
        .function("ioctl")
        .call("ioctl", "update", "own.lock")
        .call("ioctl", "x", "own.lock")
    )
    found = planner.cut(made.subject(), Weights(), Fraction(0))
    assert reason(found, "ioctl") == "holds own.lock while it calls x of the kernel half, a.c:3"
    assert (
        reason(found, "update")
        == "called in ioctl under own.lock, taken at a.c:2: ioctl -> update, a.c:2"
    )


def test_what_takes_a_spinlock_of_the_kernel_half_is_told_who_else_takes_it() -> None:
    made = Made().root("irq").call("irq", "x", "own.lock").call("stats", "y", "own.lock")
    found = planner.cut(made.subject(), Weights(), Fraction(0))
    assert reason(found, "stats") == "takes own.lock at a.c:2, as irq of the kernel half does"


def test_what_stays_to_save_crossings_is_told_how_many() -> None:
    made = Made().root("irq").entry("watchdog", "process").call("watchdog", "irq")
    found = planner.cut(made.subject(), weights({"watchdog irq": 3}, {"watchdog": 5}), Fraction(2))
    words = (
        "what would cross costs more than its 10 lines: calls of the profile: 5 from the "
        "kernel, 3 with irq"
    )
    assert (found.functions[key("watchdog")].rule, reason(found, "watchdog")) == ("cost", words)


def test_a_function_that_leaves_is_told_what_crosses_for_it() -> None:
    made = Made().root("irq").entry("ioctl", "process").call("ioctl", "irq")
    found = planner.cut(made.subject(), weights({"ioctl irq": 2}, {"ioctl": 3}), Fraction(1))
    assert found.functions[key("ioctl")].called_by == ["ops.ioctl"]
    assert (
        reason(found, "ioctl")
        == "no rule keeps it in the kernel; 5 calls of the profile cross for its 10 lines"
    )


def test_an_inline_of_both_halves_is_in_both() -> None:
    made = Made().root("irq").call("irq", "inline").call("tool", "inline")
    found = planner.cut(made.subject(), Weights(), Fraction(1))
    assert (found.functions[key("inline")].placement, found.totals.kernel_functions) == (
        Side.BOTH,
        2,
    )


def test_propagation_keeps_what_a_root_calls_in_process_context_and_the_cut_does_not() -> None:
    made = Made().root("open").entry("open", "process").call("open", "setup")
    counted = weights({"open setup": 1}, {"open": 1})
    assert (
        planner.propagate(made.subject(), counted).functions[key("setup")].placement is Side.KERNEL
    )
    assert (
        planner.cut(made.subject(), counted, Fraction(1)).functions[key("setup")].placement
        is Side.USER
    )


def test_an_upcall_from_the_kernel_half_is_told_with_its_place() -> None:
    made = Made().function("odd", percpu=(1,)).call("odd", "work", "own.m", Kind.MUTEX)
    found = planner.cut(made.subject(), weights({"odd work": 1}), Fraction(1))
    assert found.functions[key("work")].called_by == ["odd, a.c:1"]
    assert (found.totals.upcalled, found.totals.upcalls, found.totals.downcalls) == (1, 1, 0)


@pytest.mark.parametrize("seed", range(100))
def test_every_function_has_a_reason_and_one_that_stays_a_rule(seed: int) -> None:
    subject, counted = random_driver(seed, size=14)
    for made in (planner.propagate(subject, counted), planner.cut(subject, counted, Fraction(3))):
        assert set(made.functions) == {*subject.placed, *subject.copied}
        for placed in made.functions.values():
            assert placed.reason
            assert (placed.rule != "") == (placed.placement is not Side.USER)


STATED = '\n[contexts."ops.ioctl"]\ncontext = "{}"\nwhy = "{}"\n'


def stated(tmp_path: Path, context: str, why: str = "d/core.c: nobody holds a lock") -> Plan:
    file = tmp_path / "stated.toml"
    save(plan(), file)
    file.write_text(file.read_text() + STATED.format(context, why))
    return load(file)


def test_a_context_that_a_person_states_is_written_again(tmp_path: Path) -> None:
    made = stated(tmp_path, "process")
    assert made.contexts["ops.ioctl"].context == "process"
    save(made, tmp_path / "again.toml")
    assert load(tmp_path / "again.toml") == made


def test_a_context_that_is_neither_process_nor_atomic_is_refused_with_its_place(
    tmp_path: Path,
) -> None:
    with pytest.raises(Refusal, match="contexts"):
        stated(tmp_path, "sometimes")
