"""The tables of contexts against a kernel made by hand.

Which functions may run in atomic context, and what its calls say.
"""

from __future__ import annotations

import json
import re

import pytest

import conforms
from facts import function, linked, module
from ring3_split import cli, context, source_options
from ring3_split.context import cores, evidence, reach
from ring3_split.graph import Graph
from ring3_split.model import Call, Failure, Function, Given, Indirect, Kind, Region, Stored, Unit

SPIN = Region(Kind.SPIN, "host.lock", 11, (12,), (13,))
MUTEX = Region(Kind.MUTEX, "host.mutex", 11, (12,), (13,))
FIELD = "scsi_host_template.slave_alloc"
ASSERT = function("might_resched", "include/linux/kernel.h", inline=True)


def core(*functions: Function, **more: object) -> Graph:
    return linked(module(Unit(4, "d/a.c", functions, **more)))  # type: ignore[arg-type]


def grades(graph: Graph) -> dict[str, str]:
    """The calls through FIELD: caller -> grade."""
    return {
        site.function.rpartition(":")[2]: site.grade
        for site in evidence.sites(graph).get(FIELD, ())
    }


def calling(name: str = "f", *regions: Region, calls: tuple[Call, ...] = ()) -> Function:
    held = tuple(range(len(regions)))
    return function(
        name, regions=regions, calls=calls, indirect=(Indirect(7, 12, field=FIELD, held=held),)
    )


def test_a_call_under_a_spinlock_is_atomic_and_the_lock_is_named() -> None:
    graph = core(calling("f", SPIN))
    (site,) = evidence.sites(graph)[FIELD]
    assert (site.grade, site.path) == (
        "atomic",
        ("f, d/a.c:12, under spin host.lock, taken at line 11",),
    )


def test_the_comparison_as_json_is_as_its_schema_says(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    failures = (Failure("d/b.c", "d/b.c:1: no such file"),)
    monkeypatch.setattr(source_options, "kernel", lambda _: None)
    monkeypatch.setattr(cores, "read", lambda *_: (core(calling("f", SPIN)), failures))
    cli.main(["contexts", "--json"])
    out = capfdbinary.readouterr().out
    assert conforms.printed(out, "split-contexts") is None
    assert [one["source"] for one in json.loads(out)["failures"]] == ["d/b.c"]
    (seen,) = (one for one in json.loads(out)["fields"] if one["field"] == FIELD)
    assert [site["grade"] for site in seen["sites"]] == ["atomic"]


def test_a_call_under_a_mutex_is_in_process_context() -> None:
    assert grades(core(calling("f", MUTEX))) == {"f": "process"}


def test_a_call_under_a_spinlock_inside_a_mutex_is_atomic() -> None:
    assert grades(core(calling("f", MUTEX, SPIN))) == {"f": "atomic"}


def test_a_spinlock_of_the_callers_caller_counts() -> None:
    top = function("top", regions=(SPIN,), calls=(Call("middle", 12, (0,)),))
    graph = core(top, function("middle", calls=(Call("f", 15),)), calling())
    (site,) = evidence.sites(graph)[FIELD]
    assert site.grade == "atomic"
    assert [hop.split(",")[0] for hop in site.path] == ["top", "middle", "f"]


def test_a_timer_of_the_kernel_calls_in_atomic_context() -> None:
    stored = (Stored("tick", 1, field="timer_list.function"),)
    structs = {"timer_list": "include/linux/timer_types.h"}
    assert grades(
        core(function("tick", calls=(Call("f", 11),)), calling(), stored=stored, structs=structs)
    ) == {"f": "atomic"}


@pytest.mark.parametrize(
    "middle",
    [
        function("middle", regions=(MUTEX,), calls=(Call("f", 12, (0,)),)),
        function("middle", calls=(Call("might_resched", 11), Call("f", 12))),
        function("middle", given=(Given(Kind.SPIN, "host.lock", 11),), calls=(Call("f", 12),)),
    ],
    ids=["takes a mutex", "says might_sleep", "gives back the lock"],
)
def test_what_cannot_be_atomic_ends_a_chain(middle: Function) -> None:
    top = function("top", regions=(SPIN,), calls=(Call("middle", 12, (0,)),))
    assert "atomic" not in grades(core(ASSERT, top, middle, calling())).values()


def test_a_call_in_a_function_that_sleeps_is_in_process_context() -> None:
    assert grades(core(calling("f", calls=(Call("wait_for_completion", 11),)))) == {"f": "process"}


def test_an_exported_function_has_callers_that_nobody_sees() -> None:
    caller = function("top", calls=(Call("f", 11), Call("msleep", 12)))
    assert grades(core(caller, calling())) == {"f": "process"}
    assert grades(core(caller, calling(), exports=("f",))) == {"f": "open"}


def test_a_row_that_the_kernel_contradicts_is_found() -> None:
    (found,) = (one for one in evidence.findings(core(calling("f", SPIN))) if one.field == FIELD)
    assert found.verdict == "contradicted"


def test_a_row_that_no_call_is_seen_of_is_said_to_be_unseen() -> None:
    (found,) = (one for one in evidence.findings(core(function("f"))) if one.field == FIELD)
    assert found.verdict == "unseen"


def test_each_row_that_may_sleep_says_where_or_why() -> None:
    rows = context.table().items()
    assert [
        key
        for key, row in rows
        if row.context == "process" and not row.why and not re.search(r": \w", row.source)
    ] == []


@pytest.mark.parametrize(
    "field",
    [
        "class.dev_release",
        "iscsi_transport.check_protection",
        "iw_handler_def.get_wireless_stats",
        "net_device.do_ioctl",
        "net_device.get_wireless_stats",
        "net_device.set_mac_address",
        "net_device.vlan_rx_add_vid",
        "net_device.vlan_rx_kill_vid",
        "net_device.vlan_rx_register",
        "net_device_ops.ndo_do_ioctl",
        "sas_function_template.phy_release",
        "spi_controller.unprepare_message",
    ],
)
def test_a_member_that_some_kernel_calls_under_a_lock_may_not_sleep_though_its_neighbours_may(
    field: str,
) -> None:
    assert context.table()[field].context == "atomic"


def test_no_wildcard_says_more_than_atomic() -> None:
    assert {row.context for key, row in context.table().items() if key.endswith(".*")} == {"atomic"}


def test_the_ways_to_a_function_are_followed_once() -> None:
    looped = function("a", regions=(SPIN,), calls=(Call("b", 12, (0,)),))
    assert set(reach.atomic(core(looped, function("b", calls=(Call("a", 11),))))) == {
        "d/a.c:a",
        "d/a.c:b",
    }
