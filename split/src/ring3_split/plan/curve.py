"""The Pareto curve of lines kept in the kernel against crossings.

Every price of a crossing has its best cut; there are few different ones. Between two neighbours
lies another only if, at the price at which the two cost the same, some cut costs less: so the
prices at which the answer changes are found exactly, and no grid can miss one. These are the
corners of the lower convex hull; a placement above the hull is never the best at any price.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from ring3_split.plan.cut import Point, Problem


@dataclass(frozen=True)
class Corner:
    """A point of the curve, and the lowest crossing price, in lines, from which it is the best."""

    point: Point
    cost: Fraction


def curve(problem: Problem) -> list[Corner]:
    """The corners, from fewest lines to fewest crossings. No one is beaten in both by another."""
    first, last = problem.fewest_lines(), problem.fewest_crossings()
    points = [first, *_between(problem, first, last)]
    corners = [Corner(first, Fraction(0))]
    for before, point in pairwise(points):
        corners.append(Corner(point, _price(before, point)))
    return corners


def _between(problem: Problem, left: Point, right: Point) -> list[Point]:
    """The corners after `left` up to and with `right`."""
    if left.crossings <= right.crossings or left.lines >= right.lines:
        return []
    price = _price(left, right)
    middle = problem.cut(price, left, right)
    if _value(middle, price) >= _value(left, price):
        return [right]
    return _between(problem, left, middle) + _between(problem, middle, right)


def _price(left: Point, right: Point) -> Fraction:
    """Lines per crossing at which both cost the same."""
    return Fraction(right.lines - left.lines, left.crossings - right.crossings)


def _value(point: Point, price: Fraction) -> Fraction:
    return point.lines + price * point.crossings
