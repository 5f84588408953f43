"""What the kernel half undoes when a user half dies, and what it has the next one do anew.

e1000 and pcnet32, by their plans.
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
from ring3_split.generate.halves import generate
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject

pytestmark = pytest.mark.kernel
EXAMPLES = Path(__file__).parents[1] / "examples"
Driver = tuple[Survey, Wishes]


def driver(kernel: Kernel, name: str) -> Driver:
    plan, answers = (
        load(EXAMPLES / f"{name}.plan.toml"),
        file.load(EXAMPLES / f"{name}.annotations.toml").answers(),
    )
    whole = subject.load(kernel, name, "field", None, subject.Known(None, plan.contexts))
    return survey(whole.graph, plan.sides(), kernel.name, answers), Wishes.of(plan, answers)


@pytest.fixture(scope="module")
def e1000(kernel: Kernel) -> Driver:
    return driver(kernel, "e1000")


@pytest.fixture(scope="module")
def card(kernel: Kernel, e1000: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(kernel, kernel.module("e1000"), *e1000, tmp_path_factory.mktemp("e1000")).folder


@pytest.fixture(scope="module")
def lance(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = driver(kernel, "pcnet32")
    return generate(
        kernel, kernel.module("pcnet32"), *made, tmp_path_factory.mktemp("pcnet32")
    ).folder


def undone(folder: Path, driver: str, name: str) -> str:
    """The body of what undoes a call."""
    text = (folder / f"kernel/{driver}_main.c").read_text()
    return text.rpartition(f"void split_undo_{name}(")[2].partition("\n}")[0]


def test_rings_through_which_packets_go_are_not_freed_whoever_has_made_them(card: Path) -> None:
    body = undone(card, "e1000", "e1000_setup_tx_resources")
    assert "const unsigned long given[] = { arguments[0], arguments[1] };" in body
    assert re.search(
        r"if \(split_requires_e1000_free_tx_resources\(given\)\)\n\t\te1000_free_tx_resources\(",
        body,
    )


def test_nobody_puts_packets_into_rings_that_go_with_the_user_half_that_made_them(
    card: Path,
) -> None:
    assert "netif_tx_disable((void *)arguments[0]);" in undone(card, "e1000", "netif_start_queue")


@pytest.mark.parametrize("name", ["e1000_down", "e1000_close"])
def test_a_card_that_was_stopped_goes_on_with_rings_by_a_reset_of_the_next_user_half(
    card: Path, name: str
) -> None:
    body = undone(card, "e1000", name)
    steps = (
        "e1000_setup_tx_resources(adapter, tx)",
        "!tx->desc || !rx->desc",
        "napi_enable(",
        "schedule_work(&adapter->reset_task)",
    )
    assert [body.index(step) for step in steps] == sorted(body.index(step) for step in steps)
    assert "e1000_up(" not in body


def test_what_the_kernel_half_alone_may_call_gives_back_whatever_the_state(lance: Path) -> None:
    body = undone(lance, "pcnet32", "pcnet32_alloc_ring")
    assert "pcnet32_free_ring(" in body
    assert "split_requires" not in body


def test_what_a_dead_user_half_was_at_the_next_one_does_anew_where_the_plan_says_so(
    card: Path,
) -> None:
    entries = re.findall(r'\.name = "(\w+)"[^}]*\.again = 1', (card / "tables.c").read_text())
    assert set(entries) == {"e1000_reset", "e1000_configure"}


@pytest.mark.parametrize("name", ["e1000_open", "e1000_down", "e1000_none"])
def test_only_what_returns_nothing_and_is_called_up_can_be_done_anew(
    kernel: Kernel, e1000: Driver, name: str, tmp_path: Path
) -> None:
    found, wishes = e1000
    with pytest.raises(
        Refusal, match=f"again: {name} is no entry of the user half without a result"
    ):
        generate(
            kernel,
            kernel.module("e1000"),
            found,
            replace(wishes, again=frozenset([name])),
            tmp_path,
        )


def test_what_the_plan_has_before_an_entry_stands_before_its_upcall(card: Path) -> None:
    stub = (
        (card / "kernel/e1000_main.c")
        .read_text()
        .rpartition("void e1000_reset(struct e1000_adapter *adapter)\n{")[2]
    )
    assert stub.index("netif_tx_disable(adapter->netdev)") < stub.index("split_upcall(")


def test_before_names_an_entry(kernel: Kernel, e1000: Driver, tmp_path: Path) -> None:
    found, wishes = e1000
    with pytest.raises(Refusal, match="before: e1000_up is no entry of the user half"):
        generate(
            kernel,
            kernel.module("e1000"),
            found,
            replace(wishes, before={"e1000_up": ";"}),
            tmp_path,
        )
