"""Pointers that a user half sets and the kernel half follows.

What the plan requires of them, in e1000's tables.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.survey import Survey, survey
from ring3_split.errors import Refusal
from ring3_split.generate.border import Wishes
from ring3_split.generate.fields import disjoint
from ring3_split.generate.halves import generate
from ring3_split.generate.table import Field
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject

pytestmark = pytest.mark.kernel
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def e1000(kernel: Kernel) -> tuple[Survey, Wishes]:
    plan, answers = (
        load(EXAMPLES / "e1000.plan.toml"),
        file.load(EXAMPLES / "e1000.annotations.toml").answers(),
    )
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    return survey(whole.graph, plan.sides(), kernel.name, answers), Wishes.of(plan, answers)


@pytest.fixture(scope="module")
def card(
    kernel: Kernel, e1000: tuple[Survey, Wishes], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return generate(kernel, kernel.module("e1000"), *e1000, tmp_path_factory.mktemp("e1000")).folder


def condition(card: Path, field: str) -> str:
    """The body of the function that the tables ask before the user half's pointer is taken."""
    asked = re.search(
        rf'"{re.escape(field)}", \d+, 8, SPLIT_\w+, 1, .*\.requires = KERNEL_HALF\((\w+)\)',
        (card / "tables.c").read_text(),
    )
    assert asked, field
    return (
        (card / "kernel/e1000_main.c")
        .read_text()
        .rpartition(f"int {asked[1]}(")[2]
        .partition("\n}")[0]
    )


def test_a_ring_is_set_once(card: Path) -> None:
    line = next(
        line
        for line in (card / "tables.c").read_text().splitlines()
        if '"e1000_adapter:tx_ring"' in line and "POINTER, 1" in line
    )
    assert ".once = 1" in line


def test_of_functions_only_the_one_that_the_plan_names_may_be_set(card: Path) -> None:
    assert "return value == e1000_alloc_dummy_rx_buffers;" in condition(
        card, "e1000_adapter:alloc_rx_buf"
    )


def test_what_lies_behind_another_struct_is_looked_at_in_its_own(card: Path) -> None:
    assert re.search(
        r"const struct e1000_adapter \*object = base \+ \d+;",
        condition(card, "e1000_adapter:alloc_rx_buf"),
    )


def test_what_nothing_is_required_of_may_be_set_to_any_object_of_its_type(card: Path) -> None:
    line = next(
        line
        for line in (card / "tables.c").read_text().splitlines()
        if '"ethtool_ops", ' in line and "SPLIT_CODE, 1" in line
    )
    assert ".requires" not in line


@pytest.mark.parametrize(
    "name", ["e1000_adapter.nothing", "e1000_hw.mac_addr", "e1000_tx_ring.buffer_info"]
)
def test_a_member_that_is_no_pointer_or_number_of_the_user_halfs_is_refused_by_name(
    kernel: Kernel, e1000: tuple[Survey, Wishes], tmp_path: Path, name: str
) -> None:
    found, wishes = e1000
    wanted = replace(wishes, requires={**wishes.requires, name: "value"})
    with pytest.raises(
        Refusal,
        match=f"requires: {re.escape(name)} is no pointer or number that the user half sets",
    ):
        generate(kernel, kernel.module("e1000"), found, wanted, tmp_path)


@pytest.mark.parametrize("said", [{"once": True}, {"requires": "split_settable_0"}])
def test_what_is_said_of_a_member_of_a_union_is_refused_and_not_forgotten(
    said: dict[str, bool | str],
) -> None:
    number = Field("number", 0, 4, written=True)
    with pytest.raises(Refusal, match="pointer and number share a place"):
        disjoint([number, replace(Field("pointer", 0, 8, "POINTER", written=True), **said)])  # type: ignore[arg-type]
