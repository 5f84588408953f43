"""The options by which every command is told which kernel to read, and how."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ring3_split import clang, compile_commands, distribution, tree
from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel

DEFAULT_KERNEL = "6.12"


def add(parser: argparse.ArgumentParser) -> None:
    """Adds them to a command."""
    group = parser.add_argument_group("which kernel")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--kernel",
        metavar="VERSION",
        help=f"the distribution's kernel (lab/setup.sh source VERSION); default {DEFAULT_KERNEL}; "
        "debug: the one of lab/debug-kernel.sh",
    )
    which.add_argument(
        "--tree",
        metavar="FOLDER",
        type=Path,
        help="a kernel's source tree, or its build folder, 2.6.18 to 7.2",
    )
    which.add_argument(
        "--compile-commands",
        metavar="FILE",
        type=Path,
        help="compile_commands.json of a kernel's build",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="with --tree: its configuration; default .config in it",
    )
    group.add_argument(
        "--arch",
        metavar="NAME",
        help="with --tree: architecture; default what the configuration is for",
    )
    group.add_argument(
        "--clang",
        metavar="PROGRAM",
        help="clang 17 or later; default the cache's, else the one on PATH",
    )
    group.add_argument(
        "--jobs", metavar="N", type=_count, help="units read at a time; default one a processor"
    )
    group.add_argument(
        "--cache",
        metavar="FOLDER",
        type=Path,
        help="where facts are kept, if not with all else in $RING3_CACHE or ~/.cache/ring3",
    )


def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 1024")
    return int(text)


def cache() -> Path:
    """The cache folder of all of ring3.

    Clang, the kernels' sources, and facts where nothing else is said.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("RING3_CACHE") or f"{home}/ring3").absolute()


def kernel(arguments: argparse.Namespace) -> Kernel:
    """The kernel that the arguments name; what is odd about it is said on standard error.

    Raises:
        Refusal: it is not there or not whole; no clang that fits.
    """
    for option in ("config", "arch"):
        if getattr(arguments, option) and not arguments.tree:
            raise Refusal(f"--{option} goes with --tree FOLDER")
    found = _open(arguments)
    notes = [
        f"make cannot evaluate all of {folder}, drivers of it may be missing: {message}"
        for folder, message in found.catalogue.broken.items()
    ]
    for note in filter(None, [found.compiler.note, *notes]):
        print(f"note: {note}", file=sys.stderr)
    return found


def _open(arguments: argparse.Namespace) -> Kernel:
    facts = (arguments.cache or cache()).absolute()
    fetched = cache() / clang.FETCHED
    compiler = arguments.clang or (str(fetched) if fetched.exists() else None)
    if arguments.tree:
        return tree.open_kernel(arguments.tree, arguments.config, arguments.arch, facts, compiler)
    if arguments.compile_commands:
        return compile_commands.open_kernel(arguments.compile_commands, facts, compiler)
    return distribution.open_kernel(arguments.kernel or DEFAULT_KERNEL, cache(), compiler, facts)
