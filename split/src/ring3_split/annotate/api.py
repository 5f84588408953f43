"""Knowledge about the kernel's functions: how the user half meets each. Read from `api.toml`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from importlib import resources

from ring3_split.annotate.vocabulary import VARIABLE_WAYS, WAYS


@dataclass(frozen=True)
class Api:
    """What is known of one kernel function, or of a pattern of names."""

    name: str
    way: str
    arguments: dict[int, str] = field(
        default_factory=dict
    )  # notes on pointers, as the vocabulary has them
    result: str = ""
    rtnl: bool = False
    waits: str = ""
    frees: int | None = None
    lock: str = ""  # what a lock becomes
    reason: str = ""
    word: int | None = None  # of an atomic operation: the argument that points to the word
    publishes: bool = False  # from then on other code may run on what the user half has set
    enters: tuple[
        str, ...
    ] = ()  # patterns of the operations that the kernel calls before it returns
    task: bool = False  # means the task of the entry's caller
    prints: bool = False  # what goes beyond its parameters is only read, as a format has it
    allocates: Mapping[str, str] = field(default_factory=dict)

    @property
    def symbols(self) -> bool:
        """Whether functions of the driver are handed to it: the symbol table is needed."""
        return any(
            note.split()[-1] in ("function", "operations") for note in self.arguments.values()
        )


class Apis:
    """All lines of api.toml."""

    def __init__(self, table: dict[str, dict[str, dict[str, object]]]) -> None:
        lines = [_api(name, way, line) for way in WAYS for name, line in table.get(way, {}).items()]
        self.exact = {api.name: api for api in lines if not _pattern(api.name)}
        # A longer pattern says more, so it goes first.
        patterns = sorted(
            (api for api in lines if _pattern(api.name)), key=lambda api: -len(api.name)
        )
        self.patterns = [(re.compile(translate(api.name)), api) for api in patterns]
        self.variables = [
            (re.compile(translate(name)), str(line["way"]))
            for name, line in table.get("variable", {}).items()
        ]
        self.answered: dict[str, str] = {}
        self._found: dict[str, Api | None] = {}  # by symbol: it is asked again and again
        self.callbacks = {name: _notes(line) for name, line in table.get("callback", {}).items()}
        self.members = {name: str(line["is"]) for name, line in table.get("member", {}).items()}
        self.areas = {name: str(line["of"]) for name, line in table.get("area", {}).items()}
        self.packets = {
            name: str(line["reason"]) for name, line in table.get("packets", {}).items()
        }
        self.omitted = tuple(table.get("omit", {}))

    def of(self, symbol: str) -> Api | None:
        """What is known of a function; None: it must be asked for."""
        if symbol not in self._found:
            self._found[symbol] = self._find(symbol)
        return self._found[symbol]

    def _find(self, symbol: str) -> Api | None:
        plain = symbol.removesuffix("_noprof")  # memory accounting of Linux 6.10 renames allocators
        if plain in self.exact:
            return self.exact[plain]
        return next((api for pattern, api in self.patterns if pattern.match(plain)), None)

    def told(self, answers: Mapping[str, str]) -> Apis:
        """The table with what a person said of functions and variables that it lacks.

        Keys: "kernel NAME", "variable NAME".
        """
        more = copy(self)
        more._found = {}
        names = {
            key.removeprefix("kernel "): way
            for key, way in answers.items()
            if key.startswith("kernel ") and way in WAYS
        }
        more.exact = {
            name: Api(name, way) for name, way in names.items() if self.of(name) is None
        } | self.exact
        variables = {
            key.removeprefix("variable "): way
            for key, way in answers.items()
            if key.startswith("variable ")
        }
        more.answered = {name: way for name, way in variables.items() if way in VARIABLE_WAYS}
        return more

    def variable(self, name: str) -> str:
        """The way of a variable of the kernel; "" if it must be asked for."""
        if name in self.answered:
            return self.answered[name]
        return next((way for pattern, way in self.variables if pattern.match(name)), "")


@cache
def known() -> Apis:
    """The table that comes with the package."""
    text = resources.files("ring3_split.annotate").joinpath("api.toml").read_text()
    return Apis(tomllib.loads(text))


def _api(name: str, way: str, line: dict[str, object]) -> Api:
    frees, word, enters, allocates = (
        line.get(key) for key in ("frees", "word", "enters", "allocates")
    )
    return Api(
        name=name,
        way=way,
        arguments=_notes(line),
        result=str(line.get("result", "")),
        rtnl=bool(line.get("rtnl", False)),
        waits=str(line.get("waits", "")),
        frees=frees if isinstance(frees, int) else None,
        lock=str(line.get("as", "")),
        reason=str(line.get("reason", "")),
        word=word if isinstance(word, int) else None,
        publishes=bool(line.get("publishes", False)),
        enters=tuple(str(one) for one in enters) if isinstance(enters, list) else (),
        task=bool(line.get("task", False)),
        prints=bool(line.get("prints", False)),
        allocates={str(key): str(value) for key, value in allocates.items()}
        if isinstance(allocates, dict)
        else {},
    )


def _notes(line: dict[str, object]) -> dict[int, str]:
    return {int(key): str(note) for key, note in line.items() if key.isdigit()}


def _pattern(name: str) -> bool:
    return any(character in name for character in "*?[")
