"""The JSON Schema of what commands print with `--json`, made of the types that they print.

    python -m ring3_split.schema docs/split.schema.json

A field's description is its comment in the code: the one beside it, or the lines directly above it.
The schema lets fields come later, as docs/output.schema.json does. What prints the report that all
of ring3 has (`bench`, `study`) is in docs/report.schema.json.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import re
import sys
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from ring3_split.annotate.report import Report as Annotated
from ring3_split.commands.contexts import Compared
from ring3_split.commands.plan import Judged, Planned
from ring3_split.commands.plans import Row
from ring3_split.generate.summary import Summary
from ring3_split.generate.tally import Report as Tallied
from ring3_split.profile.record import Profile
from ring3_split.show.findings import Findings

COLUMNS = 100
JUST_FOR_TOOLS = re.compile(r"#\s*(noqa|type:)")


class Output(NamedTuple):
    """What a command prints."""

    kind: Any
    about: str


OUTPUTS = {
    "split-show": Output(Findings, "A driver; with --function, `functions` has that one alone."),
    "split-profile": Output(Profile, "The calls of one run; the profile's file is the same."),
    "split-plan": Output(Planned, "A plan that was made."),
    "split-plan-check": Output(Judged, "With --check: what the judge says of a plan."),
    "split-plan-all": Output(list[Row], "With --all: the drivers, by directory and name."),
    "split-annotate": Output(Annotated, "The border of a plan and all annotations."),
    "split-contexts": Output(Compared, "The tables of contexts beside the kernel's own code."),
    "split-generate": Output(Summary, "Two halves that were generated."),
    "split-campaign": Output(Tallied, "What the kernel has survived."),
}
# The same object, with the fields of what was built.
SAME = {
    "split-build": ("split-generate", "Two halves that were generated and built."),
    "split-run": ("split-generate", "Two halves that were built, and have run."),
}


def text() -> str:
    """The schema, as its file has it."""
    found = {name: _output(name, output) for name, output in OUTPUTS.items()}
    for name, (other, about) in SAME.items():
        found[name] = {"description": about, "$ref": f"#/$defs/{other}"}
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What ring3 split prints with --json",
        "description": "$defs has commands by name. docs/split.md, docs/split-run.md.",
        "$defs": dict(sorted(found.items())),
    }
    return _pretty(whole) + "\n"


def _output(name: str, output: Output) -> dict[str, Any]:
    """The schema of one command, which has the types below it as `$defs` of its own."""
    (whole,), parts = msgspec.json.schema_components(
        [output.kind], ref_template=f"#/$defs/{name}/$defs/{{name}}"
    )
    kinds: dict[str, type] = {}
    _collect(output.kind, kinds)
    for part, schema in parts.items():
        schema.pop("title", None)
        if "description" in schema:
            schema["description"] = _line(schema["description"])
        if part in kinds:  # no enumeration
            _describe(kinds[part], schema)
    if "$ref" in whole:
        whole = parts.pop(whole["$ref"].rpartition("/")[2])
    return {**whole, "description": output.about, "$defs": dict(sorted(parts.items()))}


def _collect(hint: Any, kinds: dict[str, type]) -> None:
    """Adds all structs and data classes that a type is made of, by name."""
    parts = get_args(hint)
    if isinstance(hint, type) and (
        issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint)
    ):
        if hint in kinds.values():
            return
        # msgspec would call both by their modules.
        if hint.__name__ in kinds:
            raise ValueError(f"two types of one output are called {hint.__name__}")
        kinds[hint.__name__] = hint
        parts = tuple(get_type_hints(hint).values())
    for part in parts:
        _collect(part, kinds)


def _describe(kind: type, schema: dict[str, Any]) -> None:
    """Adds what the fields mean, and which of them are always there."""
    # The types also read files, in which an unknown field is an error and a default may be left
    # out. Neither is so in what is printed.
    schema.pop("additionalProperties", None)
    names, always = _fields(kind)
    said = _comments(kind)
    for name, printed in names.items():
        field = schema["properties"][printed]
        if printed in always:
            field.pop("default", None)
        if name in said:
            field["description"] = said[name]
    if always:
        schema["required"] = sorted(always)


def _fields(kind: type) -> tuple[dict[str, str], set[str]]:
    """The fields as they are printed, by name in the code; and those that are always printed."""
    if not issubclass(kind, msgspec.Struct):
        own = get_type_hints(kind)  # of a data class
        return {name: name for name in own}, set(own)
    fields = msgspec.structs.fields(kind)
    always = {
        field.encode_name
        for field in fields
        if field.required
        or not (kind.__struct_config__.omit_defaults or field.default is msgspec.UNSET)
    }
    return {field.name: field.encode_name for field in fields}, always


def _comments(kind: type) -> dict[str, str]:
    """What the comments in the source of a class say of its fields, inherited ones included."""
    said: dict[str, str] = {}
    for part in reversed(kind.__mro__):
        if part.__module__.partition(".")[0] == __package__:
            said |= _own_comments(part)
    return said


def _own_comments(kind: type) -> dict[str, str]:
    source = inspect.getsource(kind)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {
        token.start[0]: token
        for token in tokens
        if token.type == tokenize.COMMENT and not JUST_FOR_TOOLS.match(token.string)
    }
    said = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first, last = node.lineno, node.end_lineno or node.lineno
            while first - 1 in comments and not _beside(comments[first - 1]):
                first -= 1
            lines = [comments[line].string for line in range(first, last + 1) if line in comments]
            if lines:
                said[node.target.id] = _line(" ".join(line.lstrip("# ") for line in lines))
    return said


def _beside(comment: tokenize.TokenInfo) -> bool:
    """Whether it stands behind code."""
    return bool(comment.line[: comment.start[1]].strip())


def _line(words: str) -> str:
    return " ".join(words.split())


def _pretty(value: Any, indent: int = 0, before: int = 0) -> str:
    """A value in lines of at most `COLUMNS`, if it has no longer string; `before` is the column."""
    short = json.dumps(value, ensure_ascii=False)
    # A comma may follow.
    if before + len(short) + 1 <= COLUMNS or not isinstance(value, dict | list):
        return short
    inner = " " * (indent + 2)
    if isinstance(value, list):
        lines = [f"{inner}{_pretty(one, indent + 2, indent + 2)}" for one in value]
        return "[\n" + ",\n".join(lines) + f"\n{' ' * indent}]"
    lines = []
    for key, one in value.items():
        start = f"{inner}{json.dumps(key)}: "
        lines.append(start + _pretty(one, indent + 2, len(start)))
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


def main(arguments: Sequence[str]) -> int:
    """Writes the file that is named, or to standard output."""
    if arguments:
        Path(arguments[0]).write_text(text())
    else:
        sys.stdout.write(text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
