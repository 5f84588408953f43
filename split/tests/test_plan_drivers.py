"""Plans of drivers of the distribution's kernel."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache as remembered
from pathlib import Path

import pytest

from ring3_split.context import Stated
from ring3_split.distribution import open_kernel
from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel
from ring3_split.plan import Side, planner, subject, weights
from ring3_split.plan.check import check
from ring3_split.plan.subject import Known, Subject

pytestmark = pytest.mark.kernel
DRIVERS = ("e1000", "8139too", "pcnet32", "snd-ens1370")
E1000 = "drivers/net/ethernet/intel/e1000/"


@pytest.fixture(scope="module")
def kernel(cache: Path) -> Kernel:
    return open_kernel("6.12", cache)


@pytest.fixture(scope="module")
def read(kernel: Kernel) -> Callable[[str], Subject]:
    return remembered(lambda name: subject.load(kernel, name, "field"))


def test_e1000_keeps_what_a_person_kept_who_read_its_lock_regions(
    read: Callable[[str], Subject],
) -> None:
    """59 functions were what reading gave for 6.12.95.

    87 more do what bonding's monitor asks for under RCU.
    """
    made = planner.propagate(read("e1000"), weights.places(read("e1000")))
    assert (made.totals.functions, made.totals.kernel_functions, made.totals.kernel_percent) == (
        250,
        146,
        62.6,
    )
    assert (made.totals.upcalled, made.totals.downcalled) == (42, 44)
    monitored = [
        p
        for p in made.functions.values()
        if "e1000_get_link" in p.reason or "e1000_ioctl" in p.reason
    ]
    assert len(monitored) >= 87
    assert sum(placed.rule == "critical" for placed in made.functions.values()) == 33


def test_the_reasons_name_the_entry_and_the_place(read: Callable[[str], Subject]) -> None:
    made = planner.propagate(read("e1000"), weights.places(read("e1000")))
    reason = made.functions[f"{E1000}e1000_hw.c:e1000_shift_out_mdi_bits"].reason
    assert reason.startswith(
        "reached from e1000_get_link (called in atomic context by ethtool_ops.get_link): "
    )
    assert (
        "e1000_read_phy_reg -> e1000_write_phy_reg_ex -> e1000_shift_out_mdi_bits, e1000_hw.c:"
        in reason
    )


def test_moving_a_function_of_the_transmit_path_is_a_fault_and_the_path_is_named(
    read: Callable[[str], Subject],
) -> None:
    made = planner.propagate(read("e1000"), weights.places(read("e1000")))
    moved = f"{E1000}e1000_main.c:e1000_tx_map"
    made.functions[moved].placement = Side.USER
    (fault,) = check(read("e1000"), made).faults
    assert (fault.rule, fault.function) == ("atomic", moved)
    assert [line.split(",")[0] for line in fault.path] == ["e1000_xmit_frame", "-> e1000_tx_map"]


@pytest.mark.parametrize("driver", DRIVERS)
def test_each_plan_holds_without_assumptions(driver: str, read: Callable[[str], Subject]) -> None:
    whole = read(driver)
    counted = weights.places(whole)
    for made in (
        planner.propagate(whole, counted),
        planner.cut(whole, counted, Fraction(1)),
        planner.cut(whole, counted, Fraction(9)),
    ):
        verdict = check(whole, made)
        assert (verdict.faults, verdict.assumptions) == ((), ())


@pytest.mark.parametrize("driver", DRIVERS)
def test_no_function_that_propagation_keeps_for_a_rule_can_be_moved(
    driver: str, read: Callable[[str], Subject]
) -> None:
    """All but those that only critical roots keep, which are there for speed.

    In these drivers all roots are atomic.
    """
    whole = read(driver)
    made = planner.cut(whole, weights.places(whole), Fraction(0))
    for placed in made.functions.values():
        if placed.placement is Side.KERNEL and placed.rule != "inline":
            placed.placement = Side.USER
            verdict = check(whole, made)
            assert verdict.faults or verdict.assumptions
            placed.placement = Side.KERNEL


NO_BOND = Stated("process", "no bond is made: only bonding's monitor asks under RCU")


def test_what_a_plan_states_of_the_kernel_goes_before_the_tables_and_is_an_assumption(
    kernel: Kernel,
) -> None:
    stated = {"ethtool_ops.get_link": NO_BOND, "net_device_ops.ndo_eth_ioctl": NO_BOND}
    whole = subject.load(kernel, "e1000", "field", known=Known(stated=stated))
    made = planner.propagate(whole, weights.places(whole))
    assert (made.totals.kernel_functions, made.totals.kernel_percent) == (59, 23.7)
    assert made.contexts == stated
    verdict = check(whole, made)
    assert verdict.holds
    assert {
        finding.function.rpartition(":")[2]
        for finding in verdict.assumptions
        if finding.rule == "stated"
    } == {
        "e1000_get_link",
        "e1000_ioctl",
    }


@pytest.mark.parametrize(
    ("name", "why", "words"),
    [
        (
            "ethtool_ops.get_lnik",
            "a reason",
            r"does not call e1000 by 'ethtool_ops.get_lnik'; near names: ethtool_ops.get_link",
        ),
        ("ethtool_ops.get_link", " ", "ethtool_ops.get_link has no `why`"),
    ],
)
def test_a_statement_that_is_about_nothing_or_without_a_reason_is_refused(
    kernel: Kernel, name: str, why: str, words: str
) -> None:
    with pytest.raises(Refusal, match=words):
        subject.load(kernel, "e1000", "field", known=Known(stated={name: Stated("process", why)}))
