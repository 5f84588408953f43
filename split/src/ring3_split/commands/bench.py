"""The options of `ring3 split bench`, and what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path

from ring3_split import shared_report, source_options
from ring3_split.commands import numbers, report
from ring3_split.errors import Refusal
from ring3_split.generate import bench as benching
from ring3_split.generate import delays, placements
from ring3_split.generate.build import Built
from ring3_split.kernel import Kernel
from ring3_split.profile import lab

CROSSINGS, QUESTIONS = 20_000, 20  # of each kind, in a round
QUICK_CROSSINGS, QUICK_QUESTIONS = 1000, 3
QUICK_DELAYS = (0, 20_000)
SECONDS, ROUNDS = (4.0, 0.5), (3, 1)  # usual, quick
LONGEST_US = 1_000_000


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    usual = ",".join(map(str, delays.USUAL))
    parser.add_argument(
        "--delays",
        metavar="US,...",
        type=_delays,
        nargs="?",
        const=delays.USUAL,
        help="instead, traffic while each crossing takes so many microseconds longer; without a "
        f"list {usual}",
    )
    parser.add_argument(
        "--crossings",
        action="store_true",
        help="instead, what an upcall and a call down cost with nothing in them, and a restart",
    )
    parser.add_argument(
        "--ethtool",
        action="store_true",
        help="instead, how long loading the driver and the questions of `ethtool` take",
    )
    parser.add_argument(
        "--everywhere",
        action="store_true",
        help="beside them, the card driven by a process: by ring3's own driver, and by Linux's, "
        "unmodified",
    )
    parser.add_argument(
        "--mode",
        choices=("instructions", "wall"),
        default="instructions",
        help="the guest's clock; default instructions",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=numbers.seconds,
        help=f"time of each load; default {SECONDS[0]:g}",
    )
    parser.add_argument(
        "--rounds", metavar="N", type=numbers.rounds, help=f"of all turns; default {ROUNDS[0]}"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="--delays, --crossings and --ethtool in a minute or two: that they work",
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="with --delays: draws them there, .svg"
    )
    parser.add_argument("--verbose", action="store_true", help="show all that the guest says")


def _delays(text: str) -> tuple[int, ...]:
    values = text.split(",")
    if not all(value.isdigit() and int(value) <= LONGEST_US for value in values) or len(
        set(values)
    ) < len(values):
        raise argparse.ArgumentTypeError(
            f"{text} is not a list of different microseconds from 0 to {LONGEST_US}, such as "
            "0,10,1000"
        )
    return tuple(map(int, values))


def check(driver: str, arguments: argparse.Namespace) -> None:
    """Makes sure that what is asked for can be measured, before anything is built.

    Raises:
        Refusal: it cannot.
    """
    benching.check(driver)
    if arguments.everywhere and driver not in placements.EVERYWHERE:
        raise Refusal(
            f"--everywhere: ring3 drives the cards of {', '.join(placements.EVERYWHERE)} in a "
            f"process, not those of {driver}"
        )
    if arguments.everywhere and (
        arguments.delays or arguments.crossings or arguments.ethtool or arguments.quick
    ):
        raise Refusal(
            "--everywhere is of the placements, which --delays, --crossings, --ethtool and "
            "--quick leave out"
        )
    if arguments.plot and not (arguments.delays or arguments.quick):
        raise Refusal("--plot draws what --delays measures: add --delays")
    if arguments.plot and arguments.plot.suffix != ".svg":
        raise Refusal(f"{arguments.plot}: a picture is .svg")


def request(arguments: argparse.Namespace, log: Path) -> benching.Request:
    """What the options ask for."""
    quick = arguments.quick
    crossings = (QUICK_CROSSINGS if quick else CROSSINGS) if arguments.crossings or quick else 0
    questions = (QUICK_QUESTIONS if quick else QUESTIONS) if arguments.ethtool or quick else 0
    asked = arguments.delays or (QUICK_DELAYS if quick else ())
    return benching.Request(
        source_options.cache(),
        arguments.seconds or SECONDS[quick],
        log=log,
        rounds=arguments.rounds or ROUNDS[quick],
        mode=arguments.mode,
        placements=not (asked or crossings or questions),
        everywhere=arguments.everywhere,
        delays=asked,
        crossings=crossings,
        ethtool=questions,
    )


def run(
    kernel: Kernel, name: str, built: Built, arguments: argparse.Namespace, folder: Path
) -> None:
    """Measures, prints and draws."""
    others = shared_report.Others()
    found = benching.bench(
        kernel,
        name,
        built,
        request(arguments, folder / "bench.log"),
        report.heard(arguments.verbose),
    )
    told = benching.told(found, others)
    report.show(told, benching.show(found), arguments.json)
    if arguments.plot:
        lab.plot(told, arguments.plot)
