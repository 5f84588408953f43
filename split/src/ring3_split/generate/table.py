"""The tables of the run time, as the generator holds them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ring3_split.annotate.border import Entry
from ring3_split.generate.declarations import Declared


@dataclass(frozen=True)
class Bound:
    """The values that a number, or each of an array, may have when the user half returns it."""

    offset: int  # in its field
    size: int
    count: int
    low: int
    high: int
    signed: bool
    nonzero: bool = False


@dataclass(frozen=True)
class Field:
    """A member that crosses."""

    path: str  # "u.es1370.ak4531"
    offset: int
    size: int
    kind: str = "DATA"
    written: bool = False
    type: str = ""  # of the object that it points to
    count: str = ""  # a function of `counts`
    bounds: tuple[Bound, ...] = ()
    requires: str = ""  # a function of `conditions`
    once: bool = False  # the user half may set it while it is zero only
    texts: tuple[int, ...] = ()  # where the last byte of each text in it lies


@dataclass(frozen=True)
class Parameter:
    """A parameter of an entry."""

    name: str
    kind: str = "DATA"
    type: str = ""
    count: str = ""
    written: bool = False
    inside: int = 0


@dataclass(frozen=True)
class Argument:
    """An argument or the result of a downcall."""

    way: str = "SCALAR"
    type: str = ""
    size: int = 0  # of a number
    counted: int = 0  # of COUNTED: the argument that says how many numbers there are
    reads: bool = False  # of COUNTED: the function does not write them


@dataclass
class Call:
    """A function that the user half calls in the kernel."""

    name: str
    declared: Declared
    arguments: list[Argument]
    result: Argument
    format: int = -1
    own: bool = False  # of the driver's kernel half
    undo: Undo | None = None
    requires: str = ""  # in C, of its parameters: what must be so before it is called
    ends: int | None = None  # the argument whose object it frees
    alone: bool = False  # no other such function runs meanwhile
    done: bool = False  # by its condition


@dataclass(frozen=True)
class Undo:
    """How what a function takes is given back.

    By another one, whose arguments are arguments of the first or, -1, its result.
    """

    by: str
    arguments: tuple[int, ...]
    key: int  # of these arguments, the one by which the two belong together
    statement: str = (
        ""  # in place of all this, C in which the first function's parameters have their names
    )


@dataclass
class Symbol:
    """A function or a variable that both halves know."""

    name: str
    address: str  # the linker's name
    size: int = 0
    type: str = ""


@dataclass
class Table:
    """All of it."""

    types: dict[str, int] = field(default_factory=dict)  # name -> size; a signature has none
    inside: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    outer: dict[str, tuple[str, int]] = field(
        default_factory=dict
    )  # what lies behind another in one allocation
    own: set[str] = field(
        default_factory=set
    )  # of which the user half has some in memory of its own
    entries: list[Entry] = field(default_factory=list)
    parameters: dict[str, list[Parameter]] = field(default_factory=dict)  # by entry
    views: dict[str, dict[str, list[Field]]] = field(default_factory=dict)  # by entry and type
    variables: dict[str, list[str]] = field(default_factory=dict)  # by entry
    reach: dict[str, set[str]] = field(
        default_factory=dict
    )  # by entry: names of all that its code calls
    working: set[str] = field(default_factory=set)  # entries that say what a work item runs
    again: frozenset[str] = frozenset()  # functions that the next user half does anew
    ensures: dict[str, str] = field(
        default_factory=dict
    )  # by the name of an entry's function: in C, what is so when it has succeeded
    freeing: set[str] = field(
        default_factory=set
    )  # entries that free what the user half has allocated
    calls: list[Call] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    counts: dict[str, tuple[str, str, str]] = field(
        default_factory=dict
    )  # name -> what it counts by, expression, unit
    conditions: dict[str, tuple[str, str, str]] = field(
        default_factory=dict
    )  # of members that come back, likewise
    refused: dict[str, str] = field(
        default_factory=dict
    )  # function or field -> why it cannot be had in the user half
