"""docs/split.schema.json and the checker of what commands print."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

import conforms
from ring3_split import cli, schema

OF_ALL_OF_RING3 = {"bench", "study"}  # docs/report.schema.json
PAIR = {"caller": "", "callee": "d/a.c:f", "count": 1}
PROFILE: dict[str, Any] = {
    "version": 1,
    "kernel": "6.12",
    "driver": "a",
    "device": "edu",
    "workload": "usual",
    "seconds": 1.5,
    "stock": False,
    "events": 3,
    "lost": 0,
    "pairs": [PAIR],
}


def test_the_file_is_what_the_types_say() -> None:
    assert schema.text() == (conforms.DOCS / "split.schema.json").read_text(), (
        "in split/: PYTHONPATH=src python -m ring3_split.schema ../docs/split.schema.json"
    )


def test_each_command_with_json_has_a_schema() -> None:
    (commands,) = (
        action.choices
        for action in cli.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    with_json = {
        name for name, command in commands.items() if "--json" in command._option_string_actions
    }
    known = {name.split("-")[1] for name in (*schema.OUTPUTS, *schema.SAME)}
    assert with_json == known | OF_ALL_OF_RING3


@pytest.mark.parametrize("name", schema.OUTPUTS)
def test_each_field_of_an_output_is_explained(name: str) -> None:
    found = json.loads(schema.text())["$defs"][name]
    fields = found["$defs"]["Row"] if found["type"] == "array" else found
    assert [name for name, one in fields["properties"].items() if "description" not in one] == []


def test_a_field_that_is_left_out_when_it_is_empty_has_its_default() -> None:
    found = json.loads(schema.text())["$defs"]["split-profile"]
    assert "atomic" not in found["$defs"]["Pair"]["required"]
    assert found["$defs"]["Pair"]["properties"]["atomic"]["default"] == 0


def test_a_field_that_is_always_printed_is_required() -> None:
    found = json.loads(schema.text())["$defs"]["split-plan"]
    assert {"undo", "alone"} <= set(found["required"])
    assert not {"curve", "propagation"} & set(found["required"])


def test_what_is_as_the_schema_says_conforms() -> None:
    assert conforms.printed(json.dumps(PROFILE), "split-profile") is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"odd": 1}, "split-profile: unknown ['odd']"),
        ({"lost": "none"}, "split-profile.lost: type"),
        ({"pairs": [PAIR, {"caller": "", "callee": "f"}]}, "split-profile.pairs[1]: missing"),
        ({"pairs": [PAIR | {"odd": 1}]}, "split-profile.pairs[0]: unknown ['odd']"),
        ({"unknown": {"a:x": "1"}}, "split-profile.unknown.a:x: type"),
    ],
)
def test_what_is_otherwise_is_named_with_its_place(wrong: dict[str, Any], reason: str) -> None:
    found = conforms.printed(json.dumps(PROFILE | wrong), "split-profile")
    assert (found or "").startswith(reason)
