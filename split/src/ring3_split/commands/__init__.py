"""One module a command; its `add(subparsers)` sets `run` to what takes parsed arguments."""

from __future__ import annotations

import argparse
from typing import Protocol

from ring3_split.commands import annotate, contexts, generate, plan, profile, show, study


class Command(Protocol):
    """A command's module."""

    def add(self, commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Adds the command to the command line."""


COMMANDS: tuple[Command, ...] = (study, show, profile, plan, annotate, contexts, generate)
