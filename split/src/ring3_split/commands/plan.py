"""`ring3 split plan`: where to cut a driver, and whether a cut holds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ring3_split import plan, source_options
from ring3_split.commands import plans
from ring3_split.errors import Refusal
from ring3_split.plan import planner, subject, weights
from ring3_split.plan.check import check
from ring3_split.plan.curve import Corner, curve
from ring3_split.plan.cut import Point, problem
from ring3_split.plan.file import Plan, Side, Totals
from ring3_split.plan.totals import totals
from ring3_split.plan.verdict import Finding, Verdict
from ring3_split.profile import record

RULES = {
    "critical": "critical roots and what they call",
    "entry": "called by the kernel in atomic context, with what they call",
    "unknown": "called by the kernel in a context that nobody knows, with what they call",
    "fixed": "no process can run them",
    "region": "called under a spinlock, with interrupts off or under RCU",
    "section": "hold a spinlock while they call the kernel half",
    "lock": "take a spinlock of the kernel half",
    "inline": "inlines that the kernel half uses",
    "cost": "their crossings would cost more than their lines",
}


class Priced(msgspec.Struct, frozen=True):
    """A best cut, as the curve has it."""

    cost: float  # lines for a crossing from which on this cut is the best
    functions: int  # in the kernel half
    lines: int  # in the kernel half
    crossings: int  # as of the plan's totals
    chosen: bool  # it is this plan


class Planned(Plan):
    """What the command prints of a plan that it has made: the plan as its file has it."""

    # With --curve: all best cuts, by the price of a crossing.
    curve: list[Priced] | msgspec.UnsetType = msgspec.UNSET
    # With --curve: what the paper's tool makes of this driver.
    propagation: Totals | msgspec.UnsetType = msgspec.UNSET


class Judged(msgspec.Struct, frozen=True):
    """What the command prints of a plan that it has judged."""

    holds: bool  # there is no fault
    totals: Totals  # of the plan as it was edited; as its file has them if it is of another source
    faults: tuple[Finding, ...]  # what the plan breaks
    assumptions: tuple[Finding, ...]  # what nobody has proved, and the plan rests on
    notes: tuple[str, ...]  # what a person should know besides, in words


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser("plan", help="where to cut a driver, and whether a cut holds")
    parser.add_argument("driver", nargs="?", metavar="DRIVER", help="module, as `modinfo` names it")
    parser.add_argument(
        "--all",
        action="store_true",
        help="all drivers of the families, each judged; a table of them",
    )
    parser.add_argument(
        "--family",
        action="append",
        metavar="NAME",
        help="with --all: as of the command study, which also says the default",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="judge a plan, as it was edited; exit code 1 if it does not hold",
    )
    parser.add_argument(
        "--method",
        choices=("cut", "propagation"),
        default="cut",
        help="minimum cut (default), or the paper's tool",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="what the command profile measured, as weights; with --check, as a witness",
    )
    parser.add_argument(
        "--cost",
        type=_cost,
        default=Fraction(1),
        metavar="N",
        help="lines that one crossing may cost (default 1)",
    )
    parser.add_argument(
        "--precision",
        choices=("field", "signature"),
        help="of indirect calls (default field; of --check, the plan's)",
    )
    parser.add_argument(
        "--curve",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="PICTURE",
        help="all best cuts, and a picture of them",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the plan, to be read and edited; with --all, a folder",
    )
    parser.add_argument(
        "--contexts",
        type=Path,
        metavar="PLAN",
        help="an earlier plan whose [contexts], which a person has stated, hold for this one",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="calls of the kernel's functions and accesses to registers are crossings, too",
    )
    parser.add_argument(
        "--combolocks",
        action="store_true",
        help="let both halves take a spinlock, if what takes it atomically can be held off",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes a plan, or judges one."""
    if arguments.all:
        return plans.run(arguments)
    if arguments.family:
        raise Refusal("--family names the drivers that --all plans; without it, name one driver")
    if arguments.check:
        return _check(arguments)
    if not arguments.driver:
        raise Refusal("name the driver to plan, or a plan to judge with --check FILE")
    if arguments.out and arguments.out.exists():
        raise Refusal(
            f"{arguments.out}: is there already, perhaps with somebody's edits: move it away, or "
            "name another file"
        )
    return _plan(arguments)


def _cost(text: str) -> Fraction:
    """Lines per crossing: a number of 0 or more."""
    try:
        cost = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text} is not a number of lines") from None
    if cost < 0:
        raise argparse.ArgumentTypeError("a crossing cannot cost less than no lines")
    return cost


def _plan(arguments: argparse.Namespace) -> int:
    """Makes a plan; shows it, and writes what is asked for."""
    kernel = source_options.kernel(arguments)
    profile = record.load(arguments.profile) if arguments.profile else None
    stated = plan.load(arguments.contexts).contexts if arguments.contexts else {}
    known = subject.Known(profile, stated)
    whole = subject.load(
        kernel, arguments.driver, arguments.precision or "field", arguments.jobs, known
    )
    if arguments.combolocks:
        _show_locks(whole)
        whole = replace(
            whole,
            combolocks=frozenset(lock for lock, one in whole.locks.items() if not one.obstacle),
        )
    counted = weights.measured(whole, profile) if profile else weights.places(whole)
    counted = replace(counted, whole=arguments.whole)
    propagated = planner.propagate(whole, counted)
    made = (
        propagated
        if arguments.method == "propagation"
        else planner.cut(whole, counted, arguments.cost)
    )
    corners = curve(problem(whole, counted, critical=False)) if arguments.curve else []
    if arguments.curve and arguments.curve.name:
        # matplotlib takes longer to load than a plan to make
        from ring3_split.plan.picture import draw  # noqa: PLC0415

        words = (f"{made.driver}, kernel {made.kernel}", _unit(made))
        draw(arguments.curve, corners, _point(made), _point(propagated), words)
    if arguments.out:
        plan.save(made, arguments.out)
    if arguments.json:
        _print_json(_json(made, propagated, corners))
        return 0
    _summary(made)
    if corners:
        _curve(made, propagated, corners)
    if arguments.out:
        print(
            f"{arguments.out}: read it, move what you like, then: ring3 split plan --check "
            f"{arguments.out}"
        )
    return 0


def _show_locks(whole: subject.Subject) -> None:
    """Which spinlocks can be combolocks, on the side: standard output may be JSON."""
    for lock, one in whole.locks.items():
        held = ", ".join(f"{by} ({how})" for by, how in sorted(one.hold_off.items()))
        says = (
            f"no combolock: {one.obstacle}"
            if one.obstacle
            else f"combolock; held off meanwhile: {held or 'nothing'}"
        )
        print(f"{lock}: {says}", file=sys.stderr)


def _check(arguments: argparse.Namespace) -> int:
    """Judges a plan."""
    if arguments.driver or arguments.out or arguments.curve or arguments.contexts:
        raise Refusal(
            "--check judges a plan and makes none: leave DRIVER, --out, --curve and --contexts out"
        )
    made = plan.load(arguments.check)
    kernel = source_options.kernel(arguments)
    profile = record.load(arguments.profile) if arguments.profile else None
    known = subject.Known(profile, made.contexts)
    whole = subject.load(
        kernel, made.driver, arguments.precision or made.precision, arguments.jobs, known
    )
    whole = replace(whole, combolocks=frozenset(made.combolocks))
    counted = weights.measured(whole, profile) if profile else weights.places(whole)
    verdict = check(whole, made)
    if verdict.read:
        made.totals = totals(whole, counted, made.sides())
    if arguments.json:
        _print_json(
            Judged(
                holds=verdict.holds,
                totals=made.totals,
                faults=verdict.faults,
                assumptions=verdict.assumptions,
                notes=verdict.notes,
            )
        )
    else:
        _verdict(arguments.check, made, verdict)
    return 0 if verdict.holds else 1


def _verdict(path: Path, made: Plan, verdict: Verdict) -> None:
    """What the judge found, for a person."""
    for kind, findings in (("fault", verdict.faults), ("assumption", verdict.assumptions)):
        for finding in findings:
            _finding(kind, finding)
    for note in verdict.notes:
        print(f"note: {note}")
    if verdict.read:
        print(_half(made))
    user = sum(placed.placement is not Side.KERNEL for placed in made.functions.values())
    if verdict.holds:
        resting = (
            f", if {_count(len(verdict.assumptions), 'assumption')} above "
            f"{_are(len(verdict.assumptions))} true"
        )
        proof = (
            f"none of {_count(user, 'function')} of the user half can be reached in atomic context"
        )
        print(f"{path}: holds: {proof}{resting if verdict.assumptions else ''}")
    else:
        print(f"{path}: does not hold: {_count(len(verdict.faults), 'fault')}")


def _finding(kind: str, finding: Finding) -> None:
    print(f"{kind} ({finding.rule}): {finding.function} {finding.text}")
    for line in finding.path:
        print(f"    {line}")


def _summary(made: Plan) -> None:
    """The totals and how many functions each rule keeps."""
    sums = made.totals
    method = f"minimum cut, cost {made.cost}" if made.cost else "propagation"
    print(f"{made.driver}, kernel {made.kernel}: {method}, {made.profile or 'no profile'}")
    print(f"  {_half(made)}")
    print(
        f"  interface    {_count(sums.upcalled, 'function')} called up, {sums.downcalled} called "
        "down"
    )
    print(
        f"  crossings    {sums.crossings:,} {_unit(made)}: {sums.upcalls:,} up, "
        f"{sums.downcalls:,} down"
    )
    kernel = (
        f"{sums.kernel_downcalls:,} of the kernel's functions, {sums.register_accesses:,} of "
        "registers"
    )
    print(f"  user half    {kernel}, {_unit(made)}")
    rules = Counter[str]()
    sizes = Counter[str]()
    for placed in made.functions.values():
        if placed.placement is not Side.USER:
            rules[placed.rule] += 1
            sizes[placed.rule] += placed.lines
    for rule, count in rules.most_common():
        print(
            f"  stays        {rule:9} {_count(count, 'function'):>14} {sizes[rule]:7,} lines  "
            f"{RULES[rule]}"
        )


def _half(made: Plan) -> str:
    """The size of the kernel half."""
    sums = made.totals
    share = f"{sums.kernel_lines:,} of {sums.lines:,} lines ({sums.kernel_percent} %)"
    return f"kernel half  {sums.kernel_functions} of {_count(sums.functions, 'function')}, {share}"


def _curve(made: Plan, propagated: Plan, corners: list[Corner]) -> None:
    """The curve as a table."""
    table = Table(box=None)
    for title in ("price", "functions", "lines", "%", "crossings"):
        table.add_column(title, justify="right")
    table.add_column()
    print(f"best cuts, from which price of a crossing on, in lines; crossings are {_unit(made)}")
    whole = made.totals.lines
    rows = [(f"{float(corner.cost):.4g}", corner.point) for corner in corners]
    for cost, point in [*rows, ("propagation", _point(propagated))]:
        chosen = "<- this plan" if point == _point(made) else ""
        percent = f"{100 * point.lines / whole:.1f}"
        table.add_row(
            cost,
            str(len(point.kernel)),
            f"{point.lines:,}",
            percent,
            f"{point.crossings:,}",
            chosen,
        )
    Console(file=sys.stdout, highlight=False, width=100).print(table)


def _point(made: Plan) -> Point:
    """A plan as a point of the curve."""
    kernel = frozenset(key for key, side in made.sides().items() if side is not Side.USER)
    return Point(kernel, made.totals.kernel_lines, made.totals.crossings)


def _unit(made: Plan) -> str:
    return "calls of the profile" if made.profile else "places of the code"


def _json(made: Plan, propagated: Plan, corners: list[Corner]) -> Planned:
    """The plan as its file has it, and the curve if it was asked for."""
    whole = Planned(**msgspec.structs.asdict(made))
    if corners:
        whole.curve = [
            Priced(
                cost=float(corner.cost),
                functions=len(corner.point.kernel),
                lines=corner.point.lines,
                crossings=corner.point.crossings,
                chosen=corner.point == _point(made),
            )
            for corner in corners
        ]
        whole.propagation = propagated.totals
    return whole


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
