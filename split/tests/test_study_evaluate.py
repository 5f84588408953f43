"""One driver under every rule, from facts small enough to follow by hand."""

from __future__ import annotations

import msgspec

from ring3_split import workers
from ring3_split.driver import Driver
from ring3_split.model import VERSION, Call, Function, Indirect, Module, ModuleFacts, Stored, Unit
from ring3_split.study import detail
from ring3_split.study.evaluate import Evaluated, Work, evaluate, failed
from ring3_split.study.rules import BASE, Rule, bit

XMIT, OP, TICK = (
    11,
    22,
    33,
)  # kCFI hashes: of ndo_start_xmit, of an operation of the driver's own, of a timer
NIC = "drivers/net/nic.c"
LIB = "drivers/net/lib.c"


def function(file: str, name: str, line: int, lines: int, **facts: object) -> Function:
    return Function(name, file, line, line + lines - 1, **facts)  # type: ignore[arg-type]


def module(name: str, *units: Unit) -> ModuleFacts:
    return ModuleFacts(Module(name, "drivers/net", tuple(unit.source for unit in units)), units)


# xmit calls send, and an operation through a pointer from ops.fast; `fast` is stored there, `slow`
# of the same type elsewhere. `tick` is a timer and calls `watch`. `send` calls lib_put of the other
# module.
DRIVER = module(
    "nic",
    Unit(
        VERSION,
        NIC,
        (
            function(
                NIC,
                "xmit",
                10,
                20,
                static=True,
                signature=XMIT,
                calls=(Call("send", 12),),
                indirect=(Indirect(OP, 15, "ops.fast"),),
            ),
            function(
                NIC,
                "send",
                40,
                10,
                static=True,
                calls=(Call("lib_put", 45), Call("kmalloc", 46), Call("readl", 47)),
            ),
            function(NIC, "fast", 60, 4, static=True, signature=OP),
            function(NIC, "slow", 70, 6, static=True, signature=OP),
            function(NIC, "tick", 80, 8, static=True, signature=TICK, calls=(Call("watch", 82),)),
            function(NIC, "watch", 100, 2, static=True),
            function(NIC, "probe", 200, 50, static=True),
            Function("readl", "include/asm/io.h", 5, 9, inline=True),
        ),
        stored=(
            Stored("xmit", 300, field="net_device_ops.ndo_start_xmit", object="nic_ops"),
            Stored("fast", 301, field="ops.fast", object="ops"),
            Stored("slow", 302, field="ops.slow", object="ops"),
            Stored("tick", 303, field="timer_list.function"),
        ),
        structs={
            "ops": NIC,
            "net_device_ops": "include/linux/netdevice.h",
            "timer_list": "include/linux/timer.h",
        },
    ),
)
LIBRARY = module(
    "lib",
    Unit(
        VERSION,
        LIB,
        (function(LIB, "lib_put", 5, 7), function(LIB, "lib_setup", 30, 3)),
        exports=("lib_put", "lib_setup"),
    ),
)
SIGNATURES = {"net_device_ops.ndo_start_xmit": XMIT, "timer_list.function": TICK}


def driver(*modules: ModuleFacts) -> Driver:
    return Driver(modules[0].module.name, modules, "net", signatures=SIGNATURES)


FOUND = evaluate(Work(driver(DRIVER), driver(DRIVER, LIBRARY)))


def critical(found: Evaluated, rule: Rule, *, together: bool = False) -> set[str]:
    marks = found.together if together else found.alone
    assert marks is not None
    return {name.rpartition(":")[2] for name, (_, bits) in marks.items() if bits & bit(rule)}


def test_inlines_of_kernel_headers_are_not_counted() -> None:
    assert len(FOUND.alone) == 7
    assert sum(lines for lines, _ in FOUND.alone.values()) == 100


def test_the_papers_rule_follows_pointers_by_type() -> None:
    assert critical(FOUND, BASE) == {"xmit", "send", "fast", "slow"}


def test_the_field_tells_functions_of_one_type_apart() -> None:
    assert critical(FOUND, Rule("field", "signature", "data")) == {"xmit", "send", "fast"}


def test_direct_calls_leave_out_all_pointers() -> None:
    assert critical(FOUND, Rule("direct", "signature", "data")) == {"xmit", "send"}


def test_timers_make_roots_where_they_are_asked_for() -> None:
    assert critical(FOUND, Rule("direct", "signature", "timers")) == {
        "xmit",
        "send",
        "tick",
        "watch",
    }
    assert critical(FOUND, Rule("direct", "binding", "timers")) == {"xmit", "send", "tick", "watch"}


def test_with_its_library_a_driver_has_the_librarys_functions() -> None:
    assert FOUND.together is not None
    assert len(FOUND.together) == 9
    assert "lib_put" in critical(FOUND, BASE, together=True)
    assert "lib_setup" not in critical(FOUND, BASE, together=True)


def test_an_opened_driver_shows_its_roots_calls_and_what_is_critical_of_its_libraries() -> None:
    opened = detail.unpack(FOUND.detail)
    names = {listed.name: listed for listed in opened.functions}
    assert set(names) == {
        "xmit",
        "send",
        "fast",
        "slow",
        "tick",
        "watch",
        "probe",
        "lib_put",
        "readl",
    }
    assert (names["xmit"].lines, names["readl"].lines) == (20, 0)
    assert opened.modules[names["lib_put"].module] == "lib"
    order = [listed.name for listed in opened.functions]
    calls = {
        (order[call.caller], order[call.callee]): (call.kinds, call.line) for call in opened.calls
    }
    assert calls["xmit", "send"] == (detail.DIRECT, 12)
    assert calls["xmit", "fast"] == (detail.SIGNATURE | detail.FIELD, 15)
    assert calls["xmit", "slow"] == (detail.SIGNATURE, 15)
    assert ("xmit", "signature") in {(order[root.function], root.finder) for root in opened.roots}


def test_a_function_reached_by_a_rule_under_which_its_caller_is_not_critical_is_in_no_chain() -> (
    None
):
    # `slow` is critical by type only, and calls `probe` through a field that a cast hides from the
    # type.
    hidden = function(
        NIC, "slow", 70, 6, static=True, signature=OP, indirect=(Indirect(99, 71, "ops.odd"),)
    )
    unit = DRIVER.units[0]
    functions = tuple(hidden if one.name == "slow" else one for one in unit.functions)
    stored = (*unit.stored, Stored("probe", 304, field="ops.odd"))
    changed = module("nic", msgspec.structs.replace(unit, functions=functions, stored=stored))
    opened = detail.unpack(evaluate(Work(driver(changed), None)).detail)
    called = {opened.functions[call.callee].name for call in opened.calls}
    assert "probe" not in called


def test_a_driver_that_makes_the_analysis_fail_says_so() -> None:
    broken = driver(ModuleFacts(DRIVER.module, (None,)))  # type: ignore[arg-type]
    ((item, result),) = workers.run(evaluate, [Work(broken, None)], 2, start="fork")
    assert item.alone.name == "nic"
    assert isinstance(result, Exception)
    assert failed(result).error.startswith("the analysis failed: ")
