"""What crosses, in the form of the run time's tables.

Types, views of entries, downcalls, symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ring3_split.annotate.addresses import Addresses
from ring3_split.annotate.border import Check, Entry
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.survey import Survey
from ring3_split.annotate.vocabulary import Annotation, read
from ring3_split.context import Stated
from ring3_split.errors import Refusal
from ring3_split.generate.conditions import Condition, required
from ring3_split.generate.fields import ELEMENTS, KERNELS, Views
from ring3_split.generate.statics import statics, through
from ring3_split.generate.table import Parameter, Table
from ring3_split.generate.units import Unit
from ring3_split.model import Access, Layout, Member
from ring3_split.plan.file import Plan, Recovery

CALL = re.compile(r"\b(\w+)\s*\(")
SIZE_OF = re.compile(r"sizeof\(struct (\w+)\)")
ALIGNMENT = (
    32  # of what lies behind a net_device that does not say where [linux/netdevice.h: NETDEV_ALIGN]
)


@dataclass(frozen=True)
class Wishes:
    """What a person says.

    Answers to questions, and what a plan says of single functions beside their places.
    """

    answers: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(
        default_factory=dict
    )  # "my_ops.poll" -> who answers where nobody may be asked
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # member -> least and most
    without: Mapping[str, str] = field(default_factory=dict)  # function id -> "refuse" or "later"
    undo: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, str] = field(
        default_factory=dict
    )  # function or member -> condition, before it is called or set
    ensures: Mapping[str, str] = field(
        default_factory=dict
    )  # entry -> condition, when it has succeeded
    before: Mapping[str, str] = field(
        default_factory=dict
    )  # entry -> statement, before the user half is asked
    failed: Mapping[str, str] = field(default_factory=dict)  # function -> statement
    recovery: Mapping[str, Recovery] = field(default_factory=dict)  # by struct
    maps: bool = False  # registers are mapped into the user half
    combolocks: frozenset[str] = frozenset()  # spinlocks that both halves take
    contexts: Mapping[str, Stated] = field(default_factory=dict)
    again: frozenset[str] = frozenset()  # functions that the next user half does anew
    once: frozenset[str] = frozenset()  # members that are set while they are zero, and never again
    alone: frozenset[str] = frozenset()  # functions of the kernel half of which one runs at a time
    nullable: frozenset[str] = (
        frozenset()
    )  # "function(parameter)" that the user half may call with NULL there

    @staticmethod
    def of(plan: Plan, answers: Mapping[str, str]) -> Wishes:
        """Those of a plan."""
        return Wishes(
            answers,
            {name: one.instead for name, one in plan.contexts.items() if one.instead},
            plan.limits,
            {key: one.without for key, one in plan.functions.items() if one.without},
            plan.undo,
            plan.requires,
            plan.ensures,
            plan.before,
            plan.failed,
            plan.recovery,
            plan.mmio.map,
            frozenset(plan.combolocks),
            plan.contexts,
            frozenset(plan.again),
            frozenset(plan.once),
            frozenset(plan.alone),
            frozenset(plan.nullable),
        )


class Border:
    """Makes the table of a survey."""

    def __init__(self, survey: Survey, units: list[Unit], wishes: Wishes) -> None:
        self.survey, self.units, self.wishes = survey, units, wishes
        self.layouts = survey.layouts
        self.addresses = Addresses(survey.halves, survey.halves.graph.driver.data, survey.layouts)
        self.table = Table()
        self.accesses: dict[str, tuple[Access, ...]] = {}
        for data in survey.halves.graph.driver.data:
            self.accesses = {**data.accesses, **self.accesses}
        self.mutexes = {
            region.lock for _, one in survey.halves.graph.owned() for region in one.regions
        }
        self.statics = statics(survey, self.accesses)
        self.pointers: set[str] = set()  # "function(parameter)" of all calls
        self.settled: set[str] = set()  # of the members that are set once, those that cross so
        self.told: set[str] = set()  # pointers to void that lead each entry by itself to one struct
        self._places: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        self.settable: set[str] = set()  # members of which the plan requires something
        # One allocation of two structs is one object: the first one -> (the second one, its
        # offset).
        self.behind = self._behind()
        # A struct of the driver's that only ever lies in one other: a pointer to it leads into that
        # one.
        self.embedded = self._embedded()
        self.outer = {inner for inner, _ in self.behind.values()} | self.embedded.keys()

    def _owns(self, layout: Layout) -> bool:
        """Whether a struct is defined beside the driver."""
        return layout.file.rpartition("/")[0] in {
            part.module.directory for part in self.survey.halves.graph.driver.modules
        }

    def _embedded(self) -> dict[str, tuple[str, int]]:
        graph = self.survey.halves.graph
        allocated = {
            one.type.removeprefix("struct ")
            for d in graph.driver.data
            for each in d.allocations.values()
            for one in each
        }
        found: dict[str, list[tuple[str, int]]] = {}
        for name, layout in self.layouts.structs.items():
            for member in layout.members:
                inner = self.layouts.get(member.struct) if member.struct else None
                if inner and "." not in member.struct and self._owns(inner):
                    found.setdefault(member.struct, []).append(
                        (name, -1 if member.count else member.offset)
                    )
        alone = {
            name: places[0]
            for name, places in found.items()
            if len(places) == 1 and name not in allocated
        }
        return {
            name: place for name, place in alone.items() if place[1] >= 0 and "." not in place[0]
        }

    def _behind(self) -> dict[str, tuple[str, int]]:
        found = {}
        for name, kind in self.survey.border.types.items():
            layout = self.layouts.get(kind.behind) if kind.behind else None
            if layout:
                found[kind.behind] = name, _end(layout)
        return found

    # Annotations.

    def annotation(self, key: str) -> Annotation | None:
        """What a pointer stands for: what a person said, or what was inferred."""
        if key in self.wishes.answers:
            return read(self.wishes.answers[key]).annotation
        found = self.survey.inferred.get(key)
        return found.annotation if found else None

    def shapes(self, code: Iterable[str], what: str, pointer: str) -> set[str]:
        """What these functions use a pointer as."""
        found = set()
        for data in self.survey.halves.graph.driver.data:
            for function in code:
                found |= {
                    s.detail
                    for s in data.shapes.get(function, ())
                    if s.what == what and s.pointer == pointer
                }
        return found

    def through(self, function: str, number: int) -> str:
        """What a function of the driver does to what one of its parameters points to.

        "r", "w", "rw".
        """
        return self.addresses.parameter(function, number)

    def cast(self, code: Iterable[str], name: str) -> str:
        """The one struct that these functions use a `void *` member as."""
        found = self.shapes(code, "cast", f"field {name}")
        return found.pop().removeprefix("struct ") if len(found) == 1 else ""

    def pointed(self, name: str) -> set[str]:
        """The structs with known layouts that a member without a struct of its own is used as."""
        said = self.annotation(name)
        graph = self.survey.halves.graph
        found = {
            one.removeprefix("struct ")
            for one in self.shapes([key for key, _ in graph.owned()], "cast", f"field {name}")
        }
        return {one for one in {*found, said.type if said else ""} if one in self.layouts.structs}

    def check(self, name: str) -> Check | None:
        """What is to be checked of a member that comes back.

        What a person says goes before what was derived.
        """
        if name in self.wishes.limits:
            low, high = self.wishes.limits[name]
            return Check([], [], "range", low, high)
        return self.survey.border.checks.get(name)

    def shared_word(self, name: str) -> bool:
        """Whether a member is the driver's own word that the user half changes atomically."""
        if name not in self.survey.border.words:
            return False
        layout = self.layouts.get(name.partition(".")[0])
        return layout is not None and self._owns(layout)

    def own_list(self, name: str) -> bool:
        """Whether a member is a head or link of a list in a struct of the driver's that crosses."""
        struct = name.rpartition(".")[0]
        member, layout = self.layouts.member(name), self.layouts.get(struct)
        listed = member is not None and member.struct == "list_head"
        return (
            listed
            and layout is not None
            and self._owns(layout)
            and struct in self.survey.border.types
        )

    def lent(self, code: Iterable[str]) -> set[str]:
        """Structs that these functions have on their stack and call down with.

        For the call each is an object of its own.
        """
        graph, halves = self.survey.halves.graph, self.survey.halves
        touched = [access for one in code for access in self.accesses.get(one, ())]
        local = {
            access.field.partition(".")[0] for access in touched if access.base.startswith("local ")
        }
        called = {
            callee
            for one in code
            for callee in graph.calls.get(one, {})
            if callee in halves.kernel - halves.user
        }
        handed = [
            pointee(parameter.type)
            for callee in called
            for parameter in graph.functions[callee].parameters
        ]
        return local & {target[1] for target in handed if target}

    def allocated(self, code: Iterable[str]) -> set[str]:
        """Structs that these functions ask for memory for.

        Not those that a function of the kernel makes.
        """
        apis, data = self.survey.halves.apis, self.survey.halves.graph.driver.data
        asked = [
            one for function in code for unit in data for one in unit.allocations.get(function, ())
        ]
        own = [
            one for one in asked if (api := apis.of(one.api)) is not None and api.way == "memory"
        ]
        return {one.type for one in own} | {
            struct for one in own for struct in SIZE_OF.findall(one.size)
        }

    def crossing(self) -> set[str]:
        """Structs that cross: of entry parameters and of variables that the user half sets."""
        names = set(self.survey.border.types) | set(self.statics.values())
        for entry in self.survey.border.entries:
            for parameter in entry.parameters:
                target = pointee(parameter.type)
                if target and target[1]:
                    names.add(target[1])
        return {name.split(".", maxsplit=1)[0] for name in names}

    # Types.

    def type_of(self, name: str) -> str:
        """A type of the table by the name of a struct."""
        if name and name not in self.table.types:
            layout = self.layouts.get(name)
            self.table.types[name] = layout.size if layout else 0
            self.table.inside[name] = []
            if layout:
                self._inside(name, layout.members)
            if name in self.embedded:
                around, place = self.embedded[name]
                self.table.outer[name] = self.type_of(around), place
            if name in self.behind:
                inner, offset = self.behind[name]
                self.table.types[name] = offset + self.table.types[self.type_of(inner)]
                self.table.inside[name].append((inner, offset))
                self.table.outer[inner] = name, offset
        return name

    def measure(self) -> None:
        """Asks the compiler for sizes of types whose layout the facts lack, once a unit."""
        waiting = [
            name for name, size in self.table.types.items() if not size and name.isidentifier()
        ]
        for unit in self.units:
            names = [name for name in waiting if name in unit.declared.structs]
            waiting = [name for name in waiting if name not in names]
            for name, size in zip(
                names, unit.numbers([f"sizeof(struct {name})" for name in names]), strict=True
            ):
                self.table.types[name] = size

    def places_of(self, tag: str, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Offset and size of members, as the compiler has them.

        Nothing if no unit defines the struct.

        A member of the structs in an array has a place in each: `stats.index` is at
        `stats[0].index`, `stats[1].index` ...
        """
        unit = next((unit for unit in self.units if tag in unit.declared.structs), None)
        if unit is None:
            return {}
        asked = sorted(path for path in paths if (tag, path) not in self._places)
        try:
            found = {path: {path: place} for path, place in _places(unit, tag, asked).items()}
        except Refusal:
            # An array of structs is on the way of one of them.
            found = {path: self._element_places(unit, tag, path) for path in asked}
        self._places |= {(tag, path): places for path, places in found.items()}
        return {name: place for path in paths for name, place in self._places[tag, path].items()}

    def _element_places(self, unit: Unit, tag: str, path: str) -> dict[str, tuple[int, int]]:
        try:
            return _places(unit, tag, _elements(unit, tag, path))
        except Refusal:
            self.table.refused[f"{tag}.{path}"] = (
                "the compiler gives it no offset: what uses it belongs into the kernel half"
            )
            return {}

    def _takes(self, name: str, member: Member) -> bool:
        """Whether a mutex is the driver's, not one of kernel data, such as device.mutex."""
        layout = self.layouts.get(name)
        return f"{name}.{member.name}" in self.mutexes or bool(layout and self._owns(layout))

    def _inside(self, name: str, members: Iterable[Member]) -> None:
        for member in members:
            if f"{name}.{member.name}" in self.wishes.combolocks:
                self.table.types.setdefault("combolock", 0)
                self.table.inside[name].append(("combolock", member.offset))
                continue
            layout = self.layouts.get(name)
            if member.struct == "list_head" and not (layout and self._owns(layout)):
                continue  # a list of the kernel's is not the user half's to change
            mutex = member.struct == "mutex" and self._takes(name, member)
            if (
                member.struct
                and "." not in member.struct
                and (mutex or (member.struct in self.layouts and member.struct != "mutex"))
            ):
                each = member.size // (member.count or 1)
                for number in range(min(member.count or 1, ELEMENTS)):
                    self.table.inside[name].append(
                        (self.type_of(member.struct), member.offset + number * each)
                    )

    def signature(self, declared: str) -> str:
        """The type of functions that a pointer of this declaration leads to."""
        if "(*)" not in declared:
            return ""
        text = " ".join(declared.split())
        self.table.types.setdefault(text, 0)
        self.table.inside.setdefault(text, [])
        return text

    # Lengths.

    def count(self, name: str, length: str, base: int, *, numbers: bool) -> str:
        """A function that counts by members beside the pointer, in a struct at the object's `base`.

        Memory of numbers crosses as bytes: of those it counts the bytes.
        """
        struct = name.partition(".")[0]

        def member(match: re.Match[str]) -> str:
            return f"this->{match[0]}" if self.layouts.member(f"{struct}.{match[0]}") else match[0]

        text = re.sub(r"(?<![\w.>])[A-Za-z_]\w*", member, length)
        if numbers:
            text = f"({text}) * sizeof(*this->{name.partition('.')[2]})"
        return self._counting(_inner(struct, "this", base), text, self._knowing(struct).source)

    def _knowing(self, struct: str) -> Unit:
        return next((unit for unit in self.units if struct in unit.declared.structs), self.units[0])

    def _counting(self, declaration: str, expression: str, source: str) -> str:
        """A function in the unit that knows what the expression speaks of."""
        return _function(self.table.counts, "split_count", (declaration, expression, source))

    def condition(self, name: str, base: int) -> str:
        """A function that says whether a member may be set.

        What is required of `object`, in which it lies, and `value`.
        """
        usual = required().get(name, Condition()).holds
        if name in self.wishes.requires:
            self.settable.add(name)
        elif not usual:
            return ""
        struct, _, member = name.partition(".")
        found = self.layouts.member(name)
        kind = "unsigned long" if found and found.bits else f"__typeof__(object->{member})"
        wanted = (
            f"{_inner(struct, 'object', base)}\n\t{kind} value = ({kind})given;",
            self.wishes.requires.get(name, usual),
            self._knowing(struct).source,
        )
        return _function(self.table.conditions, "split_settable", wanted)

    def forget_conditions(self) -> None:
        """Those of structs that cross only as a part of another one."""
        views = [fields for views in self.table.views.values() for fields in views.values()]
        asked = {one.requires for fields in views for one in fields}
        self.table.conditions = {
            name: body for name, body in self.table.conditions.items() if name in asked
        }

    @cached_property
    def called_in_text(self) -> dict[str, list[tuple[str, int]]]:
        """Where the driver's text has a name and "(": by name, a unit's text and the place behind.

        One pass over each text: a pass for each function of the kernel takes most of a second.
        """
        found: dict[str, list[tuple[str, int]]] = {}
        for unit in self.units:
            for place in CALL.finditer(unit.code):
                found.setdefault(place[1], []).append((unit.code, place.end()))
        return found

    # Entries.

    def entry(self, entry: Entry) -> None:
        """Adds an entry."""
        code = self.survey.halves.reachable(entry.function)
        self.table.entries.append(entry)
        self.table.own |= self.lent(code) | self.allocated(code)
        self.table.parameters[entry.function] = [
            self._parameter(entry, number) for number in range(len(entry.parameters))
        ]
        self.table.views[entry.function] = Views(self, code, entry.writes).all()
        self.table.variables[entry.function] = self._variables(code)
        self.table.reach[entry.function] = called = self._called(code)
        if any(
            stored.field == "work_struct.func"
            for one in code
            for stored in self.survey.halves.graph.functions[one].stored
        ):
            self.table.working.add(entry.function)
        if any(
            (api := self.survey.halves.apis.of(name)) is not None
            and api.way == "memory"
            and api.frees is not None
            for name in called
        ):
            self.table.freeing.add(entry.function)

    def _called(self, code: set[str]) -> set[str]:
        """What the code of an entry calls that is not in it, by name."""
        graph = self.survey.halves.graph
        found: set[str] = set()
        for function in code:
            found |= graph.external.get(function, {}).keys()
            found |= {
                graph.functions[callee].name
                for callee in graph.calls.get(function, {})
                if callee not in code
            }
        return found

    def _parameter(self, entry: Entry, number: int) -> Parameter:
        one = entry.parameters[number]
        target = pointee(one.type)
        if target is None:
            return Parameter(one.name)
        said = self.annotation(f"{entry.function}({one.name})")
        struct = (said.type if said else "") or target[1]
        word = said.word if said else ""
        if target[1] in KERNELS:
            return self._container(entry, number)
        if said and word in ("bytes", "array"):
            kind = "bytes" if word == "bytes" or not struct else self.type_of(struct)
            # Memory of numbers crosses as bytes.
            each = f" * sizeof(*{one.name})" if word == "array" and kind == "bytes" else ""
            length = f"({said.length}){each}" if each else said.length
            count = self._counting(_declared(entry), length, entry.function.rpartition(":")[0])
            return Parameter(one.name, "POINTER", kind, count, written=said.direction != "in")
        if word == "string":
            return Parameter(one.name, "POINTER", "bytes", "split_string")
        return Parameter(
            one.name, "POINTER" if word == "single" and struct else "OPAQUE", self.type_of(struct)
        )

    def _container(self, entry: Entry, number: int) -> Parameter:
        """A work item or a timer: the entry is about the object that it lies in."""
        one = entry.parameters[number]
        found = self.shapes([entry.function], "container", f"param {number}")
        tag, _, path = found.pop().partition(".") if len(found) == 1 else ("", "", "")
        place = self.places_of(tag, [path]).get(path) if path else None
        if place is None:
            return Parameter(one.name, "OPAQUE")
        return Parameter(one.name, "POINTER", self.type_of(tag), inside=place[0])

    def _variables(self, code: set[str]) -> list[str]:
        """Variables of the driver that the code reads and that are no constants.

        Parameters of the module above all.
        """
        found = {name for name in self.statics if through(name, code, self.accesses)}
        for data in self.survey.halves.graph.driver.data:
            for function in code:
                for name in data.globals.get(function, {}):
                    shared = self.survey.border.variables.get(name)
                    plain = (
                        shared
                        and shared.where
                        and not re.search(r"\bconst\b|\bstruct\b", shared.type)
                    )
                    if plain and "." not in name:
                        found.add(name)
        return sorted(found)


def _end(layout: Layout) -> int:
    """Where what lies behind a struct begins.

    At the array without a length that it ends in, if it does.
    """
    last = layout.members[-1] if layout.members else None
    if last is not None and not last.size and last.type.endswith("[]"):
        return last.offset
    return -(-layout.size // ALIGNMENT) * ALIGNMENT


def _places(unit: Unit, tag: str, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    questions = [
        q
        for name in names
        for q in (f"offsetof(struct {tag}, {name})", f"sizeof(((struct {tag} *)0)->{name})")
    ]
    numbers = unit.numbers(questions)
    return {name: (numbers[2 * n], numbers[2 * n + 1]) for n, name in enumerate(names)}


def _elements(unit: Unit, tag: str, path: str) -> list[str]:
    """The names of a member in each of the structs of arrays on its way."""
    names = [""]
    for part in path.split(".")[:-1]:
        names = [f"{name}{part}" for name in names]
        array = f"((struct {tag} *)0)->{names[0]}"
        try:
            (count,) = unit.numbers([f"sizeof({array}) / sizeof({array}[0])"])
            names = [
                f"{name}[{number}]" for name in names for number in range(min(count, ELEMENTS))
            ]
        except Refusal:
            pass  # no array
        names = [f"{name}." for name in names]
    return [f"{name}{path.rpartition('.')[2]}" for name in names]


def _inner(struct: str, name: str, base: int) -> str:
    """A struct that lies at an offset of the object."""
    return f"const struct {struct} *{name} = base{f' + {base}' if base else ''};"


def _function(known: dict[str, tuple[str, str, str]], stem: str, body: tuple[str, str, str]) -> str:
    """The name of the function that has this body, a new one if none has."""
    name = next((name for name, one in known.items() if one == body), f"{stem}_{len(known)}")
    known[name] = body
    return name


def _declared(entry: Entry) -> str:
    """The parameters of an entry by their names, out of the array of arguments."""
    return "\n\t".join(
        f"{p.type} {p.name} __maybe_unused = ({p.type})((const unsigned long *)base)[{n}];"
        for n, p in enumerate(entry.parameters)
        if "(*" not in p.type
    )
