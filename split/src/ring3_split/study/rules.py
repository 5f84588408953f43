"""By which rules a function counts as critical.

A rule is a choice of three things: which calls are followed, how root functions are found, and
which of them count. Every choice is made for every driver, so that no single one has to be
believed.
"""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import msgspec

Calls = Literal["signature", "field", "direct"]
Finder = Literal["signature", "binding"]
Reach = Literal["data", "deferred", "timers"]


class Rule(msgspec.Struct, frozen=True):
    """One way to say which functions are critical."""

    # calls through pointers: to every function of the signature, of the signature and field, or not
    # followed
    calls: Calls
    # root functions by the signature of a template, or by the field or API that they are bound to
    roots: Finder
    reach: Reach  # interrupt and data path only; with tasklets and URB completions; with timers too

    @property
    def name(self) -> str:
        """Its name in tables and files, such as `signature-binding-timers`."""
        return f"{self.calls}-{self.roots}-{self.reach}"


RULES: tuple[Rule, ...] = tuple(
    Rule(calls, roots, reach)
    for calls, roots, reach in product(get_args(Calls), get_args(Finder), get_args(Reach))
)
# What tables and pictures are about: pointers and roots as in the paper, and of its roots those
# that all drivers have, interrupts and the data path. With the paper's e1000 its numbers.
BASE = Rule("signature", "signature", "data")
# The paper's words, which name tasklets and bottom halves, too. With its e1000 103 functions and
# not 25: on 2.6.18 a tasklet and a timer have one type.
LITERAL = Rule("signature", "signature", "deferred")


def bit(rule: Rule) -> int:
    """The bit that stands for this rule in a mark."""
    return 1 << RULES.index(rule)
