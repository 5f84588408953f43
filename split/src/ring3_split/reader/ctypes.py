"""Types of the debug information as C writes them; a typedef stands for itself."""

from __future__ import annotations

from ring3_split.ir.metadata import Metadata

_QUALIFIERS = {"const", "volatile", "restrict", "atomic"}
_KEYWORDS = {"structure": "struct", "union": "union", "enumeration": "enum"}


class CTypes:
    """Type names of one module."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._known: dict[int, str] = {}

    def name(self, node: int) -> str:
        """A type without a declared name in it: "struct net_device *", "void (*)(int)", "u8[6]"."""
        if node not in self._known:
            self._known[node] = self._declare(node, "")
        return self._known[node]

    def signature(self, node: int) -> tuple[str, tuple[str, ...], bool]:
        """Result, parameters, and whether more may follow, of a DISubroutineType."""
        result, *parameters = self._metadata.elements(self._metadata.reference(node, "types")) or [
            0
        ]
        variadic = bool(parameters) and parameters[-1] == 0
        return self.name(result), tuple(self.name(one) for one in parameters if one), variadic

    def _declare(self, node: int, inner: str) -> str:
        """The declaration of `inner` (stars, brackets, parameters) with a type."""
        tag = self._metadata.tag(node)
        base = self._metadata.reference(node, "baseType")
        if tag == "pointer":
            target = self._metadata.tag(base)
            return self._declare(
                base, f"(*{inner})" if target in ("array", "subroutine") else f"*{inner}"
            )
        if tag == "array":
            ranges = self._metadata.elements(self._metadata.reference(node, "elements"))
            counts = [self._metadata.number(one, "count") for one in ranges]
            return self._declare(
                base, inner + "".join(f"[{count if count > 0 else ''}]" for count in counts)
            )
        if tag == "subroutine":
            result, parameters, variadic = self.signature(node)
            listed = ", ".join((*parameters, *(("...",) if variadic else ()))) or "void"
            return f"{result} {inner}({listed})"
        if tag in _QUALIFIERS:
            if self._metadata.tag(base) == "pointer":
                return self._declare(base, f"{tag} {inner}" if inner else tag)
            return f"{tag} {self._declare(base, inner)}"
        return (
            f"{self._plain(node, tag)} {inner}"
            if inner and not inner.startswith("[")
            else f"{self._plain(node, tag)}{inner}"
        )

    def _plain(self, node: int, tag: str) -> str:
        if not node:
            return "void"
        name = self._metadata.node(node).get("name", "")
        if tag in _KEYWORDS:
            return f"{_KEYWORDS[tag]} {name or '{...}'}"
        return name or "int"
