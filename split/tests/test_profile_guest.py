"""The distribution's e1000 in a guest: what it does at run time is in the static graph."""

from __future__ import annotations

from pathlib import Path

import pytest

import conforms
from ring3_split import cli, context, distribution, driver
from ring3_split.graph import link
from ring3_split.profile import record
from ring3_split.profile.record import Profile

pytestmark = [pytest.mark.guest, pytest.mark.kernel]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """One run with everything that is known to be done with a network card."""
    file = tmp_path_factory.mktemp("profile") / "e1000.json"
    assert cli.main(["profile", "e1000", "--seconds", "0.5", "--out", str(file)]) == 0
    assert conforms.printed(file.read_bytes(), "split-profile") is None
    return record.load(file)


def count(seen: Profile, callee: str) -> int:
    return sum(pair.count for pair in seen.pairs if pair.callee.endswith(f":{callee}"))


def test_every_call_of_e1000_that_was_seen_is_in_the_static_graph(seen: Profile) -> None:
    assert seen.missing == ()
    assert seen.missing_field == ()
    assert seen.unknown == {}


def test_no_call_of_e1000_was_lost(seen: Profile) -> None:
    assert seen.lost == 0


def test_the_data_path_of_e1000_ran(seen: Profile) -> None:
    for name in ("e1000_xmit_frame", "e1000_clean", "e1000_intr", "e1000_clean_rx_irq"):
        assert count(seen, name) > 0, name


def test_loading_opening_and_unloading_of_e1000_ran(seen: Profile) -> None:
    for name in ("e1000_init_module", "e1000_probe", "e1000_open", "e1000_close", "e1000_remove"):
        assert count(seen, name) > 0, name


def test_more_than_half_of_e1000_ran(seen: Profile) -> None:
    assert len({pair.callee for pair in seen.pairs}) > 125  # of 250


def test_what_runs_in_an_interrupt_was_seen_as_atomic_and_what_may_sleep_was_not(
    seen: Profile,
) -> None:
    atomic = {pair.callee.rpartition(":")[2]: pair.atomic for pair in seen.pairs if not pair.caller}
    assert atomic["e1000_intr"] == count(seen, "e1000_intr")
    assert atomic["e1000_open"] == atomic["e1000_probe"] == 0


def test_the_tracer_sees_all_of_e1000_but_its_exit(seen: Profile) -> None:
    assert [name.rpartition(":")[2] for name in seen.invisible] == ["e1000_exit_module"]


def test_what_the_kernel_called_in_atomic_context_is_known_to_be_called_so(
    seen: Profile, cache: Path
) -> None:
    graph = link(driver.load(distribution.open_kernel("6.12", cache), "e1000"), "field")
    known = {
        key
        for key, entries in context.of(graph).items()
        if any(entry.context == "atomic" for entry in entries)
    }
    assert [
        pair.callee
        for pair in seen.pairs
        if not pair.caller and pair.atomic and pair.callee not in known
    ] == []
