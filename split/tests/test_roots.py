"""Root functions, by the type of a field and by where their address goes."""

from __future__ import annotations

import pytest

from ring3_split import context, roots
from ring3_split.driver import Driver
from ring3_split.errors import Refusal
from ring3_split.graph import link
from ring3_split.model import VERSION, Function, Module, ModuleFacts, Stored, Unit

XMIT = 3_000_000_000  # above 2^31: clang writes it as negative where it defines a function


def found(*stored: Stored, rule: str | None = None, signature: int = XMIT - 2**32) -> set[str]:
    function = Function("f", "drivers/net/a.c", 1, 2, static=True, signature=signature)
    unit = Unit(VERSION, "drivers/net/a.c", (function,), stored)
    facts = ModuleFacts(Module("a", "drivers/net", (unit.source,)), (unit,))
    driver = Driver("a", (facts,), "net", signatures={"net_device_ops.ndo_start_xmit": XMIT})
    some = roots.of(link(driver), driver, rule).get("drivers/net/a.c:f", ())
    return {f"{root.rule} {root.template}" for root in some}


def test_a_function_of_a_templates_type_is_a_root_if_its_address_is_taken() -> None:
    assert found(Stored("f", 1, object="table")) == {"signature net/transmit"}
    assert found() == set()


def test_a_function_of_another_type_is_no_root() -> None:
    assert found(Stored("f", 1, object="table"), signature=4) == set()


def test_a_function_is_bound_by_the_field_that_it_is_stored_to() -> None:
    assert found(Stored("f", 1, field="net_device_ops.ndo_start_xmit"), signature=4) == {
        "binding net/transmit"
    }


def test_a_function_is_bound_by_the_argument_that_it_is_passed_as() -> None:
    assert found(Stored("f", 1, api="request_irq", argument=1), signature=4) == {
        "binding common/interrupt"
    }
    assert found(Stored("f", 1, api="request_irq", argument=4), signature=4) == set()


def test_timers_are_roots_only_where_the_rule_says_so() -> None:
    place = Stored("f", 1, field="timer_list.function")
    assert found(place, signature=4, rule="binding") == set()
    assert found(place, signature=4, rule="binding+timers") == {"binding common/timer"}


def test_a_rule_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(Refusal, match=r"signature, binding .*\+tasklets"):
        roots.Rule.parse("magic")
    with pytest.raises(Refusal):
        roots.Rule.parse("timers")


def test_a_driver_belongs_to_the_family_of_its_directory() -> None:
    assert roots.family_of("drivers/net/ethernet/intel/e1000") == "net"
    assert roots.family_of("drivers/network") == "other"
    assert roots.family_of("sound") == "sound"


def test_a_field_that_the_table_does_not_have_is_of_unknown_context() -> None:
    function = Function("f", "d/a.c", 1, 2, static=True)
    unit = Unit(VERSION, "d/a.c", (function,), (Stored("f", 1, field="nobody.knows"),))
    graph = link(Driver("a", (ModuleFacts(Module("a", "d", ("d/a.c",)), (unit,)),)))
    assert context.of(graph) == {}
    assert [place.field for place in context.unknown(graph)["d/a.c:f"]] == ["nobody.knows"]
