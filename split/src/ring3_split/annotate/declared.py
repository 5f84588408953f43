"""What a type as C writes it says of a pointer."""

from __future__ import annotations

import re
from typing import Literal

Pointee = Literal["struct", "void", "char", "number", "function", "pointer", "list"]

NUMBERS = re.compile(
    r"^(unsigned|signed|int|long|short|bool|_Bool|size_t|ssize_t"
    r"|[us](8|16|32|64)|__\w+|u?int\d+_t|\w+_t|enum \w+)\b"
)


LISTS = (
    "list_head",
    "hlist_head",
    "hlist_node",
    "hlist_nulls_head",
    "hlist_nulls_node",
    "llist_head",
    "llist_node",
)


def pointee(declared: str) -> tuple[Pointee, str] | None:
    """What a type as C writes it points to; None if it is no pointer."""
    text = re.sub(r"\b(const|volatile|restrict|__restrict)\b", "", declared).strip()
    text = re.sub(r"\s*\[\w*\]$", " *", text)  # an array parameter is a pointer
    if "(*" in text:
        return "function", ""
    if not text.endswith("*"):
        return None
    inner = text[:-1].strip()
    match = re.fullmatch(r"(?:struct|union)\s+(\w+)", inner)
    if match:
        return "struct", match[1]
    if NUMBERS.match(inner):
        return "pointer" if inner.endswith("*") else "number", ""
    plain: dict[str, Pointee] = {"void": "void", "char": "char"}
    return (
        ("pointer", "")
        if inner.endswith("*")
        else (plain.get(inner, "struct"), "" if inner in plain else inner)
    )
