"""What a call costs: places of the code, or a profile laid on the graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from by_hand import FILE, Made, key
from facts import linked, module, unit
from ring3_split.errors import Refusal
from ring3_split.model import Call, Function
from ring3_split.plan.cut import problem
from ring3_split.plan.outside import outside
from ring3_split.plan.weights import Weights, measured, places
from ring3_split.profile.record import VERSION, Pair, Profile


def profile(*counts: str, invisible: tuple[str, ...] = (), driver: str = "made") -> Profile:
    """`f g 3`, or `g 3` for the kernel's calls."""
    pairs = [count.split() for count in counts]
    calls = tuple(
        Pair(key(words[0]) if len(words) == 3 else "", key(words[-2]), int(words[-1]))
        for words in pairs
    )
    return Profile(
        VERSION,
        "6.12",
        driver,
        "e1000",
        "usual",
        9.0,
        False,
        9,
        0,
        calls,
        invisible=tuple(map(key, invisible)),
    )


def test_without_a_profile_each_place_that_calls_counts_once_and_each_entry() -> None:
    counted = places(Made().entry("f", "process").call("f", "g").call("f", "g").subject())
    assert counted.calls == {(key("f"), key("g")): 2}
    assert counted.entries == {key("f"): 1}


def test_a_function_that_calls_itself_never_crosses() -> None:
    assert not places(Made().call("f", "f").subject()).calls


def test_counts_of_a_profile_are_laid_on_the_calls() -> None:
    counted = measured(Made().call("f", "g").subject(), profile("f 4", "f g 7"))
    assert (counted.calls, counted.entries) == ({(key("f"), key("g")): 7}, {key("f"): 4})


def test_a_count_over_a_function_that_the_tracer_cannot_see_lies_on_the_way() -> None:
    counted = measured(
        Made().call("f", "folded").call("folded", "g").subject(),
        profile("f g 7", invisible=("folded",)),
    )
    assert counted.calls == {(key("f"), key("folded")): 7, (key("folded"), key("g")): 7}


def test_a_count_does_not_lie_on_a_way_over_a_function_that_was_seen() -> None:
    counted = measured(
        Made().call("f", "seen").call("seen", "g").subject(), profile("f seen 1", "f g 7")
    )
    assert counted.missing == ((key("f"), key("g")),)
    assert counted.calls[key("f"), key("g")] == 7


def test_a_call_out_of_an_inline_is_shared_by_those_who_use_it() -> None:
    made = Made().call("f", "inline").call("h", "inline").call("inline", "g")
    counted = measured(made.subject(), profile("inline g 5"))
    assert counted.calls == {(key("f"), key("g")): 3, (key("h"), key("g")): 2}


def test_a_call_of_an_inline_costs_nothing() -> None:
    assert not measured(Made().call("f", "inline").subject(), profile("f inline 5")).calls


def test_a_profile_of_other_code_is_refused() -> None:
    with pytest.raises(Refusal, match="a function that made has not"):
        measured(Made().call("f", "g").subject(), profile("f strange 5"))


def test_a_profile_of_another_driver_is_refused() -> None:
    with pytest.raises(Refusal, match="is one of e100, and made is to be planned"):
        measured(Made().call("f", "g").subject(), profile("f g 5", driver="e100"))


def test_the_source_of_the_counts_is_said() -> None:
    assert (
        measured(Made().call("f", "g").subject(), profile("f g 5")).source
        == "usual workload, 9 s, kernel 6.12"
    )


def test_a_call_of_the_kernel_and_a_register_access_are_counted_where_they_stand() -> None:
    function = Function(
        "f",
        FILE,
        1,
        9,
        calls=(Call("readl", 2), Call("writel", 3), Call("pci_set_master", 4), Call("strlen", 5)),
    )
    downcalls, registers = outside(linked(module(unit(function))))
    assert (downcalls, registers) == ({f"{FILE}:f": 1}, {f"{FILE}:f": 2})


def test_a_call_of_the_kernel_weighs_in_a_cut_only_if_it_is_asked_for() -> None:
    made = Made().function("f", 10).entry("f", "process").subject()
    counts = Weights(entries=Counter({key("f"): 1}), downcalls=Counter({key("f"): 20}))
    assert problem(made, counts, critical=False).cut(Fraction(1)).kernel == frozenset()
    assert problem(made, replace(counts, whole=True), critical=False).cut(Fraction(1)).kernel == {
        key("f")
    }
