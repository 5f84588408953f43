"""What crosses, in the form of the run time's tables: types, views of entries, downcalls, symbols."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ring3_split.annotate.api import known
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.interface import Downcall, Entry, Ways, entries, ways
from ring3_split.annotate.survey import Survey
from ring3_split.annotate.vocabulary import Annotation, read
from ring3_split.generate.declarations import Declared
from ring3_split.generate.units import Unit
from ring3_split.model import Access, Member

# What keeps the state of a lock, a queue or an object of the kernel's: it is never copied, in neither direction.
KERNELS = frozenset(
    "mutex spinlock raw_spinlock qspinlock rwlock semaphore rw_semaphore wait_queue_head completion timer_list work_struct "
    "delayed_work tasklet_struct list_head hlist_head hlist_node llist_head kref refcount_struct atomic_t".split()
)
ELEMENTS = 64  # of an embedded array of structs
FORMAT = 8  # arguments of a downcall


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


@dataclass
class Call:
    """A function that the user half calls in the kernel."""

    name: str
    declared: Declared
    arguments: list[Argument]
    result: Argument
    format: int = -1
    own: bool = False  # of the driver's kernel half


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
    entries: list[Entry] = field(default_factory=list)
    parameters: dict[str, list[Parameter]] = field(default_factory=dict)  # by entry
    views: dict[str, dict[str, list[Field]]] = field(default_factory=dict)  # by entry and type
    variables: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # by entry: symbol's name, elements
    calls: list[Call] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    counts: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (declaration of what it counts by, expression)
    refused: dict[str, str] = field(default_factory=dict)  # function or field -> why it cannot be had in the user half


class Border:
    """Makes the table of a survey."""

    def __init__(self, survey: Survey, units: list[Unit], answers: Mapping[str, str]) -> None:
        self.survey, self.units, self.answers = survey, units, answers
        self.layouts = survey.layouts
        self.table = Table()
        self.accesses: dict[str, tuple[Access, ...]] = {}
        for data in survey.halves.graph.driver.data:
            self.accesses = {**data.accesses, **self.accesses}
        self.places: dict[tuple[str, str], tuple[int, int]] = {}

    # Annotations.

    def annotation(self, key: str) -> Annotation | None:
        """What a pointer stands for: what a person said, or what was inferred."""
        if key in self.answers:
            return read(self.answers[key]).annotation
        found = self.survey.inferred.get(key)
        return found.annotation if found else None

    def cast(self, code: Iterable[str], name: str) -> str:
        """The one struct that these functions use a `void *` member as."""
        found = set()
        for data in self.survey.halves.graph.driver.data:
            for function in code:
                for shape in data.shapes.get(function, ()):
                    if shape.what == "cast" and shape.pointer == f"field {name}":
                        found.add(shape.detail.removeprefix("struct "))
        return found.pop() if len(found) == 1 else ""

    # Types.

    def type_of(self, name: str, unit: Unit | None = None) -> str:
        """A type of the table by the name of a struct; "" if no unit defines it with a size, then it is only a name."""
        if name not in self.table.types:
            layout = self.layouts.get(name)
            self.table.types[name] = layout.size if layout else 0
            self.table.inside[name] = []
            if layout:
                self._inside(name, layout.members)
        return name

    def measure(self) -> None:
        """Asks the compiler for the sizes of types whose layout the facts lack, once for each unit."""
        waiting = [name for name, size in self.table.types.items() if not size and name.isidentifier()]
        for unit in self.units:
            names = [name for name in waiting if name in unit.declared.structs]
            waiting = [name for name in waiting if name not in names]
            # It may be a union, and what is no struct of the unit's file scope is not asked for.
            for name, size in zip(names, unit.numbers([f"sizeof(struct {name})" for name in names]), strict=True):
                self.table.types[name] = size

    def _inside(self, name: str, members: Iterable[Member]) -> None:
        for member in members:
            if member.struct and "." not in member.struct and (member.struct in self.layouts or member.struct == "mutex"):
                count = min(member.count or 1, ELEMENTS)
                each = member.size // (member.count or 1)
                for number in range(count):
                    self.table.inside[name].append((self.type_of(member.struct), member.offset + number * each))

    def signature(self, declared: str) -> str:
        """The type of functions that a pointer of this declaration leads to."""
        if "(*)" not in declared:
            return ""
        text = " ".join(declared.split())
        self.table.types.setdefault(text, 0)
        self.table.inside.setdefault(text, [])
        return text

    # Views.

    def touched(self, code: Iterable[str]) -> Ways:
        """Members that these functions touch, by their names from the outermost named struct."""
        crossing = self._crossing()
        found: Ways = {}
        for function in code:
            for access in self.accesses.get(function, ()):
                tag = access.field.split(".")[0]
                if tag not in crossing or self.layouts.omitted(access.field):
                    continue
                member = self.layouts.member(access.field)
                # The address of an embedded struct says nothing; that of an array or a number is read and written by.
                way = access.way if access.way != "a" else "" if member is not None and member.struct else "rw"
                found[access.field] = ways(found.get(access.field, ""), way)
        return {name: way for name, way in found.items() if way}

    def _crossing(self) -> set[str]:
        names = set(self.survey.border.types)
        for entry in self.survey.border.entries:
            for parameter in entry.parameters:
                target = pointee(parameter.type)
                if target and target[1]:
                    names.add(target[1])
        return {name.split(".")[0] for name in names}

    def views(self, code: set[str]) -> dict[str, list[Field]]:
        """The fields of each type that an entry with this code needs."""
        touched = self.touched(code)
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for name, way in touched.items():
            tag, _, path = name.partition(".")
            groups[tag][path] = way
        found = {}
        for tag in sorted(self._crossing()):
            if tag in KERNELS:
                continue
            fields = self._fields(tag, groups, code)
            if fields:
                found[self.type_of(tag)] = fields
        return found

    def _fields(self, tag: str, groups: Mapping[str, Mapping[str, str]], code: set[str]) -> list[Field]:
        layout = self.layouts.get(tag)
        if layout is None:
            return disjoint(self._asked(tag, groups.get(tag, {})))
        return disjoint(self._expand(tag, layout.members, "", 0, groups, code, tag))

    def _asked(self, tag: str, paths: Mapping[str, str]) -> list[Field]:
        """Members of a struct whose layout the facts lack: the compiler says where they are. Pointers among them do not cross."""
        unit = next((unit for unit in self.units if tag in unit.declared.structs), None)
        if unit is None or not paths:
            return []
        names = sorted(path for path in paths if (tag, path) not in self.places)
        questions = [q for path in names for q in (f"offsetof(struct {tag}, {path})", f"sizeof(((struct {tag} *)0)->{path})")]
        numbers = unit.numbers(questions)
        self.places |= {(tag, path): (numbers[2 * n], numbers[2 * n + 1]) for n, path in enumerate(names)}
        return [Field(path, *self.places[tag, path], written="w" in paths[path]) for path in sorted(paths)]

    def _expand(  # noqa: PLR0913 - one walk down the embedded structs
        self,
        struct: str,
        members: Iterable[Member],
        path: str,
        base: int,
        groups: Mapping[str, Mapping[str, str]],
        code: set[str],
        tag: str,
    ) -> list[Field]:
        found: list[Field] = []
        prefix = struct.partition(".")[2]
        for member in members:
            name, own = f"{struct}.{member.name}", f"{prefix}.{member.name}".lstrip(".")
            way = groups.get(tag, {}).get(own, "")
            place = f"{path}{member.name}"
            if member.struct in KERNELS or self.layouts.omitted(name):
                continue
            inner = self.layouts.get(member.struct) if member.struct else None
            if inner is not None:
                if way and not _has_pointers(self.layouts, inner.members):
                    found.append(Field(place, base + member.offset, member.size, written="w" in way))
                    continue
                inner_tag = tag if "." in member.struct else member.struct
                count = min(member.count or 1, ELEMENTS)
                each = member.size // (member.count or 1)
                for number in range(count):
                    step = f"{place}[{number}]." if member.count else f"{place}."
                    found += self._expand(
                        member.struct, inner.members, step, base + member.offset + number * each, groups, code, inner_tag
                    )
            elif way and member.size:
                found += self._field(name, member, place, base, "w" in way, code)
        return found

    def _field(self, name: str, member: Member, place: str, base: int, written: bool, code: set[str]) -> list[Field]:
        plain = Field(place, base + member.offset, member.size, written=written)
        if member.bits:
            first, width = member.bits
            start, end = first // 8, (first + width + 7) // 8
            return [Field(place, base + start, end - start, "BITS", written)]
        if member.pointee == "fn":
            return [_with(plain, "CODE", self.signature(member.type))]
        if "*" not in re.sub(r"(\[\w*\])+$", "", member.type):
            return [plain]
        if member.count:
            self.table.refused[name] = "an array of pointers"
            return []
        return self._pointer(name, member, plain, code)

    def _pointer(self, name: str, member: Member, plain: Field, code: set[str]) -> list[Field]:
        target = pointee(member.type)
        struct = target[1] if target else ""
        cast = self.cast(code, name) if not struct else ""
        said = Annotation("single", type=cast) if cast else self.annotation(name)
        if said is None or said.word in ("omit", "user", "dma", "list"):
            return []
        struct = said.type or struct
        if said.word in ("function", "operations"):
            return [_with(plain, "CODE", self.type_of(struct) if struct else "")]
        if said.word == "string":
            return [Field(plain.path, plain.offset, 8, "POINTER", False, "bytes", "split_string")]
        if said.word == "bytes":
            return [_with(plain, "POINTER", "bytes", self.count(name, said.length))]
        if said.word == "array":
            return [_with(plain, "POINTER", self.type_of(struct), self.count(name, said.length))]
        if said.word == "single" and struct:
            return [_with(plain, "POINTER", self.type_of(struct))]
        return [_with(plain, "OPAQUE", self.type_of(struct) if struct else "")]

    def count(self, name: str, length: str) -> str:
        """A function that counts by members beside the pointer."""
        struct = name.partition(".")[0]
        text = re.sub(r"(?<![\w.>])([A-Za-z_]\w*)(?!\w*\s*\()", lambda m: self._member(struct, m[1]), length)
        return self._counting(f"const struct {struct} *this = base;", text)

    def _member(self, struct: str, name: str) -> str:
        return f"this->{name}" if self.layouts.member(f"{struct}.{name}") else name

    def _counting(self, declaration: str, expression: str) -> str:
        for name, known_one in self.table.counts.items():
            if known_one == (declaration, expression):
                return name
        name = f"split_count_{len(self.table.counts)}"
        self.table.counts[name] = (declaration, expression)
        return name

    # Entries.

    def entry(self, entry: Entry) -> None:
        """Adds an entry."""
        code = self.survey.halves.reachable(entry.function)
        self.table.entries.append(entry)
        self.table.parameters[entry.function] = [
            self._parameter(entry, number) for number in range(len(entry.parameters))
        ]
        self.table.views[entry.function] = self.views(code)
        self.table.variables[entry.function] = self._variables(code)

    def _parameter(self, entry: Entry, number: int) -> Parameter:
        one = entry.parameters[number]
        target = pointee(one.type)
        if target is None:
            return Parameter(one.name)
        said = self.annotation(f"{entry.function}({one.name})")
        struct = (said.type if said else "") or target[1]
        if said and said.word in ("bytes", "array"):
            declarations = " ".join(
                f"{p.type} {p.name} __maybe_unused = ({p.type})((const unsigned long *)base)[{n}];"
                for n, p in enumerate(entry.parameters)
                if "(*" not in p.type
            )
            count = self._counting(declarations, said.length)
            kind = "bytes" if said.word == "bytes" or not struct else self.type_of(struct)
            return Parameter(one.name, "POINTER", kind, count, written=said.direction != "in")
        if said and said.word == "string":
            return Parameter(one.name, "POINTER", "bytes", "split_string")
        if said and said.word == "single" and struct:
            return Parameter(one.name, "POINTER", self.type_of(struct))
        return Parameter(one.name, "OPAQUE", self.type_of(struct) if struct else "")

    def _variables(self, code: set[str]) -> list[tuple[str, int]]:
        """Variables of the driver that the code reads and that are no constants: parameters of the module above all."""
        found: dict[str, int] = {}
        for data in self.survey.halves.graph.driver.data:
            for function in code:
                for name in data.globals.get(function, {}):
                    shared = self.survey.border.variables.get(name)
                    if shared and shared.where and "const" not in shared.type and "." not in name and "struct" not in shared.type:
                        found[name] = 0
        return sorted(found.items())


def disjoint(fields: list[Field]) -> list[Field]:
    """Fields in the order of their places, members of a union made one."""
    found: list[Field] = []
    for one in sorted(fields, key=lambda f: (f.offset, -f.size)):
        last = found[-1] if found else None
        if last is None or one.offset >= last.offset + last.size:
            found.append(one)
        elif last.kind == "DATA" or one.kind == "DATA" or last.kind == "BITS":
            end = max(last.offset + last.size, one.offset + one.size)
            kind = "BITS" if "BITS" in (last.kind, one.kind) else "DATA"
            found[-1] = Field(last.path, last.offset, end - last.offset, kind, last.written or one.written)
    return found


def _with(plain: Field, kind: str, type_: str = "", count: str = "") -> Field:
    return Field(plain.path, plain.offset, plain.size, kind, plain.written, type_, count)


def _has_pointers(layouts: object, members: Iterable[Member]) -> bool:
    return any(member.pointee or (member.struct and member.struct in KERNELS) for member in members)
