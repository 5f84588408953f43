"""Spinlocks that a process may take, too.

Which can be, and what a cut and its judge make of them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from by_hand import Made, key, names
from ring3_split.context import Entry
from ring3_split.model import Data, Layout
from ring3_split.plan import locks, planner
from ring3_split.plan.check import check
from ring3_split.plan.cut import problem
from ring3_split.plan.subject import Subject
from ring3_split.plan.weights import Weights, places

LOCK = "own.a"


def shared(by: str = "request_irq:1") -> Subject:
    """An interrupt handler and `open` that take one lock; the handler calls nothing under it."""
    made = (
        Made()
        .entry("handler")
        .entry("open", "process")
        .call("handler", "ack", LOCK)
        .call("open", "setup", LOCK)
    )
    made.contexts[key("handler")] = (Entry("atomic", False, by),)
    return made.subject()


def user(subject: Subject) -> set[str]:
    kernel = problem(subject, Weights(), critical=False).cut(Fraction(1)).kernel
    return names(set(subject.placed) - kernel)


def test_a_lock_whose_interrupt_can_be_disabled_can_be_a_combolock() -> None:
    facts = shared().locks[LOCK]
    assert (facts.obstacle, facts.hold_off) == ("", {"request_irq:1": "disable_irq"})


def test_a_lock_of_an_entry_that_cannot_be_held_off_stays_a_spinlock() -> None:
    assert "cannot be held off" in shared("snd_pcm_ops.trigger").locks[LOCK].obstacle


def test_a_lock_that_is_taken_under_another_stays_a_spinlock() -> None:
    made = (
        Made().entry("open", "process").call("open", "inner", "own.b").call("inner", "leaf", LOCK)
    )
    assert "under own.b" in made.subject().locks[LOCK].obstacle


def test_a_lock_in_a_struct_of_the_kernels_stays_a_spinlock() -> None:
    graph = shared().graph
    layout = Layout(name="own", file="include/linux/own.h", line=1, size=8, members=())
    graph.driver = replace(
        graph.driver, data=(Data(version=1, source="d/a.c", layouts={"own": layout}),)
    )
    assert "struct own is the kernel's" in locks.facts(graph, {}, {})[LOCK].obstacle


def test_a_combolock_lets_its_takers_go_that_may_sleep() -> None:
    subject = shared()
    assert user(subject) == set()
    assert user(replace(subject, combolocks=frozenset({LOCK}))) == {"open", "setup"}


def test_the_judge_says_what_must_not_run_while_the_user_half_holds_a_combolock() -> None:
    subject = replace(shared(), combolocks=frozenset({LOCK}))
    verdict = check(subject, planner.cut(subject, places(subject), Fraction(0)))
    assert verdict.holds
    assert [
        (one.rule, "request_irq:1 (disable_irq)" in one.text) for one in verdict.assumptions
    ] == [("combolock", True)]


def test_the_judge_refuses_a_combolock_that_can_be_none() -> None:
    subject = replace(shared("snd_pcm_ops.trigger"), combolocks=frozenset({LOCK}))
    verdict = check(subject, planner.cut(subject, places(subject), Fraction(0)))
    assert [one.rule for one in verdict.faults] == ["combolock"]
