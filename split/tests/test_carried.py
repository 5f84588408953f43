"""Sections that one function begins and another ends, across units, and objects with both."""

from __future__ import annotations

import pytest

from facts import function, linked, module, unit
from ring3_split import context
from ring3_split.graph import Graph
from ring3_split.model import Call, Function, Given, Indirect, Kind, Region, Stored, Unit
from ring3_split.plan.fixed import fixed

TAKER = function(
    "take", "d/b.c", regions=(Region(Kind.SPIN_BH, "own.lock", 11, (12,), (), kept=True),)
)
GIVER = function("give", "d/b.c", given=(Given(Kind.SPIN_BH, "own.lock", 12),))
OWN = {"own": "d/own.h"}


def graph(*functions: Function) -> Graph:
    return linked(module(unit(*functions), unit(TAKER, GIVER, source="d/b.c")))


def region(made: Graph, name: str) -> tuple[Region, ...]:
    return made.functions[f"d/a.c:{name}"].regions


def held(made: Graph, caller: str, callee: str) -> list[Kind]:
    return [
        region.kind
        for edge in made.calls[f"d/a.c:{caller}"][f"d/a.c:{callee}"]
        for region in edge.held
    ]


def test_what_is_called_between_a_taker_and_a_giver_of_another_unit_is_under_the_lock() -> None:
    user = function(
        "user",
        calls=(
            Call("before", 10),
            Call("take", 11),
            Call("work", 12),
            Call("give", 13),
            Call("after", 14),
        ),
    )
    made = graph(user, function("before"), function("work"), function("after"))
    assert region(made, "user") == (Region(Kind.SPIN_BH, "?", 11, (12, 13), (13,)),)
    assert (
        held(made, "user", "before"),
        held(made, "user", "work"),
        held(made, "user", "after"),
    ) == ([], [Kind.SPIN_BH], [])


def test_a_call_through_a_pointer_between_them_is_under_the_lock() -> None:
    user = function(
        "user",
        calls=(Call("take", 11), Call("give", 13)),
        indirect=(Indirect(1, 12, field="ops.run"),),
    )
    assert graph(user).functions["d/a.c:user"].indirect[0].held == (0,)


def test_who_calls_a_taker_and_no_giver_returns_with_the_lock_too() -> None:
    outer = function("outer", calls=(Call("inner", 11), Call("work", 12)))
    made = graph(function("inner", calls=(Call("take", 11),)), outer, function("work"))
    assert region(made, "inner")[0].kept
    assert region(made, "outer")[0].kept
    assert held(made, "outer", "work") == [Kind.SPIN_BH]


def test_a_taker_that_is_called_through_a_pointer_takes_for_its_caller() -> None:
    ops = (
        Stored("take", 1, field="own.lock_it", object="ops"),
        Stored("give", 1, field="own.unlock_it", object="ops"),
    )
    user = function(
        "user",
        calls=(Call("work", 12),),
        indirect=(Indirect(7, 11, field="own.lock_it"), Indirect(7, 13, field="own.unlock_it")),
    )
    made = linked(
        module(unit(user, TAKER, GIVER, function("work"), stored=ops, structs={"own": "d/own.h"}))
    )
    assert held(made, "user", "work") == [Kind.SPIN_BH]


def test_a_driver_whose_functions_pair_their_locks_is_left_alone() -> None:
    paired = function(
        "paired",
        regions=(Region(Kind.SPIN, "own.lock", 11, (12,), (12,)),),
        calls=(Call("work", 12, (0,)),),
    )
    made = linked(module(unit(paired, function("work"))))
    assert region(made, "paired") == paired.regions


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            function("f", given=(Given(Kind.RCU, "", 12),)),
            "ends a section of its caller: ends a reader's section of RCU, a.c:12",
        ),
        (
            function("f", given=(Given(Kind.IRQ_OFF, "", 12),)),
            "ends a section of its caller: turns interrupts on, a.c:12",
        ),
        (
            function("f", given=(Given(Kind.SPIN, "own.lock", 12),)),
            "ends a section of its caller: gives back own.lock, a.c:12",
        ),
        (
            function("f", regions=(Region(Kind.SPIN, "own.lock", 11, (), (), kept=True),)),
            "returns with own.lock held, a.c:11",
        ),
    ],
)
def test_a_function_that_does_not_pair_its_locks_is_fixed(one: Function, words: str) -> None:
    assert fixed(linked(module(unit(one))), OWN) == {"d/a.c:f": words}


def test_a_function_that_returns_with_a_mutex_may_move() -> None:
    mutex = Region(Kind.MUTEX, "own.mutex", 11, (), (), kept=True)
    assert (
        fixed(
            linked(
                module(unit(function("f", regions=(mutex,), given=(Given(Kind.RTNL, "", 12),))))
            ),
            OWN,
        )
        == {}
    )


def sequence(start: Function, *others: Function, object_: str = "ops") -> Unit:
    stored = tuple(
        Stored(one.name, 1, field=f"seq_operations.{one.name}", object=object_)
        for one in (start, *others)
    )
    return unit(
        start, *others, stored=stored, structs={"seq_operations": "include/linux/seq_file.h"}
    )


def test_show_is_atomic_where_start_returns_with_a_lock() -> None:
    start = function("start", regions=(Region(Kind.RCU, "", 11, (), (), kept=True),))
    made = linked(
        module(
            sequence(start, function("show"), function("stop", given=(Given(Kind.RCU, "", 11),)))
        )
    )
    by = {name: [entry.context for entry in entries] for name, entries in context.of(made).items()}
    assert "atomic" in by["d/a.c:show"]
    assert "atomic" in by["d/a.c:stop"]
    assert "atomic" not in by["d/a.c:start"]


def test_show_may_sleep_where_start_takes_nothing() -> None:
    made = linked(module(sequence(function("start"), function("show"))))
    assert {entry.context for entries in context.of(made).values() for entry in entries} == {
        "process"
    }


def test_show_is_atomic_where_start_is_a_function_of_the_kernel_that_nobody_knows() -> None:
    stored = (
        Stored("show", 1, field="seq_operations.show", object="ops"),
        Stored("dev_seq_start", 1, field="seq_operations.start", object="ops"),
    )
    made = linked(
        module(
            unit(
                function("show"),
                stored=stored,
                structs={"seq_operations": "include/linux/seq_file.h"},
            )
        )
    )
    assert "atomic" in {entry.context for entry in context.of(made)["d/a.c:show"]}


def test_a_wildcard_that_says_more_than_atomic_is_refused() -> None:
    assert context.parse(b'"ops.*" = { context = "atomic", source = "kernel/a.c" }', "a.toml")
    with pytest.raises(ValueError, match=r"a\.toml: ops\.\* is process"):
        context.parse(b'"ops.*" = { context = "process", source = "kernel/a.c" }', "a.toml")
