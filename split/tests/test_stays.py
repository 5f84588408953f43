"""What stays in the kernel besides the critical functions."""

from __future__ import annotations

import re
from dataclasses import replace

from facts import function, module, unit
from ring3_split import context, critical
from ring3_split.driver import Driver
from ring3_split.model import Call, Function, Kind, Region, Stored
from ring3_split.plan import subject
from ring3_split.plan.fixed import fixed
from ring3_split.plan.reasons import Reason
from ring3_split.roots import Root
from ring3_split.show.findings import stays

LOCK = Region(Kind.SPIN_IRQ, "own.lock", 11, (12,), (13,))


def kept(
    *functions: Function, stored: tuple[Stored, ...] = (), roots: tuple[str, ...] = ()
) -> dict[str, Reason]:
    made = subject.of("test", Driver("a", (module(unit(*functions, stored=stored)),)), "field")
    found = {f"d/a.c:{root}": (Root("binding", "t", "data", "there", "because"),) for root in roots}
    planned = replace(made, roots=found, fixed=fixed(made.graph, {"own": "d/a.h"}))
    return {
        key.rpartition(":")[2]: reason
        for key, reason in stays(planned, critical.propagate(made.graph, found).keys()).items()
    }


def test_what_is_called_under_a_spinlock_stays_and_what_it_calls() -> None:
    holder = function("holder", regions=(LOCK,), calls=(Call("inner", 12, (0,)), Call("outer", 15)))
    inner, root = function("inner", calls=(Call("deep", 11),)), function("root", regions=(LOCK,))
    found = kept(root, holder, inner, function("outer"), function("deep"), roots=("root",))
    way = "called in holder under own.lock, taken at a.c:11: holder -> inner"
    assert found["inner"] == Reason("region", f"{way}, a.c:12")
    assert found["deep"] == Reason("region", f"{way} -> deep, a.c:11")
    assert "outer" not in found


def test_a_critical_section_that_nothing_binds_to_the_kernel_may_move_as_a_whole() -> None:
    assert (
        kept(
            function("holder", regions=(LOCK,), calls=(Call("inner", 12, (0,)),)), function("inner")
        )
        == {}
    )


def test_what_is_called_under_a_mutex_may_move() -> None:
    mutex = Region(Kind.MUTEX, "own.mutex", 11, (12,), (13,))
    assert (
        kept(
            function("holder", regions=(mutex,), calls=(Call("inner", 12, (0,)),)),
            function("inner"),
        )
        == {}
    )


def test_an_atomic_entry_stays_and_says_how_it_is_called() -> None:
    found = kept(
        function("mode"), stored=(Stored("mode", 1, field="net_device_ops.ndo_set_rx_mode"),)
    )
    assert found["mode"].rule == "entry"
    assert "ndo_set_rx_mode" in found["mode"].words


def test_an_entry_that_may_sleep_may_move() -> None:
    assert (
        kept(function("open"), stored=(Stored("open", 1, field="net_device_ops.ndo_open"),)) == {}
    )


def test_an_entry_of_unknown_context_stays() -> None:
    found = kept(function("what"), stored=(Stored("what", 1, field="nobody.knows"),))
    assert found["what"].rule == "unknown"


def test_who_shares_a_spinlock_with_critical_code_stays() -> None:
    found = kept(
        function("root", regions=(LOCK,)), function("other", regions=(LOCK,)), roots=("root",)
    )
    assert found["other"] == Reason(
        "lock", "takes own.lock at a.c:11, as root of the kernel half does"
    )


def test_who_has_a_spinlock_alone_may_move() -> None:
    assert kept(function("root"), function("other", regions=(LOCK,)), roots=("root",)) == {}


def test_a_critical_function_is_not_named_twice() -> None:
    stored = (Stored("root", 1, api="request_irq", argument=1),)
    assert (
        kept(
            function("root", calls=(Call("f", 11),)), function("f"), stored=stored, roots=("root",)
        )
        == {}
    )


def test_what_loads_the_module_stays_and_what_it_calls_may_move() -> None:
    start = function("start", static=True, calls=(Call("f", 11),))
    loaded = Driver("a", (module(unit(start, function("f"), aliases={"init_module": "start"})),))
    assert set(stays(subject.of("test", loaded, "field"), set())) == {"d/a.c:start"}


def test_a_member_counts_before_its_struct() -> None:
    rows = context.table()
    assert (rows["gpio_chip.*"].context, rows["gpio_chip.request"].context) == ("atomic", "process")
    assert context.row("gpio_chip.get") == rows["gpio_chip.*"]


def test_a_member_that_no_row_names_is_not_known() -> None:
    assert context.row("net_device_ops.ndo_of_tomorrow") is None


def test_each_row_names_a_field_or_an_argument_and_a_file_of_the_kernel() -> None:
    wrong = [
        key
        for key, row in context.table().items()
        if not re.search(r"\.|:\d+$", key) or "/" not in row.source
    ]
    assert wrong == []
