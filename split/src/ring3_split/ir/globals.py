"""A variable of a module, and what stands in its line."""

from __future__ import annotations

import re

_LINKAGE = re.compile(
    r"(?:(private|internal|available_externally|linkonce_odr|linkonce|weak_odr|weak|common"
    r"|appending|extern_weak|external) )?"
    r"(?:(?:dso_local|hidden|protected|default|thread_local(?:\(\w+\))?|local_unnamed_addr"
    r"|unnamed_addr|externally_initialized|addrspace\(\d+\)) )*(global|constant|alias)? ?"
)
_SECTION = re.compile(r', section "([^"]*)"')


class Global:
    """A variable, or an alias."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        match = _LINKAGE.match(text)
        self.linkage = (match[1] if match else None) or ""
        self.kind = (match[2] if match else None) or "global"  # global, constant, alias
        self._rest = text[match.end() :] if match else text

    @property
    def external(self) -> bool:
        """Whether it is only declared."""
        return self.linkage in ("external", "extern_weak")

    @property
    def section(self) -> str:
        """Its section, "" for the usual one."""
        match = _SECTION.search(self._rest, max(0, len(self._rest) - 300))
        return match[1] if match else ""

    @property
    def dbg(self) -> int:
        """Metadata id of its DIGlobalVariableExpression, -1 when there is none."""
        at = self._rest.rfind("!dbg !")
        match = re.match(r"\d+", self._rest[at + 6 :]) if at >= 0 else None
        return int(match[0]) if match else -1

    @property
    def initialiser(self) -> str:
        """The text from its type on: "type value, section ..., align ..."."""
        return self._rest
