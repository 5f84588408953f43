"""`ring3 split contexts`.

Compares what the tables say of the kernel's calls with the kernel's own code.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec

from ring3_split import context, source_options
from ring3_split.context import cores, evidence
from ring3_split.context.evidence import Finding, Site, Verdict
from ring3_split.errors import Refusal
from ring3_split.model import Failure

WORDS: dict[Verdict, str] = {
    "contradicted": "the table says process, and the kernel calls it in atomic context",
    "excused": "the same, with a reason why that call is none",
    "certain": "process, and each call that is seen stands in process context",
    "open": "process by its reason: of the calls that are seen, some have callers that nobody sees",
    "unseen": "process by its reason: no call is seen",
    "atomic": "atomic",
}
SITES = 3  # calls that are shown of a field


class Compared(msgspec.Struct, frozen=True):
    """What the tables say, beside what the kernel's code says."""

    fields: Sequence[Finding]  # that the tables have or the kernel calls, by name
    failures: Sequence[Failure]  # files of the kernel that could not be read


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "contexts",
        help="what the kernel's own code says of the tables of contexts",
        description="Reads the parts of the kernel that call drivers, and compares each call with "
        "the tables.",
    )
    tables = ", ".join(context.names())
    parser.add_argument(
        "--family",
        action="append",
        metavar="NAME",
        help=f"only the tables of {tables}; may be repeated",
    )
    parser.add_argument(
        "--field",
        action="append",
        metavar="NAME",
        help="only this one, with all its calls; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command. 1 when the kernel contradicts a row."""
    wanted = _wanted(arguments.family or [])
    kernel = source_options.kernel(arguments)
    graph, failures = cores.read(kernel, arguments.jobs)
    found = [one for one in evidence.findings(graph) if _asked(one, wanted, arguments.field or [])]
    missing = sorted(set(arguments.field or ()) - {one.field for one in found})
    if missing:
        raise Refusal(
            f"no table has {missing[0]}, and no call of it is seen: fields are named as in "
            "struct.member"
        )
    if arguments.json:
        _json(found, failures)
    else:
        _print(found, failures, SITES if not arguments.field else sys.maxsize)
    return 1 if any(one.verdict == "contradicted" and one.row for one in found) else 0


def _wanted(families: Sequence[str]) -> set[str]:
    """The rows of some tables; of all, if none is named."""
    known = context.tables()
    for family in families:
        if family not in known:
            raise Refusal(f"no table {family}; there are {', '.join(known)}")
    return {key for family in families or known for key in known[family]}


def _asked(one: Finding, wanted: set[str], fields: Sequence[str]) -> bool:
    if fields:
        return one.field in fields
    return (
        one.field in wanted
        or f"{one.field.rpartition('.')[0]}.*" in wanted
        or _struct(one.field) in {_struct(key) for key in wanted}
    )


def _struct(field: str) -> str:
    return field.rpartition(".")[0]


def _json(found: Sequence[Finding], failures: Sequence[Failure]) -> None:
    whole = Compared(found, failures)
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")


def _print(found: Sequence[Finding], failures: Sequence[Failure], most: int) -> None:
    for verdict, words in WORDS.items():
        some = [one for one in found if one.verdict == verdict and (one.row or verdict != "unseen")]
        rows, others = [one for one in some if one.row], [one for one in some if not one.row]
        if rows:
            print(f"{verdict}: {words}")
            for one in rows:
                _field(one, most)
        if others:
            print(f"{verdict}, and in no table")
            for one in others:
                _field(one, most)
    counts = Counter(one.verdict for one in found if one.row)
    print(
        f"{sum(counts.values()):,} fields in the tables: "
        + ", ".join(f"{counts[each]:,} {each}" for each in WORDS if counts[each])
    )
    for failure in failures:
        print(f"not read: {failure.source}: {failure.reason}")


def _field(one: Finding, most: int) -> None:
    print(f"  {one.field}" + (f"  [{one.row.source}]" if one.row else ""))
    if one.row and (one.row.despite or one.row.why):
        print(f"    {one.row.despite or one.row.why}")
    for site in sorted(one.sites, key=_order)[:most]:
        print(f"    {site.grade}: {site.path[0]}")
        for hop in site.path[1:]:
            print(f"        -> {hop}")


def _order(site: Site) -> tuple[int, str, int]:
    """Calls in atomic context first, those by a short way before others."""
    return (
        ("atomic", "open", "process").index(site.grade) * 100 + min(len(site.path), 99),
        site.function,
        site.line,
    )
