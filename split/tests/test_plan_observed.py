"""A profile as a witness against the tables and the graph."""

from __future__ import annotations

from dataclasses import replace

from by_hand import Made, key
from ring3_split.plan import observed, planner
from ring3_split.plan.check import check
from ring3_split.plan.subject import Subject
from ring3_split.profile.record import VERSION, Pair, Profile
from test_plan_cut import plan


def profile(*pairs: Pair, missing: tuple[Pair, ...] = ()) -> Profile:
    return Profile(VERSION, "6.12", "made", "e1000", "usual", 9.0, False, 9, 0, pairs, missing)


def all_in_user(subject: Subject, *kernel: str) -> list[tuple[str, str]]:
    """The faults when only some functions are in the kernel."""
    verdict = check(subject, plan(subject, planner.sides(subject, frozenset(map(key, kernel)))))
    return [(fault.rule, fault.function) for fault in verdict.faults]


def test_an_entry_that_was_called_in_atomic_context_may_not_leave_whatever_the_table_says() -> None:
    subject = Made().entry("tick", "process").subject()
    contexts = observed.contexts_of(subject.contexts, profile(Pair("", key("tick"), 9, atomic=2)))
    assert all_in_user(replace(subject, contexts=contexts)) == [("entry", key("tick"))]


def test_an_entry_that_was_called_where_it_may_sleep_stays_as_the_table_says() -> None:
    subject = Made().entry("tick", "process").subject()
    assert (
        observed.contexts_of(subject.contexts, profile(Pair("", key("tick"), 9)))
        == subject.contexts
    )


def test_a_call_that_the_graph_lacks_is_followed() -> None:
    subject = Made().entry("poll", "atomic").function("hidden").subject()
    graph = observed.graph_of(
        subject.graph, profile(missing=(Pair(key("poll"), key("hidden"), 1),))
    )
    assert all_in_user(subject, "poll") == []
    assert all_in_user(replace(subject, graph=graph), "poll") == [("atomic", key("hidden"))]


def test_an_entry_that_the_graph_lacks_has_an_unknown_context() -> None:
    subject = Made().function("hidden").subject()
    graph = observed.graph_of(subject.graph, profile(missing=(Pair("", key("hidden"), 1),)))
    assert [place.field for place in graph.entries[key("hidden")]] == [observed.BY]


def test_a_call_in_atomic_context_that_crosses_is_a_fault() -> None:
    calls = observed.atomic_calls(
        profile(Pair(key("f"), key("g"), 3, atomic=1), Pair("", key("f"), 3, atomic=1))
    )
    subject = replace(Made().call("f", "g").subject(), observed=calls)
    assert all_in_user(subject, "f") == [("seen", key("g"))]
    assert all_in_user(subject, "f", "g") == []
