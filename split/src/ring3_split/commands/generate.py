"""`ring3 split generate`, `build`, `bench` and `run`.

Two halves of a plan, which are built, measured and tried in a guest.
"""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path

import msgspec

from ring3_split import source_options
from ring3_split.annotate import file
from ring3_split.annotate.survey import Survey, survey
from ring3_split.commands import bench, campaign, numbers
from ring3_split.errors import Refusal
from ring3_split.generate import bench as benching
from ring3_split.generate import build as building
from ring3_split.generate import complete
from ring3_split.generate import run as running
from ring3_split.generate.border import Wishes
from ring3_split.generate.build import Built
from ring3_split.generate.halves import generate
from ring3_split.generate.summary import Summary, summary
from ring3_split.generate.tools import Tools
from ring3_split.indirect import Precision
from ring3_split.kernel import Kernel
from ring3_split.plan import Plan, load, planner, subject, weights

COMMANDS = {
    "generate": "write both halves of a driver, from its unmodified source and a plan",
    "build": "generate, and build the modules and the program",
    "bench": "build, and measure the split driver beside the distribution's in a guest: TCP, "
    "crossings, what `ethtool` asks",
    "campaign": "build, and count in guests what the kernel survives: faults in the user half, "
    "and messages that none would send",
    "run": "build, and run the split driver in a guest: it works, its user half dies, it works "
    "on, it comes back",
}


# Not there where the package was installed without the source tree.
EXAMPLE = Path(__file__).parents[3] / "examples"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands."""
    for name, about in COMMANDS.items():
        parser = commands.add_parser(name, help=about, description=about)
        parser.add_argument(
            "driver",
            nargs="?",
            metavar="DRIVER",
            help="module, as `modinfo` names it; with --plan it may be left out",
        )
        parser.add_argument(
            "--plan",
            metavar="FILE",
            type=Path,
            help="a plan, as `plan --out` writes it; default the cut that `plan DRIVER` makes",
        )
        parser.add_argument(
            "--annotations", metavar="FILE", type=Path, help="answers, as `annotate` asks for them"
        )
        parser.add_argument(
            "--out", metavar="FOLDER", type=Path, help="where the halves go; default DRIVER-split"
        )
        parser.add_argument("--json", action="store_true", help="machine-readable")
        if name == "bench":
            bench.add(parser)
        if name == "campaign":
            campaign.add(parser)
        if name in ("build", "run"):
            _add_checkers(parser)
        if name == "run":
            _add_start(parser)
            parser.add_argument(
                "--guest", action="store_true", help="in a guest, which is the only way there is"
            )
            parser.add_argument(
                "--seconds",
                metavar="N",
                type=numbers.seconds,
                default=0.5,
                help="time of each kind of transfer",
            )
            parser.add_argument(
                "--lies",
                metavar="N",
                type=numbers.count,
                default=0,
                help="messages of a user half that lies; default none",
            )
            parser.add_argument(
                "--liar",
                metavar="N",
                type=numbers.count,
                default=0,
                help="upcalls of a user half that lies and knows types, in a kernel that poisons "
                "what is freed; default none",
            )
            parser.add_argument(
                "--work",
                metavar="SCRIPT",
                type=Path,
                help="shell functions of what this driver is put to, in place of those of its kind",
            )
            parser.add_argument(
                "--verbose", action="store_true", help="show all that the guest says"
            )
        source_options.add(parser)
        parser.set_defaults(run=run, step=name)


def _add_checkers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--asan", action="store_true", help="have AddressSanitizer watch the user half"
    )
    parser.add_argument(
        "--valgrind",
        action="store_true",
        help="the user half is for valgrind's memcheck, under which `run` starts it",
    )


def _add_start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gdb",
        action="store_true",
        help="start the user half under gdb; what follows -- goes to gdb: --gdb -- -batch -ex "
        "'break FUNCTION' -ex run -ex bt",
    )
    parser.add_argument(
        "--unconfined",
        action="store_true",
        help="the user half keeps its rights; so it does under each of the three",
    )
    parser.add_argument(
        "--unpinned",
        action="store_true",
        help="the user half's memory may be swapped out; the same",
    )


def _tools(arguments: argparse.Namespace) -> Tools:
    """What the user half is looked at with."""
    given = vars(arguments)
    wanted = {
        name: given.get(name, False)
        for name in ("gdb", "asan", "valgrind", "unconfined", "unpinned")
    }
    return Tools(words=tuple(given.get("words", ())), **wanted)


def run(arguments: argparse.Namespace) -> int:
    """Runs one of them."""
    tools = _tools(arguments)
    if arguments.step == "bench":
        _measure_an_example(arguments)
    plan = load(arguments.plan) if arguments.plan else None
    name = arguments.driver or (plan.driver if plan else "")
    if not name or (plan and plan.driver != name):
        raise Refusal(
            f"the plan is for {plan.driver}, not for {name}"
            if plan
            else "name a driver, or a plan with --plan FILE"
        )
    if arguments.step == "run":
        running.check(name, arguments.work)
    if arguments.step == "bench":
        bench.check(name, arguments)
    if arguments.step == "campaign":
        benching.check(name)
    kernel = source_options.kernel(arguments)
    answers = file.load(_there(arguments.annotations)).answers() if arguments.annotations else {}
    found, plan = _survey(kernel, name, arguments, answers)
    folder = (arguments.out or Path(f"{name}-split")).absolute()
    generated = generate(kernel, kernel.module(name), found, Wishes.of(plan, answers), folder)
    if arguments.step != "generate":
        complete.check(generated.border)
    built = building.build(kernel, generated, tools.form) if arguments.step != "generate" else None
    if built and arguments.step == "bench":
        bench.run(kernel, name, built, arguments, folder)
        return 0
    if built and arguments.step == "campaign":
        return campaign.run(kernel, built, generated, arguments)
    _show(summary(generated, built), arguments.json)
    if built and arguments.step == "run":
        _run(kernel, name, built, arguments, folder)
    return 0


def _measure_an_example(arguments: argparse.Namespace) -> None:
    """Names the example whose figures docs/split-run.md has, where the user has named no driver."""
    if (
        arguments.driver is None
        and arguments.plan is None
        and arguments.annotations is None
        and EXAMPLE.is_dir()
    ):
        arguments.plan, arguments.annotations = (
            EXAMPLE / "e1000.plan.toml",
            EXAMPLE / "e1000.annotations.toml",
        )


def _there(path: Path) -> Path:
    if not path.exists():
        raise Refusal(
            f"{path}: is not there: `ring3 split annotate DRIVER --out {path}` writes the questions"
        )
    return path


def _survey(
    kernel: Kernel, name: str, arguments: argparse.Namespace, answers: dict[str, str]
) -> tuple[Survey, Plan]:
    plan = load(arguments.plan) if arguments.plan else None
    precision: Precision = "signature" if plan and plan.precision == "signature" else "field"
    known = subject.Known(None, plan.contexts) if plan else subject.Known()
    whole = subject.load(kernel, name, precision, arguments.jobs, known)
    if plan is None:
        plan = planner.cut(whole, weights.places(whole), Fraction(1))
    return survey(whole.graph, plan.sides(), kernel.name, answers), plan


def _run(
    kernel: Kernel, name: str, built: Built, arguments: argparse.Namespace, folder: Path
) -> None:
    # Of the standard output the object has all.
    steps = sys.stderr if arguments.json else sys.stdout

    def show(line: str, step: bool) -> None:
        if step or arguments.verbose:
            print(line if step else f"    {line}", file=steps, flush=True)

    wanted = running.Wanted(arguments.lies, arguments.work, _tools(arguments), arguments.liar)
    request = running.Request(source_options.cache(), arguments.seconds, folder / "run.log", wanted)
    running.run(kernel, name, built, request, show)
    print(
        f"{name}: it worked, its user half died, its kernel half went on, it came back; all "
        f"output is in {request.log}",
        file=steps,
    )


def _show(found: Summary, machine: bool) -> None:
    if machine:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        return
    print(f"{found.driver}, {found.kernel}: {found.folder}")
    print(
        f"  kernel half  {found.kernel_functions} functions, {found.kernel_lines:,} of "
        f"{found.lines:,} lines"
    )
    print(
        f"  user half    {found.user_functions} functions, {found.lines - found.kernel_lines:,} "
        "lines"
    )
    print(
        f"  border       {found.entries} entries, {found.calls} functions called down, "
        f"{found.symbols} symbols, "
        f"{found.fields} fields"
    )
    print(
        f"  believed     {len(found.believed)} numbers that the user half may set to anything; "
        "--json names them"
    )
    for name, why in found.refused.items():
        print(f"  not crossing {name}: {why}")
    if found.program:
        print(
            f"  built        {found.modules[0]}, {found.modules[1]} ({found.module_bytes:,} "
            f"bytes), {found.program}"
        )
