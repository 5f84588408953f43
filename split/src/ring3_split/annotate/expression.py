"""Lengths in annotations.

Sums and products of constants, fields, parameters, `sizeof` and functions of the driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<sign>->|[-+*/().,]))"
)


class Malformed(ValueError):  # noqa: N818 - it is what the text is
    """Text that is not what it should be; the message says where."""


@dataclass
class Expression:
    """A length, taken apart as far as it can be checked."""

    text: str
    chains: list[tuple[str, ...]] = field(default_factory=list)  # ("regs", "len") of `regs->len`
    passed: list[tuple[str, ...]] = field(
        default_factory=list
    )  # arguments of calls, which need not be numbers
    calls: list[str] = field(default_factory=list)  # functions that compute a length
    structs: list[str] = field(default_factory=list)  # in sizeof


def parse(text: str) -> Expression:
    """Reads a length; raises `Malformed`."""
    reader = _Reader(text)
    reader.total()
    if reader.ahead:
        raise Malformed(f"`{reader.ahead}` is not expected in `{text}`")
    return reader.result


class _Reader:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self.result = Expression(text.strip())
        self.rest = text
        self.ahead = ""
        self.kind = ""
        self.inside = 0  # how many calls deep
        self.step()

    def step(self) -> str:
        """Gives the current token and goes to the next; the empty token is the end."""
        gone = self.ahead
        match = TOKEN.match(self.rest)
        if match:
            self.kind = match.lastgroup or ""
            self.ahead = match[self.kind]
            self.rest = self.rest[match.end() :]
        elif self.rest.strip():
            raise Malformed(f"`{self.rest.strip()}` cannot be read in `{self.result.text}`")
        else:
            self.kind = self.ahead = ""
        return gone

    def need(self, sign: str) -> None:
        if self.ahead != sign:
            raise Malformed(f"`{sign}` is missing in `{self.result.text}`")
        self.step()

    def total(self) -> None:
        self.operand()
        while self.ahead and self.ahead in "+-*/":
            self.step()
            self.operand()

    def operand(self) -> None:
        if self.ahead == "(":
            self.step()
            self.total()
            self.need(")")
        elif self.kind == "number":
            self.step()
        elif self.kind == "name":
            self.named(self.step())
        else:
            raise Malformed(f"a number or a name is missing in `{self.result.text}`")

    def named(self, name: str) -> None:
        if name == "sizeof":
            self.need("(")
            if self.ahead in ("struct", "union"):
                self.step()
            self.result.structs.append(self.step())
            self.need(")")
            return
        chain = [name]
        while self.ahead in ("->", "."):
            self.step()
            if self.kind != "name":
                raise Malformed(
                    f"a member is missing after `{'.'.join(chain)}` in `{self.result.text}`"
                )
            chain.append(self.step())
        if self.ahead == "(":
            self.result.calls.append(".".join(chain))
            self.arguments()
        else:
            (self.result.passed if self.inside else self.result.chains).append(tuple(chain))

    def arguments(self) -> None:
        self.need("(")
        self.inside += 1
        while self.ahead and self.ahead != ")":
            self.total()
            if self.ahead != ")":
                self.need(",")
        self.inside -= 1
        self.need(")")
