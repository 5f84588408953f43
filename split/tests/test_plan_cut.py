"""The cut: networks worked by hand, and all placements of small drivers tried."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise, product

import pytest

from by_hand import Made, names, random_driver, weights
from ring3_split.plan.check import check
from ring3_split.plan.curve import curve
from ring3_split.plan.cut import Point, Problem, crossings, placed, problem
from ring3_split.plan.file import VERSION, Placed, Plan, Side
from ring3_split.plan.planner import sides
from ring3_split.plan.subject import Subject
from ring3_split.plan.totals import totals
from ring3_split.plan.weights import Weights

COSTS = (Fraction(0), Fraction(1, 3), Fraction(1), Fraction(2), Fraction(7), Fraction(1000))


def chatty() -> tuple[Subject, Weights]:
    """An interrupt handler, and an ioctl that calls `reset` 3 times, which calls `write` 100 times.

    Sizes 10, 50, 20, 5.
    """
    made = (
        Made()
        .root("irq")
        .entry("ioctl", "process")
        .function("ioctl", 50)
        .function("reset", 20)
        .function("write", 5)
    )
    made.call("irq", "write").call("ioctl", "reset").call("reset", "write")
    return made.subject(), weights(
        {"irq write": 900, "ioctl reset": 3, "reset write": 100}, {"irq": 900, "ioctl": 2}
    )


@pytest.mark.parametrize(
    ("cost", "kernel", "crossing"),
    [
        (
            "0.1",
            {"irq", "write"},
            102,
        ),  # reset costs 20 lines and saves 100 - 3 crossings: worth it from 20/97 on
        ("0.3", {"irq", "write", "reset"}, 5),
        ("9", {"irq", "write", "reset"}, 5),
        (
            "11",
            {"irq", "write", "reset", "ioctl"},
            0,
        ),  # ioctl costs 50 lines and saves 3 calls and 2 entries: from 10 on
    ],
)
def test_a_network_worked_by_hand_is_cut_where_it_is_cheapest(
    cost: str, kernel: set[str], crossing: int
) -> None:
    subject, counted = chatty()
    point = problem(subject, counted, critical=False).cut(Fraction(cost))
    assert (names(point.kernel), point.crossings) == (kernel, crossing)


def test_the_curve_has_the_prices_worked_by_hand() -> None:
    subject, counted = chatty()
    corners = curve(problem(subject, counted, critical=False))
    found = [(corner.cost, corner.point.lines, corner.point.crossings) for corner in corners]
    assert found == [(0, 15, 102), (Fraction(20, 97), 35, 5), (10, 85, 0)]


def test_of_two_cuts_of_one_price_the_one_with_fewer_lines_is_taken() -> None:
    subject, counted = chatty()
    assert problem(subject, counted, critical=False).cut(Fraction(10)).lines == 35


def test_without_rules_and_price_nothing_stays() -> None:
    subject = Made().call("a", "b").entry("a", "process").subject()
    assert (
        problem(subject, weights({"a b": 5}, {"a": 5}), critical=False).cut(Fraction(0)).kernel
        == frozenset()
    )


def test_an_inline_that_only_the_user_half_uses_costs_the_kernel_nothing() -> None:
    subject = Made().root("irq").function("inline", 99).call("tool", "inline").subject()
    point = problem(subject, Weights(), critical=False).cut(Fraction(1))
    assert names(point.kernel) == {"irq"}
    assert names(
        key for key, side in sides(subject, point.kernel).items() if side is Side.USER
    ) == {"tool", "inline"}


def placements(subject: Subject, network: Problem) -> Iterator[Point]:
    """All placements that the judge lets pass without an assumption."""
    for choice in product((False, True), repeat=len(subject.placed)):
        chosen = {key for key, kept in zip(subject.placed, choice, strict=True) if kept}
        chosen |= {inline for user in tuple(chosen) for inline in subject.uses[user]}
        verdict = check(subject, plan(subject, sides(subject, frozenset(chosen))))
        if verdict.holds and not verdict.assumptions:
            yield network.point(frozenset(map(placed, chosen)))


def plan(subject: Subject, placement: dict[str, Side]) -> Plan:
    """A plan of bare placements."""
    functions = {key: Placed(side, 1) for key, side in placement.items()}
    summed = totals(subject, Weights(), placement)
    return Plan(VERSION, "6.12", "made", "field", "cut", "1", "", summed, functions)


@pytest.mark.parametrize("seed", range(60))
def test_no_placement_that_the_judge_lets_pass_costs_less_than_the_cut(seed: int) -> None:
    subject, counted = random_driver(seed)
    network = problem(subject, counted, critical=False)
    every = list(placements(subject, network))
    for cost in COSTS:
        best = min((point.lines + cost * point.crossings, point.lines) for point in every)
        point = network.cut(cost)
        assert (point.lines + cost * point.crossings, point.lines) == best
        assert crossings(point.kernel, counted) == point.crossings


@pytest.mark.parametrize("seed", range(60))
def test_the_curve_is_the_lower_hull_of_all_placements(seed: int) -> None:
    subject, counted = random_driver(seed)
    network = problem(subject, counted, critical=False)
    every = {(point.crossings, point.lines) for point in placements(subject, network)}
    assert [(c.point.crossings, c.point.lines) for c in curve(network)][::-1] == hull(every)


@pytest.mark.parametrize("seed", range(60))
def test_a_dearer_crossing_never_makes_the_kernel_half_smaller(seed: int) -> None:
    subject, counted = random_driver(seed, size=12)
    network = problem(subject, counted, critical=False)
    kernels = [network.cut(cost).kernel for cost in COSTS]
    assert all(less <= more for less, more in pairwise(kernels))
    for less, cost, more in zip(COSTS, COSTS[1:], COSTS[2:], strict=False):
        assert network.cut(cost, network.cut(less), network.cut(more)) == network.cut(cost)


def hull(points: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """The corners of the lower left hull, left to lowest (Andrew's monotone chain)."""
    lowest = min(points, key=lambda point: (point[1], point[0]))
    corners: list[tuple[int, int]] = []
    for point in sorted(point for point in points if point[0] <= lowest[0]):
        if corners and corners[-1][0] == point[0]:
            continue
        while len(corners) > 1 and turns_right(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def turns_right(first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]) -> bool:
    """Whether the second point is on or above the line between the others."""
    ahead = (second[0] - first[0]) * (third[1] - first[1])
    return ahead - (second[1] - first[1]) * (third[0] - first[0]) <= 0
