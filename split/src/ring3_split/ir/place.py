"""A place in the source that a value came from."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["param", "call", "global", "field", "local", "constant", "unknown"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from.

    It was loaded from the place that kind and name tell, or, with `address`, is the address of that
    place.
    """

    kind: Kind
    # of the parameter, callee (symbol, or field that it was loaded from), global, field, local
    # variable
    name: str = ""
    base: Origin | None = (
        # of a field: the pointer to its struct; of something loaded through a pointer: the pointer
        None
    )
    index: int = -1  # of a parameter, from 0
    address: bool = False
    type: int = 0  # what the value points to: metadata id of the type, 0 when not known
    at: int = 0  # where in `type` it points, in bits: at the storage of bit fields

    def __str__(self) -> str:
        """As the data model writes it: "param 0", "field S.M" ...; "" when nothing is known."""
        if self.kind in ("constant", "unknown"):
            return ""
        return f"{self.kind} {self.index if self.kind == 'param' else self.name}"

    @property
    def object(self) -> Origin:
        """The object that a field's address is inside of.

        A parameter, a global, a pointer that was loaded ...
        """
        origin = self
        while origin.kind == "field" and origin.address and origin.base:
            origin = origin.base
        return origin

    @property
    def within(self) -> str:
        """The field whose address this is, if it is one: for an embedded struct, the way to it."""
        return self.name if self.kind == "field" and self.address else ""


UNKNOWN = Origin("unknown")
