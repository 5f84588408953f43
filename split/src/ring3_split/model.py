"""The facts about a driver's code.

What the reader finds in one translation unit, and what all else stands on.

# Names
A *function id* is `path:name`, where path is the file that defines the function, relative to the
kernel tree. A static function of two files is two functions; an inline function of a header is one,
wherever it is compiled. A *field* is `struct.member` with the innermost named struct; a member of
an unnamed struct or union belongs to the struct around it, and the type of a named member whose own
type has no name is called `struct.member` itself (`sk_buff.cb` may thus be a struct's name).

# Version
`VERSION` counts up with every change to what is stored. Facts of another version are read anew,
never converted. The stored form is JSON, described in docs/split-facts.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

VERSION = 6


class Fact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of all facts: immutable, stored without defaults, and untracked by the collector.

    There are no cycles for the garbage collector to find.
    """


class Kind(StrEnum):
    """What a region of code holds."""

    SPIN = "spin"  # a spinlock or rwlock, preemption off
    SPIN_BH = "spin-bh"
    SPIN_IRQ = "spin-irq"
    IRQ_OFF = "irq-off"
    BH_OFF = "bh-off"
    PREEMPT_OFF = "preempt-off"
    RCU = "rcu"
    MUTEX = "mutex"  # mutex, rwsem held, semaphore: may sleep
    RTNL = "rtnl"

    @property
    def atomic(self) -> bool:
        """Whether code in such a region must not sleep."""
        return self not in (Kind.MUTEX, Kind.RTNL)


class Region(Fact, frozen=True):
    """Code that may hold a lock, from one place that takes it."""

    kind: Kind
    # the lock's field, variable or parameter; "?" when not known, "" when there is none (RCU,
    # interrupts off)
    lock: str
    line: int  # where it is taken
    lines: tuple[int, ...] = ()  # lines of this function that may run while it is held, sorted
    releases: tuple[int, ...] = ()  # lines where it is given back
    kept: bool = False  # the function may return with it held
    # Of a mutex: the member of the outer struct in which its struct was reached, if that is known.
    # `lock` stays what tells locks apart, because the same one may be reached by a pointer, too.
    within: str = ""

    @property
    def name(self) -> str:
        """The lock as a person knows it: by the member that it lies in."""
        return f"{self.within}.{self.lock.rpartition('.')[2]}" if self.within else self.lock


class Given(Fact, frozen=True):
    """A lock that a function gives back and has not taken: its caller's."""

    kind: Kind
    lock: str  # as of a region
    line: int


class Call(Fact, frozen=True):
    """A direct call."""

    callee: str  # symbol, as linked
    line: int
    held: tuple[int, ...] = ()  # indexes into the function's regions: what may be held


class Indirect(Fact, frozen=True):
    """A call through a pointer."""

    signature: int  # clang's kCFI hash of the pointer's type
    line: int
    field: str = ""  # the field that the pointer was loaded from; "" when it was not a field
    parameter: int = -1  # or the parameter that it came in by
    held: tuple[int, ...] = ()
    variable: str = (
        ""  # or the global variable (a pointer, or a table of pointers) that it was loaded from
    )


class Stored(Fact, frozen=True):
    """A function whose address is taken: where it goes."""

    function: str  # symbol
    line: int
    field: str = ""  # stored to this field, by code or by an initialiser
    api: str = ""  # or passed to this function ...
    argument: int = -1  # ... as this argument, from 0
    object: str = ""  # the variable that is initialised, if any: "e1000_netdev_ops"
    # The member that the object lies in which gets the function: "e1000_adapter.watchdog_task" of
    # its work_struct.func, or of the timer that is passed as the first argument beside it.
    owner: str = ""


class Access(Fact, frozen=True):
    """A field that is touched. One for each field, way and path; lines are all places."""

    field: str
    way: Literal["r", "w", "a"]  # read, written, address taken (array members decay to "a")
    lines: tuple[int, ...]
    within: str = ""  # the field of the outer struct by which an embedded struct was reached, if so
    base: str = (
        ""  # where the object came from: "param N", "call F", "global G", "field S.M", "local T"
    )
    # Of an address: where it goes, "callee:N" (":N" of a call through a pointer), "field S.M",
    # "global G", "return" or "assembly"; "" when it goes where nobody knows.
    to: str = ""


class Parameter(Fact, frozen=True):
    """A parameter, as the source declares it."""

    name: str
    type: str  # as C writes it, typedefs resolved to their names only


class Allocation(Fact, frozen=True):
    """Memory that is asked for."""

    api: str
    line: int
    # As an expression of constants, sizeof, fields and parameters: "e1000_tx_ring.count *
    # sizeof(struct e1000_tx_buffer)".
    size: str = ""
    type: str = ""  # struct that the result is used as
    into: str = ""  # field, global or parameter that receives it


class Shape(Fact, frozen=True):
    """Evidence of how a pointer is used."""

    # flow: it is handed on, as an argument ("callee:2"), into a field ("field S.M"), or as the
    # result ("return") interior: it is set to an address inside of what another pointer points to,
    # or of a member ("field S.M + index")
    what: Literal[
        "index",
        "arithmetic",
        "list",
        "container",
        "string",
        "user",
        "cast",
        "handle",
        "flow",
        "interior",
    ]
    pointer: str  # "field S.M", "param N", "global G", "call F"
    line: int
    # "< bound" or index expression, struct.member around it, struct that it is cast to, API; where
    # it flows
    detail: str = ""


class Handed(Fact, frozen=True):
    """The address of a global variable, and where it goes."""

    variable: str
    to: str  # as of an access
    line: int


class Used(Fact, frozen=True):
    """What becomes of a number or pointer that was read."""

    value: str  # "field S.M", "param N", "call F"
    what: Literal[
        "index",
        "pointer",
        "divisor",
        "shift",
        "length",
        "loop",
        "compared",
        "argument",
        "stored",
        "returned",
        "assembly",
    ]
    line: int
    # index: "< bound", or the index itself; length, argument: "callee:N"; stored: "field S.M";
    # compared: with what
    detail: str = ""
    count: int = 0  # index: elements of the array, 0 when they are not known
    mask: int = (
        -1
    )  # the most that is left of the value on its way, by a mask or a remainder; -1: it is not cut
    derived: bool = (
        False  # it was computed with on its way: the use is not of the number that was read
    )


class Assigned(Fact, frozen=True):
    """What a function stores to a field: the range, as far as it is known without running it."""

    field: str
    line: int
    low: int | None = None
    high: int | None = None
    text: str = ""  # the number, or where it came from: "param 1", "field S.M", "call F"


class Function(Fact, frozen=True):
    """A function that is defined in a translation unit."""

    name: str
    file: str
    line: int
    end: int  # last line, at least `line`
    first: int = 0  # where its declaration begins, if that is above `line`; 0: there
    static: bool = False
    inline: bool = False  # declared inline
    section: str = ""  # ".init.text"
    signature: int | None = (
        None  # kCFI hash, when its address is taken somewhere in the unit or it is not static
    )
    returns: str = "void"
    parameters: tuple[Parameter, ...] = ()
    variadic: bool = False
    calls: tuple[Call, ...] = ()
    indirect: tuple[Indirect, ...] = ()
    stored: tuple[Stored, ...] = ()  # addresses of functions that its code takes
    regions: tuple[Region, ...] = ()
    given: tuple[Given, ...] = ()
    assembly: tuple[int, ...] = ()  # lines with inline assembly of its own file
    percpu: tuple[int, ...] = ()  # lines that use per-CPU data

    @property
    def id(self) -> str:
        """Its function id."""
        return f"{self.file}:{self.name}"


class Unit(Fact, frozen=True):
    """What study, graph and plan need of one translation unit."""

    version: int
    source: str  # relative to the kernel tree
    functions: tuple[Function, ...]
    stored: tuple[Stored, ...] = ()  # by initialisers of static objects
    exports: tuple[str, ...] = ()  # EXPORT_SYMBOL
    aliases: dict[str, str] = {}  # init_module -> e1000_init_module
    parameters: tuple[str, ...] = ()  # module parameters
    structs: dict[
        str, str
    ] = {}  # file that defines each struct that a field of `stored` or `indirect` belongs to
    declared: dict[
        str, int
    ] = {}  # kCFI hash of the functions that it only declares and whose address it takes


class Member(Fact, frozen=True):
    """A member of a struct."""

    name: str
    type: str
    offset: int  # bytes
    size: int  # bytes; 0 for a flexible array
    bits: tuple[int, int] | None = None  # bit offset in the struct and width, of a bit field
    count: int | None = None  # elements, of an array
    pointee: str = (
        ""  # struct that it points to: "net_device"; "fn" for a function pointer; "void"; "char"
    )
    struct: str = ""  # struct that it is, when embedded (or an array of)
    union: int = 0  # members of one unnamed union in the struct share a number above 0
    line: int = 0  # in the file of its struct


class Layout(Fact, frozen=True):
    """A struct or union as the compiler lays it out."""

    name: str
    file: str
    line: int
    size: int
    members: tuple[Member, ...]
    union: bool = False


class Variable(Fact, frozen=True):
    """A global variable."""

    type: str = ""  # as C writes it; "" of one that is only declared
    file: str = ""
    line: int = 0
    external: bool = False  # only declared: another unit, or the kernel, has it


class Data(Fact, frozen=True):
    """What plan and annotate need of one translation unit beyond `Unit`, keyed by function id.

    Stored in a file of its own.
    """

    version: int
    source: str
    accesses: dict[str, tuple[Access, ...]] = {}
    allocations: dict[str, tuple[Allocation, ...]] = {}
    shapes: dict[str, tuple[Shape, ...]] = {}
    globals: dict[str, dict[str, str]] = {}  # function id -> global variable -> "r", "w", "rw", "a"
    variables: dict[str, Variable] = {}  # those, and what the unit defines for others
    layouts: dict[str, Layout] = {}  # structs that are accessed, and what they embed
    handed: dict[str, tuple[Handed, ...]] = {}  # addresses of variables that leave the function
    used: dict[str, tuple[Used, ...]] = {}  # what values that are read become
    assigned: dict[str, tuple[Assigned, ...]] = {}  # what fields are set to
    through: dict[
        str, dict[str, str]
    ] = {}  # by function id and number of a parameter: what is done to what it points to


class Failure(Fact, frozen=True):
    """A translation unit that could not be read, and why."""

    source: str
    reason: str  # first error of the compiler, with its file and line


class Module(Fact, frozen=True):
    """One loadable module: what the kernel's own build description says of it."""

    name: str  # "e1000", with dashes as the file has them
    directory: str  # "drivers/net/ethernet/intel/e1000"
    sources: tuple[str, ...]  # relative to the tree
    skipped: dict[
        str, str
    ] = {}  # objects that are not C (assembly, firmware, generated and not there): object -> reason
    builtin: bool = False  # linked into the kernel (=y), not a file of its own


class ModuleFacts(Fact, frozen=True):
    """A module with the facts of its units."""

    module: Module
    units: tuple[Unit, ...]
    failures: tuple[Failure, ...] = ()
