"""Whether something is as docs/report.schema.json or docs/split.schema.json says.

As much of JSON Schema as these files use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

DOCS = Path(__file__).parents[2] / "docs"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}
# The last ones say nothing of the value.
KEYWORDS = {
    *("$ref", "additionalProperties", "anyOf", "const", "enum", "items", "maxItems", "minItems"),
    *("minimum", "pattern", "prefixItems", "properties", "required", "type"),
    *("$defs", "$schema", "default", "description", "title"),
}


def check(report: object) -> str | None:
    """The place where a report is not, and why."""
    schema = msgspec.json.decode((DOCS / "report.schema.json").read_bytes())
    value = msgspec.json.decode(msgspec.json.encode(report))
    return _Schema(schema).differs(value, schema, "report")


def printed(output: bytes | str, command: str) -> str | None:
    """The place where what a command has printed is not, and why: `split-show`.

    The schema lets fields come later; here one that it does not have is wrong.
    """
    schema = msgspec.json.decode((DOCS / "split.schema.json").read_bytes())
    return _Schema(schema, strict=True).differs(
        msgspec.json.decode(output), schema["$defs"][command], command
    )


@dataclass(frozen=True)
class _Schema:
    root: dict[str, Any]
    strict: bool = False  # an object has no field but its properties, if it has these

    def differs(self, value: Any, schema: dict[str, Any], place: str) -> str | None:
        if strange := schema.keys() - KEYWORDS:
            raise ValueError(f"{place}: the schema has {sorted(strange)}, which is not checked")
        if "$ref" in schema:
            return self.differs(value, self._at(schema["$ref"]), place)
        if "anyOf" in schema:
            found = [self.differs(value, one, place) for one in schema["anyOf"]]
            return None if None in found else f"{place}: {found}"
        found = [f"{place}: {reason}" for reason in self._wrong(value, schema)]
        found += [
            reason
            for one, part, at in self._parts(value, schema, place)
            if (reason := self.differs(one, part, at))
        ]
        return found[0] if found else None

    def _at(self, pointer: str) -> dict[str, Any]:
        part = self.root
        for name in pointer.removeprefix("#/").split("/"):
            part = part[name]
        return part

    def _wrong(self, value: Any, schema: dict[str, Any]) -> list[str]:
        """What is wrong with a value itself."""
        properties = schema.get("properties", {})
        wanted = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")
        fields = value if isinstance(value, dict) else {}
        others = schema.get("additionalProperties", not (self.strict and properties))
        unknown = fields.keys() - properties.keys() if others is False else set()
        missing = [name for name in schema.get("required", []) if name not in fields]
        length = len(value) if isinstance(value, list) else 0
        reasons = {
            "type": wanted and not any(_is_a(value, name) for name in wanted),
            "const": "const" in schema and value != schema["const"],
            "enum": value not in schema.get("enum", [value]),
            "minimum": "minimum" in schema and value < schema["minimum"],
            "pattern": "pattern" in schema and not re.search(schema["pattern"], value),
            "length": not schema.get("minItems", 0) <= length <= schema.get("maxItems", length),
            f"missing {missing}": missing,
            f"unknown {sorted(unknown)}": unknown,
        }
        return [reason for reason, is_so in reasons.items() if is_so]

    def _parts(
        self, value: Any, schema: dict[str, Any], place: str
    ) -> list[tuple[Any, dict[str, Any], str]]:
        """What a value has in it, each with its schema and its place."""
        if isinstance(value, list):
            first = schema.get("prefixItems", [])
            rest = schema.get("items") or {}
            return [
                (one, first[n] if n < len(first) else rest, f"{place}[{n}]")
                for n, one in enumerate(value)
            ]
        if not isinstance(value, dict):
            return []
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        others = others if isinstance(others, dict) else {}
        return [
            (one, properties.get(name, others), f"{place}.{name}") for name, one in value.items()
        ]


def _is_a(value: object, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
