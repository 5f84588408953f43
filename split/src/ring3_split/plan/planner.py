"""Makes a plan: a method's placement, and a reason for each function."""

from __future__ import annotations

from fractions import Fraction

from ring3_split.plan import reasons
from ring3_split.plan.cut import Point, Problem, problem
from ring3_split.plan.file import VERSION, Placed, Plan, Side
from ring3_split.plan.subject import Subject
from ring3_split.plan.totals import totals, upcalled
from ring3_split.plan.weights import Weights


def propagate(subject: Subject, weights: Weights) -> Plan:
    """The paper's tool: critical functions and all that must stay for other reasons.

    Nothing is weighed.
    """
    network = problem(subject, weights, critical=True)
    return _plan(subject, network, network.point(network.forced), "")


def cut(subject: Subject, weights: Weights, cost: Fraction) -> Plan:
    """The minimum cut when one crossing costs so many lines."""
    network = problem(subject, weights, critical=False)
    return _plan(subject, network, network.cut(cost), f"{float(cost):g}")


def sides(subject: Subject, kernel: frozenset[str]) -> dict[str, Side]:
    """The side of each function of the driver, sorted by id."""
    found = {key: Side.KERNEL if key in kernel else Side.USER for key in subject.placed}
    used = {
        inline for user, inlines in subject.uses.items() if user not in kernel for inline in inlines
    }
    for inline in subject.copied:
        found[inline] = (
            Side.USER if inline not in kernel else Side.BOTH if inline in used else Side.KERNEL
        )
    return dict(sorted(found.items()))


def _plan(subject: Subject, network: Problem, point: Point, cost: str) -> Plan:
    """A placement as a plan."""
    placement = sides(subject, point.kernel)
    staying = reasons.kernel(subject, network, point.kernel)
    upcalls = upcalled(subject, placement)
    functions: dict[str, Placed] = {}
    for key, side in placement.items():
        rule, words = (
            staying[key] if key in staying else ("", reasons.user(network, point.kernel, key))
        )
        functions[key] = Placed(side, network.sizes[key], rule, words, upcalls.get(key, []))
    return Plan(
        version=VERSION,
        kernel=subject.kernel,
        driver=subject.graph.driver.name,
        precision=subject.graph.precision,
        method="cut" if cost else "propagation",
        cost=cost,
        profile=network.weights.source,
        totals=totals(subject, network.weights, placement),
        functions=functions,
        contexts=dict(subject.stated),
        combolocks=sorted(subject.combolocks),
    )
