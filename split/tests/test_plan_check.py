"""The judge: what it lets pass, what it stops, and the path that it names."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from by_hand import Made, key, names, random_driver
from ring3_split.model import Given, Kind, Region, Stored
from ring3_split.plan import planner
from ring3_split.plan.check import check
from ring3_split.plan.constraints import Pin, constraints, functions
from ring3_split.plan.cut import placed
from ring3_split.plan.file import Plan, Side
from ring3_split.plan.subject import Subject
from ring3_split.plan.verdict import Verdict
from ring3_split.plan.weights import Weights
from test_plan_cut import plan


def judged(made: Made, *user: str) -> Verdict:
    """The verdict when these functions leave the kernel."""
    subject = made.subject()
    kernel = frozenset(
        name for name in (*subject.placed, *subject.copied) if names([name]).isdisjoint(user)
    )
    return check(subject, plan(subject, planner.sides(subject, kernel)))


def rules(verdict: Verdict) -> list[tuple[str, set[str]]]:
    return [(fault.rule, names([fault.function]) or {fault.function}) for fault in verdict.faults]


def test_a_process_entry_may_leave() -> None:
    assert judged(Made().root("irq").entry("ioctl", "process").call("ioctl", "irq"), "ioctl").holds


def test_a_callee_of_an_atomic_entry_may_not_leave_and_the_path_is_named() -> None:
    made = Made().entry("poll", "atomic").call("poll", "clean").call("clean", "refill")
    (fault,) = judged(made, "refill").faults
    assert (fault.rule, fault.function) == ("atomic", key("refill"))
    assert fault.path == (
        "poll, a.c:1: called by ops.poll",
        "-> clean, called at a.c:1",
        "-> refill, called at a.c:2",
    )


def test_a_function_that_is_called_under_a_spinlock_may_not_leave_and_the_lock_is_named() -> None:
    made = (
        Made().entry("ioctl", "process").call("ioctl", "update", "own.lock").call("update", "deep")
    )
    (fault,) = judged(made, "deep").faults
    assert fault.rule == "atomic"
    assert fault.path[1:] == (
        "-> update, called at a.c:1, under spin own.lock taken at line 1",
        "-> deep, called at a.c:2",
    )


def test_a_function_that_is_called_under_a_mutex_may_leave() -> None:
    assert judged(
        Made().entry("ioctl", "process").call("ioctl", "update", "own.m", Kind.MUTEX), "update"
    ).holds


def test_a_mutex_of_both_halves_is_noted() -> None:
    made = Made().call("a", "x", "own.m", Kind.MUTEX).call("b", "x", "own.m", Kind.MUTEX)
    assert judged(made, "a").notes[-1].startswith("own.m: a mutex that both halves take")


def test_mutexes_in_two_members_of_one_type_are_two() -> None:
    made = (
        Made()
        .call("a", "x", "cmd.m", Kind.MUTEX, "own.scan")
        .call("b", "x", "cmd.m", Kind.MUTEX, "own.reset")
    )
    assert not [note for note in judged(made, "a").notes if "mutex" in note]


def test_a_mutex_of_both_halves_is_named_by_the_member_that_it_lies_in() -> None:
    made = (
        Made()
        .call("a", "x", "cmd.m", Kind.MUTEX, "own.scan")
        .call("b", "x", "cmd.m", Kind.MUTEX, "own.scan")
    )
    assert [note.split(";")[0] for note in judged(made, "a").notes if "mutex" in note] == [
        "own.scan.m: a mutex that both halves take"
    ]


def test_a_mutex_that_one_half_reaches_by_a_pointer_may_be_any_of_its_type() -> None:
    made = (
        Made().call("a", "x", "cmd.m", Kind.MUTEX).call("b", "x", "cmd.m", Kind.MUTEX, "own.scan")
    )
    (note,) = [note for note in judged(made, "a").notes if "mutex" in note]
    assert note.startswith(
        "cmd.m: a mutex that both halves may take: a pointer does not say whether it is own.scan.m"
    )


def test_an_atomic_call_through_an_inline_of_the_kernel_is_seen() -> None:
    made = Made().entry("poll", "atomic").call("poll", "kernel_each").call("kernel_each", "visit")
    assert rules(judged(made, "visit")) == [("atomic", {"visit"})]


def test_a_user_half_that_calls_the_kernel_half_under_a_spinlock_splits_the_section() -> None:
    made = (
        Made()
        .root("irq")
        .entry("ioctl", "process")
        .call("ioctl", "update", "own.lock")
        .call("update", "irq")
    )
    assert rules(judged(made, "ioctl", "update")) == [("section", {"irq"})]


def test_a_spinlock_of_both_halves_is_a_fault() -> None:
    made = Made().call("a", "x", "own.lock").call("b", "y", "own.lock")
    (fault,) = judged(made, "b", "y").faults
    assert (fault.rule, fault.function) == ("lock", "own.lock")
    assert "kernel a, a.c:1; user b, a.c:2" in fault.text


def test_a_root_may_not_leave() -> None:
    assert rules(judged(Made().root("irq"), "irq")) == [("root", {"irq"})]


def test_an_atomic_entry_may_not_leave() -> None:
    assert rules(judged(Made().entry("poll", "atomic"), "poll")) == [("entry", {"poll"})]


def test_an_entry_of_unknown_context_that_leaves_is_an_assumption() -> None:
    verdict = judged(Made().entry("odd"), "odd")
    assert verdict.holds
    assert [(found.rule, found.function) for found in verdict.assumptions] == [
        ("context", key("odd"))
    ]


def test_an_upcall_while_the_module_is_loaded_is_noted() -> None:
    made = Made().entry("start", "process").call("start", "setup")
    made.entries[key("start")] = (Stored("start", 1, field="module.init"),)
    assert (
        judged(made, "setup").notes[-1]
        == "setup: called by start, a.c:1, which loads the module: the user half must be there then"
    )


def test_what_an_entry_of_unknown_context_calls_is_an_assumption() -> None:
    verdict = judged(Made().entry("odd").call("odd", "work"), "work")
    assert [(found.function, found.path[0]) for found in verdict.assumptions] == [
        (key("work"), "odd, a.c:1: called by ops.odd")
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"section": ".init.text"}, "while the module is loaded"),
        ({"section": ".exit.text"}, "while the module is unloaded"),
        ({"percpu": (7,)}, "per-CPU data, a.c:7"),
        ({"assembly": (8,)}, "inline assembly, a.c:8"),
    ],
)
def test_what_no_process_can_run_may_not_leave(facts: dict[str, Any], words: str) -> None:
    (fault,) = judged(Made().function("f", **facts), "f").faults
    assert fault.rule == "fixed"
    assert words in fault.text


@pytest.mark.parametrize("lock", ["?", "net_device.tx_global_lock"])
def test_a_spinlock_that_may_be_the_kernels_keeps_its_taker(lock: str) -> None:
    assert rules(judged(Made().call("f", "g", lock), "f", "g"))[0] == ("fixed", {"f"})


@pytest.mark.parametrize("kind", [Kind.RCU, Kind.IRQ_OFF, Kind.BH_OFF, Kind.PREEMPT_OFF])
def test_a_region_without_a_lock_cannot_be_made_in_a_process(kind: Kind) -> None:
    assert rules(judged(Made().call("f", "g", "own.x", kind), "f", "g"))[0] == ("fixed", {"f"})


def test_a_function_that_a_person_put_in_both_halves_is_assumed_to_have_no_state() -> None:
    subject = Made().entry("poll", "atomic").call("poll", "sum").call("tool", "sum").subject()
    edited = plan(
        subject, {key("poll"): Side.KERNEL, key("sum"): Side.BOTH, key("tool"): Side.USER}
    )
    verdict = check(subject, edited)
    assert verdict.holds
    assert [found.rule for found in verdict.assumptions] == ["copy"]


def test_a_plan_that_lacks_a_function_or_has_a_strange_one_is_not_of_this_source() -> None:
    subject = Made().call("a", "b").subject()
    edited = plan(subject, planner.sides(subject, frozenset()))
    edited.functions[key("c")] = edited.functions.pop(key("a"))
    assert [(fault.rule, names([fault.function])) for fault in check(subject, edited).faults] == [
        ("source", {"a"}),
        ("source", {"c"}),
    ]


def test_a_plan_of_another_kernel_is_not_judged() -> None:
    subject = Made().call("a", "b").subject()
    edited = plan(subject, planner.sides(subject, frozenset()))
    edited.kernel = "2.6.18"
    assert [fault.rule for fault in check(subject, edited).faults] == ["source"]


def plans(subject: Subject, counted: Weights) -> list[Plan]:
    """What the planner makes of a driver."""
    return [
        planner.propagate(subject, counted),
        *(planner.cut(subject, counted, Fraction(cost)) for cost in (0, 1, 5, 100)),
    ]


@pytest.mark.parametrize("seed", range(150))
def test_every_plan_of_the_planner_passes_the_judge_without_assumptions(seed: int) -> None:
    subject, counted = random_driver(seed, size=14)
    for made in plans(subject, counted):
        verdict = check(subject, made)
        assert (verdict.faults, verdict.assumptions) == ((), ())


@pytest.mark.parametrize("seed", range(150))
def test_a_function_that_must_stay_and_is_moved_never_passes(seed: int) -> None:
    subject, counted = random_driver(seed, size=14)
    forced = functions(constraints(subject, critical=False).closure())
    for made in plans(subject, counted):
        for function in sorted(forced):
            before = made.functions[function].placement
            made.functions[function].placement = Side.USER
            verdict = check(subject, made)
            made.functions[function].placement = before
            assert verdict.faults or verdict.assumptions, function


@pytest.mark.parametrize("seed", range(150))
def test_the_judge_lets_pass_exactly_what_the_rules_close(seed: int) -> None:
    subject, _ = random_driver(seed, size=9)
    closing = constraints(subject, critical=False)
    dice = random.Random(seed)  # noqa: S311
    for _ in range(40):
        kernel = frozenset(name for name in subject.placed if dice.random() < 0.7)
        kernel |= {inline for user in kernel for inline in subject.uses[user]}
        closed = (
            functions(
                closing.closure(closing.pins | {placed(name): Pin("cost", "") for name in kernel})
            )
            <= kernel
        )
        verdict = check(subject, plan(subject, planner.sides(subject, kernel)))
        assert (verdict.holds and not verdict.assumptions) == closed


def test_a_function_that_only_gives_back_its_callers_lock_may_not_leave() -> None:
    made = Made().entry("stop", "process").function("stop", given=(Given(Kind.RCU, "", 3),))
    (fault,) = (fault for fault in judged(made, "stop").faults if fault.rule == "unpaired")
    assert fault.function == key("stop")
    assert fault.text == "ends an atomic section of its caller: rcu, a.c:3"


def test_a_function_that_returns_with_a_spinlock_may_not_leave() -> None:
    made = Made().function("take", regions=(Region(Kind.SPIN, "own.lock", 4, (), (), kept=True),))
    (fault,) = (fault for fault in judged(made, "take").faults if fault.rule == "unpaired")
    assert fault.text == "returns inside an atomic section: spin own.lock, a.c:4"


def test_what_the_kernel_calls_between_start_and_stop_stays_where_start_returns_with_a_lock() -> (
    None
):
    made = Made().function("start", regions=(Region(Kind.RCU, "", 4, (), (), kept=True),))
    for name in ("start", "show", "stop"):
        made.entry(name, "process")
        made.entries[key(name)] = (Stored(name, 1, field=f"seq_operations.{name}", object="ops"),)
    (fault,) = (
        fault for fault in judged(made, "show", "stop").faults if fault.function == key("show")
    )
    assert fault.rule == "bracket"
    assert fault.path == (
        "start, a.c:4: returns with rcu",
        "-> show, called by seq_operations.show of ops",
    )
