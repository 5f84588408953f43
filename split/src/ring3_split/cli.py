"""The command: `ring3 split ...`, or `ring3-split ...` where the package is installed alone."""

from __future__ import annotations

import argparse
import os
import sys

from ring3_split.commands import COMMANDS
from ring3_split.errors import Refusal


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    program = os.environ.get("RING3_SPLIT_PROGRAM", "ring3-split")
    top = argparse.ArgumentParser(
        prog=program,
        description="Cut a Linux driver into a small kernel half and a large user half.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs one command; its exit code. 1: refused or failed, 2: wrong usage, 130: interrupted."""
    words = sys.argv[1:] if argv is None else argv
    # What follows -- is for a program that the command starts.
    mark = words.index("--") if "--" in words else len(words)
    arguments = parser().parse_args(words[:mark], argparse.Namespace(words=words[mark + 1 :]))
    try:
        return int(arguments.run(arguments))
    except Refusal as refusal:
        print(f"{parser().prog}: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"{parser().prog}: interrupted; what was read is kept, the same command goes on from "
            "there",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader has seen enough; nothing is to be flushed to it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
