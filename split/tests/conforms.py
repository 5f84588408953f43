"""Whether a report is as docs/report.schema.json says.

As much of JSON Schema as that file uses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).parents[2] / "docs/report.schema.json"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}


def check(report: object) -> str | None:
    """The place where it is not, and why."""
    schema = msgspec.json.decode(FILE.read_bytes())
    return _differs(msgspec.json.decode(msgspec.json.encode(report)), schema, schema, "report")


def _differs(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str) -> str | None:
    if "$ref" in schema:
        return _differs(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, place)
    properties = schema.get("properties", {})
    wanted = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")
    fields = value if isinstance(value, dict) else {}
    unknown = [] if schema.get("additionalProperties", True) else fields.keys() - properties.keys()
    missing = [name for name in schema.get("required", []) if name not in fields]
    reasons = {
        "type": wanted and not any(_is_a(value, name) for name in wanted),
        "const": "const" in schema and value != schema["const"],
        "enum": value not in schema.get("enum", [value]),
        "minimum": "minimum" in schema and value < schema["minimum"],
        "pattern": "pattern" in schema and not re.search(schema["pattern"], value),
        f"missing {missing}": missing,
        f"unknown {sorted(unknown)}": unknown,
    }
    found = [f"{place}: {reason}" for reason, is_so in reasons.items() if is_so]
    parts = [
        (fields[name], part, f"{place}.{name}")
        for name, part in properties.items()
        if name in fields
    ]
    if "items" in schema and isinstance(value, list):
        parts += [(one, schema["items"], f"{place}[{n}]") for n, one in enumerate(value)]
    found += [reason for one, part, at in parts if (reason := _differs(one, part, root, at))]
    return found[0] if found else None


def _is_a(value: object, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
