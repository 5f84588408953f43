"""`ring3 split generate`, `build`, `bench`, `campaign` and `run`: two halves of a plan, built, measured and tried in a guest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec

from ring3_split import source_options
from ring3_split.annotate import file
from ring3_split.annotate.survey import Survey, survey
from ring3_split.errors import Refusal
from ring3_split.generate import bench as benching
from ring3_split.generate import build as building
from ring3_split.generate import campaign as campaigning
from ring3_split.generate import run as running
from ring3_split.generate import tally
from ring3_split.generate.border import Wishes
from ring3_split.generate.build import Built
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.summary import Summary, summary
from ring3_split.indirect import Precision
from ring3_split.kernel import Kernel
from ring3_split.plan import Plan, load, planner, subject, weights

COMMANDS = {
    "generate": "write both halves of a driver, from its unmodified source and a plan",
    "build": "generate, and build the modules and the program",
    "bench": "build, and measure the split driver beside the distribution's in a guest, its user half alive, killed and dead",
    "campaign": "build, and count in guests what the kernel survives: faults in the user half, and messages that none would send",
    "run": "build, and run the split driver in a guest: it works, its user half dies, it works on, it comes back",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands."""
    for name, about in COMMANDS.items():
        parser = commands.add_parser(name, help=about, description=about)
        parser.add_argument(
            "driver", nargs="?", metavar="DRIVER", help="module, as `modinfo` names it; with --plan it may be left out"
        )
        parser.add_argument(
            "--plan",
            metavar="FILE",
            type=Path,
            help="a plan, as `plan --out` writes it; default the cut that `plan DRIVER` makes",
        )
        parser.add_argument("--annotations", metavar="FILE", type=Path, help="answers, as `annotate` asks for them")
        parser.add_argument("--out", metavar="FOLDER", type=Path, help="where the halves go; default DRIVER-split")
        parser.add_argument("--json", action="store_true", help="machine-readable")
        if name == "bench":
            parser.add_argument("--seconds", metavar="N", type=_seconds, default=4.0, help="time of each load; default 4")
            parser.add_argument("--rounds", metavar="N", type=_rounds, default=3, help="of all placements; default 3")
            parser.add_argument("--verbose", action="store_true", help="show all that the guest says")
        if name == "campaign":
            parser.add_argument("--faults", metavar="N", type=_count, help="into the user half; default 1000")
            parser.add_argument(
                "--messages",
                metavar="N",
                type=_count,
                help="of a user half that lies, and ten times as many of strangers; default 100000",
            )
            parser.add_argument(
                "--minutes", metavar="N", type=_minutes, default=0, help="of TCP both ways, while the user half is killed"
            )
            parser.add_argument("--seed", metavar="S", type=_count, default=1, help="which faults and messages; default 1")
            parser.add_argument("--quick", action="store_true", help="a fault of each kind and 1,000 messages, in one guest")
            parser.add_argument("--resume", metavar="FILE", type=Path, help="keep what guests have shown, and go on from there")
            parser.add_argument("--verbose", action="store_true", help="show all that the guests say")
        if name == "run":
            parser.add_argument("--guest", action="store_true", help="in a guest, which is the only way there is")
            parser.add_argument("--seconds", metavar="N", type=_seconds, default=0.5, help="time of each kind of transfer")
            parser.add_argument(
                "--lies", metavar="N", type=_count, default=0, help="messages of a user half that lies; default none"
            )
            parser.add_argument("--verbose", action="store_true", help="show all that the guest says")
        source_options.add(parser)
        parser.set_defaults(run=run, step=name)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 600:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0.1 to 600")
    return value


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1440:
        raise argparse.ArgumentTypeError(f"{text} is not a number of minutes from 0 to 1440")
    return value


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a number of rounds from 1 to 100")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > 10_000_000:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 10000000")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Runs one of them."""
    plan = load(arguments.plan) if arguments.plan else None
    name = arguments.driver or (plan.driver if plan else "")
    if not name or (plan and plan.driver != name):
        raise Refusal(f"the plan is for {plan.driver}, not for {name}" if plan else "name a driver, or a plan with --plan FILE")
    if arguments.step == "run":
        running.check(name)
    if arguments.step in ("bench", "campaign"):
        benching.check(name)
    kernel = source_options.kernel(arguments)
    answers = file.load(_there(arguments.annotations)).answers() if arguments.annotations else {}
    found, plan = _survey(kernel, name, arguments, answers)
    folder = (arguments.out or Path(f"{name}-split")).absolute()
    generated = generate(kernel, kernel.module(name), found, Wishes.of(plan, answers), folder)
    built = building.build(kernel, generated) if arguments.step != "generate" else None
    if built and arguments.step == "bench":
        _bench(kernel, name, built, arguments, folder)
        return 0
    if built and arguments.step == "campaign":
        return _campaign(kernel, built, generated, arguments)
    _show(summary(generated, built), arguments.json)
    if built and arguments.step == "run":
        _run(kernel, name, built, arguments, folder)
    return 0


def _there(path: Path) -> Path:
    if not path.exists():
        raise Refusal(f"{path}: is not there: `ring3 split annotate DRIVER --out {path}` writes the questions")
    return path


def _survey(kernel: Kernel, name: str, arguments: argparse.Namespace, answers: dict[str, str]) -> tuple[Survey, Plan]:
    plan = load(arguments.plan) if arguments.plan else None
    precision: Precision = "signature" if plan and plan.precision == "signature" else "field"
    known = subject.Known(None, plan.contexts) if plan else subject.Known()
    whole = subject.load(kernel, name, precision, arguments.jobs, known)
    if plan is None:
        plan = planner.cut(whole, weights.places(whole), Fraction(1))
    return survey(whole.graph, plan.sides(), kernel.name, answers), plan


def _run(kernel: Kernel, name: str, built: Built, arguments: argparse.Namespace, folder: Path) -> None:
    def show(line: str, step: bool) -> None:
        if step or arguments.verbose:
            print(line if step else f"    {line}", flush=True)

    request = running.Request(source_options.cache(), arguments.seconds, arguments.lies, folder / "run.log")
    running.run(kernel, name, built, request, show)
    print(f"{name}: it worked, its user half died, its kernel half went on, it came back; all output is in {request.log}")


def _heard(verbose: bool) -> Callable[[str, bool], None]:
    """Shows what a guest says where it disturbs no result."""

    def show(line: str, step: bool) -> None:
        if step or verbose:
            print(line if step else f"    {line}", file=sys.stderr, flush=True)

    return show


def _print(report: msgspec.Struct, machine: bool, show: str) -> None:
    if machine:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    else:
        print(show)


def _campaign(kernel: Kernel, built: Built, generated: Generated, arguments: argparse.Namespace) -> int:
    wanted = {key: value for key in campaigning.QUICK if (value := getattr(arguments, key)) is not None}
    request = campaigning.Request(
        source_options.cache(),
        log=generated.folder / "campaign.log",
        seed=arguments.seed,
        minutes=arguments.minutes,
        resume=arguments.resume,
        entries=tuple(entry.function.rpartition(":")[2] for entry in generated.border.table.entries),
        **(campaigning.QUICK if arguments.quick else {}) | wanted,
    )
    report = campaigning.campaign(kernel, generated.border.survey.border.driver, built, request, _heard(arguments.verbose))
    _print(report, arguments.json, tally.show(report))
    return 0 if report.well else 1


def _bench(kernel: Kernel, name: str, built: Built, arguments: argparse.Namespace, folder: Path) -> None:
    request = benching.Request(source_options.cache(), arguments.seconds, log=folder / "bench.log", rounds=arguments.rounds)
    report = benching.bench(kernel, name, built, request, _heard(arguments.verbose))
    _print(report, arguments.json, benching.show(report))


def _show(found: Summary, machine: bool) -> None:
    if machine:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        return
    print(f"{found.driver}, {found.kernel}: {found.folder}")
    print(f"  kernel half  {found.kernel_functions} functions, {found.kernel_lines:,} of {found.lines:,} lines")
    print(f"  user half    {found.user_functions} functions, {found.lines - found.kernel_lines:,} lines")
    print(
        f"  border       {found.entries} entries, {found.calls} functions called down, {found.symbols} symbols, "
        f"{found.fields} fields"
    )
    for name, why in found.refused.items():
        print(f"  not crossing {name}: {why}")
    if found.program:
        print(f"  built        {found.modules[0]}, {found.modules[1]} ({found.module_bytes:,} bytes), {found.program}")
