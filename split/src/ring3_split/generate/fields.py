"""Which members an entry needs of which types: the views of its table."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ring3_split.annotate.border import Ways
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.touched import ways
from ring3_split.annotate.vocabulary import Annotation
from ring3_split.errors import Refusal
from ring3_split.generate.bounds import bounds
from ring3_split.generate.table import Bound, Field
from ring3_split.generate.texts import last_bytes, last_bytes_within
from ring3_split.model import Member

if TYPE_CHECKING:
    from ring3_split.generate.border import Border

# What keeps the state of a lock, a queue or an object of the kernel's: it is never copied, in
# neither direction.
KERNELS = frozenset(
    {
        "mutex",
        "spinlock",
        "raw_spinlock",
        "qspinlock",
        "rwlock",
        "semaphore",
        "rw_semaphore",
        "wait_queue_head",
        "completion",
    }
    | {
        "timer_list",
        "work_struct",
        "delayed_work",
        "tasklet_struct",
        "list_head",
        "hlist_head",
        "hlist_node",
        "llist_head",
    }
    | {"kref", "refcount_struct", "atomic_t"}
)
ELEMENTS = 64  # of an embedded array of structs that are looked at one by one
NUMBERS = (1, 2, 4, 8)  # bytes
ELEMENT = re.compile(r"\[\d+\]")
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Place:
    """A struct on the way from the object that is looked at."""

    struct: str
    tag: str  # the named struct that it belongs to
    path: str  # from the object
    offset: int
    base: int = 0  # offset of `tag` in the object


class Views:
    """The views of an entry."""

    def __init__(self, border: Border, code: set[str], writes: Iterable[str]) -> None:
        self.border, self.code, self.writes = border, code, frozenset(writes)
        self.crossing = border.crossing()
        self.groups: dict[str, dict[str, str]] = defaultdict(dict)
        for name, way in self._touched().items():
            tag, _, path = name.partition(".")
            self.groups[tag][path] = way

    def _touched(self) -> Ways:
        """Members that the entry's code touches, by their names from the outermost named struct."""
        layouts = self.border.layouts
        found: Ways = {}
        for function in self.code:
            for access in self.border.accesses.get(function, ()):
                if access.field.split(".", maxsplit=1)[0] not in self.crossing or layouts.omitted(
                    access.field
                ):
                    continue
                member = layouts.member(access.field)
                # The address of an embedded struct says nothing; that of an array or a number is
                # read by, and written by if what it is handed to may do so: a name that is only
                # printed never comes back.
                through = "rw" if access.field in self.writes else "r"
                embedded = (
                    member is not None
                    and member.struct
                    and not self.border.shared_word(access.field)
                )
                address = "" if embedded else through
                way = address if access.way == "a" else access.way
                found[access.field] = ways(found.get(access.field, ""), way)
        return {name: way for name, way in found.items() if way}

    def all(self) -> dict[str, list[Field]]:
        """The fields of each type."""
        found, lent = {}, self.border.lent(self.code)
        for tag in sorted(self.crossing - KERNELS):
            fields = self.of(tag)
            alone = tag not in self.border.outer or tag in lent
            behind = self.border.behind.get(tag)
            if behind:
                name, offset = behind
                fields += [replace(one, path=f"{name}:{one.path}") for one in self.of(name, offset)]
            if fields and alone:
                found[self.border.type_of(tag)] = fields
        return found

    def of(self, tag: str, offset: int = 0) -> list[Field]:
        """The fields of one struct that lies at an offset of its object."""
        layout = self.border.layouts.get(tag)
        if layout is None:
            asked = self._asked(tag, self.groups.get(tag, NOTHING))
            return disjoint([replace(one, offset=one.offset + offset) for one in asked])
        return disjoint(self._expand(Place(tag, tag, "", offset, offset), layout.members))

    def _asked(self, tag: str, paths: Mapping[str, str]) -> list[Field]:
        """Members of a struct whose layout the facts lack: the compiler says where they are.

        Pointers among them do not cross.
        """
        return [
            Field(name, *place, written="w" in paths[ELEMENT.sub("", name)])
            for name, place in sorted(self.border.places_of(tag, paths).items())
        ]

    def _expand(self, place: Place, members: Iterable[Member]) -> list[Field]:
        found: list[Field] = []
        for member in members:
            name = f"{place.struct}.{member.name}"
            own = f"{place.struct.partition('.')[2]}.{member.name}".lstrip(".")
            way = self.groups.get(place.tag, NOTHING).get(own, "")
            word = self.border.shared_word(name)
            if (member.struct in KERNELS and not word) or self.border.layouts.omitted(name):
                continue
            inner = self.border.layouts.get(member.struct) if member.struct and not word else None
            if inner is None and not way:
                continue
            path, offset = f"{place.path}{member.name}", place.offset + member.offset
            at = Place(place.struct, place.tag, path, offset, place.base)
            if word and way:
                found.append(Field(at.path, at.offset, member.size, "WORD"))
            elif inner is None:
                found += self._field(name, member, at, "w" in way) if member.size else []
            elif way and not _has_pointers(inner.members):
                limits = self._within(member, inner.members) if "w" in way else ()
                texts = last_bytes_within(member, inner.members, self.border.layouts.get)
                found.append(
                    Field(
                        at.path,
                        at.offset,
                        member.size,
                        written="w" in way,
                        bounds=limits,
                        texts=() if inner.union else texts,
                    )
                )
            else:
                found += self._embedded(member, inner.members, at)
        return found

    def _embedded(self, member: Member, members: Iterable[Member], at: Place) -> list[Field]:
        found: list[Field] = []
        tag = at.tag if "." in member.struct else member.struct
        each = member.size // (member.count or 1)
        for number in range(min(member.count or 1, ELEMENTS)):
            path = f"{at.path}[{number}]." if member.count else f"{at.path}."
            offset = at.offset + number * each
            found += self._expand(
                Place(member.struct, tag, path, offset, at.base if tag == at.tag else offset),
                members,
            )
        return found

    def _within(self, outer: Member, members: Iterable[Member]) -> tuple[Bound, ...]:
        """The bounds of the members of a struct copied as a whole, or of an array of them."""
        members = tuple(members)
        each = outer.size // (outer.count or 1)
        return tuple(
            replace(one, offset=one.offset + number * each + member.offset)
            for number in range(outer.count or 1)
            for member in members
            if not member.bits
            for one in bounds(self.border.check(f"{outer.struct}.{member.name}"), member)
        )

    def _field(self, name: str, member: Member, at: Place, written: bool) -> list[Field]:
        if member.bits:
            first, width = member.bits
            start, end = first // 8, (first + width + 7) // 8
            bits = Field(at.path, at.offset - member.offset + start, end - start, "BITS", written)
            # Bits that are whole bytes are a number, of which a plan can require something.
            return [
                self._held(name, at.base, bits)
                if not first % 8 and width // 8 in NUMBERS and not width % 8
                else bits
            ]
        once = written and name in self.border.wishes.once
        self.border.settled |= {name} if once else set()
        plain = Field(at.path, at.offset, member.size, written=written, once=once)
        if member.pointee == "fn":
            return [
                self._held(
                    name,
                    at.base,
                    replace(plain, kind="CODE", type=self.border.signature(member.type)),
                )
            ]
        if "*" not in re.sub(r"(\[\w*\])+$", "", member.type):
            number = replace(
                plain,
                bounds=bounds(self.border.check(name), member) if written else (),
                texts=last_bytes(member.type, name),
            )
            return [
                number
                if member.count or member.size not in NUMBERS
                else self._held(name, at.base, number)
            ]
        if member.count:
            self.border.table.refused[name] = "an array of pointers"
            return []
        return [
            self._held(name, at.base, one) for one in self._pointer(name, member, plain, at.base)
        ]

    def _held(self, name: str, base: int, one: Field) -> Field:
        return replace(one, requires=self.border.condition(name, base)) if one.written else one

    def _pointer(self, name: str, member: Member, plain: Field, base: int) -> list[Field]:
        target = pointee(member.type)
        struct = target[1] if target else ""
        cast = self.border.cast(self.code, name) if not struct else ""
        if cast:
            self.border.told.add(name)
        said = Annotation("single", type=cast) if cast else self.border.annotation(name)
        if said is None:
            self.border.table.refused[name] = (
                "nothing says what it points to: `ring3 split annotate` asks, --annotations answers"
            )
            return []
        if said.word in ("omit", "user", "dma", "list"):
            if plain.written and said.word == "dma":
                self.border.table.refused[name] = (
                    "memory that a device reads and writes: what sets it belongs into the kernel "
                    "half"
                )
            return []
        if said.word == "string":
            return [
                replace(plain, kind="POINTER", written=False, type="bytes", count="split_string")
            ]
        kind = "bytes" if said.word == "bytes" else self.border.type_of(said.type or struct)
        if said.word in ("bytes", "array"):
            count = self.border.count(
                name, said.length, base, numbers=said.word == "array" and not kind
            )
            return [replace(plain, kind="POINTER", type=kind or "bytes", count=count)]
        if said.word in ("function", "operations"):
            return [replace(plain, kind="CODE", type=kind)]
        kind = "io" if said.word == "io" else kind
        return [
            replace(
                plain, kind="POINTER" if said.word == "single" and kind else "OPAQUE", type=kind
            )
        ]


def disjoint(fields: list[Field]) -> list[Field]:
    """Fields in the order of their places, members of a union made one."""
    found: list[Field] = []
    for one in sorted(fields, key=lambda f: (f.offset, -f.size)):
        last = found[-1] if found else None
        if last is None or one.offset >= last.offset + last.size:
            found.append(one)
        elif last.kind in ("DATA", "BITS") or one.kind == "DATA":
            if last.once or one.once or last.requires or one.requires:
                raise Refusal(
                    f"once, requires: {last.path} and {one.path} share a place, of which the plan "
                    "can say nothing"
                )
            # A pointer that shares its place with a number is no pointer that could be believed.
            end = max(last.offset + last.size, one.offset + one.size)
            kind = "BITS" if "BITS" in (last.kind, one.kind) else "DATA"
            found[-1] = Field(
                last.path, last.offset, end - last.offset, kind, last.written or one.written
            )
    return found


def _has_pointers(members: Iterable[Member]) -> bool:
    return any(member.pointee or (member.struct and member.struct in KERNELS) for member in members)
