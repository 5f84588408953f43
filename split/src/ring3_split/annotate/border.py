"""The form of a border.

What the halves of a plan call of each other, and which fields each touches.

Everything here is stored as JSON for the code generator; docs/split.md says what each field means.
"""

from __future__ import annotations

import msgspec

Ways = dict[str, str]  # field or global -> "r", "w" or "rw"


class Parameter(msgspec.Struct, omit_defaults=True):
    """A parameter of a function at the border."""

    name: str
    type: str


class Entry(msgspec.Struct, omit_defaults=True):
    """A user function that the kernel or the kernel half calls: an upcall."""

    function: str
    where: str  # path:line
    returns: str
    parameters: list[Parameter]
    called_by: list[
        str
    ]  # "net_device_ops.ndo_open", "request_irq:1", or the id of a function of the kernel half
    functions: int  # user functions of the driver that it may run, itself included
    reads: list[str]  # fields
    writes: list[str]
    # By struct: bytes to copy to the user half, (offset, size). What may be written is among them,
    # to be compared with later.
    copy_in: dict[str, list[tuple[int, int]]] = {}
    # By struct: bytes that may come back, a range for each member: one that is as it was sent does
    # not go back.
    copy_out: dict[str, list[tuple[int, int]]] = {}
    whole: list[
        str
    ] = []  # structs of which it reads members by computed offsets: no list of fields is complete
    calls: list[str] = []  # functions of the kernel that its code may call in the user half
    variables: Ways = {}  # the driver's and the kernel's variables that its code touches
    frozen: str = ""  # why the kernel calls it when no process can run; "" when it does not
    # it may be called before any process runs, when the driver is not a module or is loaded early
    boot: bool = False
    failure: str = ""  # what it returns when the user half cannot be asked; "" of void
    rearm: list[
        Rearm
    ] = []  # how it has itself called again: the kernel half does so when the user half has died
    # downcalls that it may make and that need the task of its caller: copy_from_user, capable
    task: list[str] = []


class Rearm(msgspec.Struct, omit_defaults=True):
    """A place where an entry has itself called again."""

    by: str  # "schedule_delayed_work"
    object: str  # "e1000_adapter.watchdog_task"
    where: str  # path:line


class Allocated(msgspec.Struct, omit_defaults=True):
    """An object that a downcall makes: the tracker learns of it there."""

    struct: str = ""  # "snd_card"; "" of bytes
    at: str = "result"  # "result", or "argument N" that receives the pointer
    size: str = ""  # of bytes, or of what it has behind it for the driver
    private: str = ""  # how the driver's part is found: a field, or a function such as netdev_priv
    freed: str = ""  # by which function, or "device": with it


class Downcall(msgspec.Struct, omit_defaults=True):
    """A function that the user half calls and that runs in the kernel."""

    function: str  # id of a driver's function, or symbol of the kernel
    way: str  # "driver", one of api.toml, or "?"
    sites: list[str]  # path:line
    reason: str = ""
    rtnl: bool = False
    waits: str = ""
    symbols: bool = False  # functions of the driver are handed to it
    arguments: dict[
        int, str
    ] = {}  # notes of api.toml on pointers; one without is an object that the tracker knows
    result: str = ""
    frees: int | None = None  # the argument whose object is gone afterwards
    returns: str = ""  # its prototype, where the source declares it
    parameters: list[Parameter] = []
    variadic: bool = False
    # How far the sets below go: "code", what the driver's functions there touch; "arguments", what
    # the kernel reaches from its arguments; "all", everything that both halves touch, because other
    # code may run on it from then on.
    scope: str = ""
    reads: list[
        str
    ] = []  # fields that the user half may have set and that must be seen in the kernel
    writes: list[str] = []  # fields that may have changed there and that the user half reads
    copy_out: dict[
        str, list[tuple[int, int]]
    ] = {}  # bytes of `reads`, for each member, that go to the kernel before it, if changed
    copy_in: dict[str, list[tuple[int, int]]] = {}  # bytes of `writes` that come back after it
    runs: list[str] = []  # the driver's functions that the kernel calls before it returns
    allocates: Allocated | None = None
    task: bool = False  # it must run in the task of the entry's caller
    word: int | None = None  # of way "atomic": the argument that is the word


class Use(msgspec.Struct, omit_defaults=True):
    """A member that the user half touches."""

    type: str
    offset: int
    size: int
    user: str  # "r", "w", "rw"
    kernel: str = ""  # the same, of the driver's kernel half
    bits: tuple[int, int] | None = None
    struct: str = ""  # an embedded struct, which has uses of its own
    atomic: bool = False  # changed by atomic operations: never copied back, see `words`


class Type(msgspec.Struct, omit_defaults=True):
    """A struct of which the user half touches members."""

    where: str
    size: int
    count: int  # members
    members: dict[str, Use]
    behind: str = ""  # the struct behind which it lies in one allocation: "net_device"
    by: str = ""  # the function that leads here from there: "netdev_priv"


class Shared(msgspec.Struct, omit_defaults=True):
    """A global variable that the user half touches."""

    user: str  # "r", "w", "rw"
    kernel: str = ""  # the same, of the driver's kernel half
    type: str = ""
    where: str = ""  # "" of a variable of the kernel
    way: str = ""  # of a variable of the kernel: one of api.toml, or "?"
    users: list[str] = []  # of a variable of the kernel: the functions that touch it


class Word(msgspec.Struct, omit_defaults=True):
    """A member that atomic operations change: both halves mean one word, wherever it is."""

    # "shared": in the kernel, changed by downcall or in memory that both halves map; "local": the
    # user half's alone
    place: str
    operations: list[str]  # that user functions use on it
    sites: list[str]


class Kept(msgspec.Struct, omit_defaults=True):
    """A variable whose address user functions hand to the kernel, which may keep it."""

    type: str
    where: str
    to: list[str]  # "snd_pcm_hw_constraint_ratnums:3", "field snd_kcontrol_new.tlv"
    sites: list[str]
    keeps: bool = True  # whether the kernel may use it after it returned
    functions: bool = False  # functions are stored in it: a table of operations
    # "w" the driver's code writes it, "a" it gives its address away elsewhere, and it is not const
    writable: str = ""


class Interior(msgspec.Struct, omit_defaults=True):
    """A pointer member that points inside of another one's target or to a member of an object."""

    inside: str  # "field rtl8139_private.tx_bufs", or "member e1000_adapter.napi"
    offset: str = ""
    where: str = ""


class Taker(msgspec.Struct, omit_defaults=True):
    """A function that takes a lock."""

    function: str
    half: str
    where: str
    contexts: list[
        str
    ] = []  # "atomic: request_irq:1", "process: net_device_ops.ndo_open": how the kernel comes here


class Lock(msgspec.Struct, omit_defaults=True):
    """A lock of the driver, or rtnl, that the user half takes or would take."""

    kinds: list[str]  # as of regions: "spin-irq", "mutex", "rtnl"
    takers: list[Taker]
    # "local": of the user half alone; "downcall": taken in the kernel for the thread that runs;
    # "combolock"; "kernel"
    way: str
    on_death: str = ""  # what must happen when the user half dies while it holds it
    combolock: str = ""  # of a spinlock: "" when it can be one, or why not
    hold_off: list[
        str
    ] = []  # entries that take it in atomic context and must not run while the user half holds it


class Check(msgspec.Struct, omit_defaults=True):
    """A member that the user half writes and the kernel half reads.

    What for, and what is to be checked when it comes back.
    """

    uses: list[str]  # "index path:line: table[16]", ...
    kinds: list[
        str
    ]  # "index", "pointer", "divisor", "shift", "length", "loop", "dma", "compared", ...
    check: str = ""  # "pointer", "function", "range", "nonzero", ...; "" when any value is harmless
    low: int | None = (
        None  # the range that the user half's code can produce, or that the use allows
    )
    high: int | None = None
    limit: str = ""  # of an index or length: what it must be below, when that is no number
    source: str = ""  # where the range comes from: "array", "assigned", "type", "use"
    remains: str = ""  # what no check covers; "" when nothing remains


class Interface(msgspec.Struct):
    """The border of a plan."""

    driver: str
    kernel: str
    entries: list[Entry]  # upcalls
    downcalls: list[Downcall]  # what the user half calls in the kernel
    types: dict[str, Type]  # struct -> members that the user half touches
    variables: dict[str, Shared]  # global variables that the user half touches
    words: dict[str, Word] = {}  # members that user functions change by atomic operations
    kept: dict[str, Kept] = {}  # variables whose address user functions give to the kernel
    # Pointer member -> what it points inside of.
    interior: dict[str, list[Interior]] = {}
    locks: dict[str, Lock] = {}  # that the user half takes or would take
    checks: dict[str, Check] = {}  # members that the user half writes and the kernel half reads
