"""Objects that calls make and free.

How large they are, what ends them, and what a call writes into them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.api import known
from ring3_split.annotate.survey import survey
from ring3_split.generate import complete
from ring3_split.generate.border import Wishes
from ring3_split.generate.conditions import required
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.objects import ends
from ring3_split.generate.table import Call
from ring3_split.kernel import Kernel
from ring3_split.plan import load, planner, subject, weights
from ring3_split.plan.file import Side

EXAMPLES = Path(__file__).parents[1] / "examples"
FREEING = re.compile(r"(^|_)(k|kv)?(free|destroy|put|puts|release|delete|unregister)(_|\*|s?$)")


def test_of_each_function_that_sounds_like_freeing_it_is_said_what_it_ends() -> None:
    said = [
        *ends().ends,
        *(name for name, condition in required().items() if condition.holds == "false"),
    ]
    names = [
        api.name
        for api in [*known().exact.values(), *(api for _, api in known().patterns)]
        if api.way == "downcall"
    ]
    left = [
        name
        for name in names
        if FREEING.search(name) and not any(fnmatchcase(one, name) for one in said)
    ]
    assert [
        name for name in left if not any(fnmatchcase(name, keeps) for keeps in ends().keeps.names)
    ] == []


@pytest.mark.kernel
def test_what_frees_is_a_function_of_the_kernels_that_takes_a_pointer_there(kernel: Kernel) -> None:
    words = "|".join(ends().ends)
    command = [
        "grep",
        "-rhE",
        "--include=*.h",
        "-A3",
        rf"\b({words})\(",
        str(kernel.root / "include"),
        str(kernel.root / "arch/x86/include"),
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    taken: dict[str, set[int]] = {}
    for name, parameters in re.findall(rf"\b({words})\(([^;{{}}()]*)\)", text):
        taken.setdefault(name, set()).update(
            n for n, one in enumerate(parameters.split(",")) if "*" in one
        )
    assert {
        name for name, number in ends().ends.items() if number not in taken.get(name, ())
    } == set()


@pytest.fixture(scope="module")
def made(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Generated]:
    """Both halves by an example's plan."""

    @cache
    def example(driver: str) -> Generated:
        plan, answers = (
            load(EXAMPLES / f"{driver}.plan.toml"),
            file.load(EXAMPLES / f"{driver}.annotations.toml").answers(),
        )
        whole = subject.load(kernel, driver, "field", None, subject.Known(None, plan.contexts))
        found = survey(whole.graph, plan.sides(), kernel.name, answers)
        return generate(
            kernel,
            kernel.module(driver),
            found,
            Wishes.of(plan, answers),
            tmp_path_factory.mktemp(driver),
        )

    return example


def call(generated: Generated, name: str) -> Call:
    return next(one for one in generated.border.table.calls if one.name == name)


@pytest.fixture(scope="module")
def network(made: Callable[[str], Generated]) -> Generated:
    return made("e1000")


@pytest.mark.kernel
@pytest.mark.parametrize("driver", ["e1000", "vmw_pvscsi", "8139cp", "8139too", "pcnet32"])
def test_of_an_example_no_question_is_open_and_nothing_is_set_by_nobody(
    made: Callable[[str], Generated], driver: str
) -> None:
    complete.check(made(driver).border)


@pytest.mark.kernel
def test_a_card_has_all_the_room_behind_it_that_the_tables_say(network: Generated) -> None:
    size = network.border.layouts.structs["e1000_adapter"].size
    assert f"sizeof_priv >= {size}" in call(network, "alloc_etherdev_mqs").requires


@pytest.mark.kernel
def test_a_host_has_all_the_room_behind_it_that_the_tables_say(
    made: Callable[[str], Generated],
) -> None:
    host = made("vmw_pvscsi")
    size = host.border.layouts.structs["pvscsi_adapter"].size
    assert f" >= {size}" in call(host, "scsi_host_alloc").requires


@pytest.mark.kernel
def test_a_sound_card_has_no_room_behind_it_or_all_that_the_tables_say(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = cut(kernel, "snd-ens1370", tmp_path)
    size = made.border.layouts.structs["ensoniq"].size
    assert re.search(rf"\(!(\w+) \|\| \1 >= {size}\)", call(made, "snd_devm_card_new").requires)


@pytest.mark.kernel
def test_a_card_that_is_freed_ends_and_no_work_of_it_runs_or_waits(network: Generated) -> None:
    freed = call(network, "free_netdev")
    assert freed.ends == 0
    assert freed.requires.count("!work_busy(") >= 4  # reset, watchdog, fifo stall, phy info
    text = (network.folder / "tables.c").read_text()
    assert re.search(r'"free_netdev".*\n.*\.ends = 1 \}', text)


@pytest.mark.kernel
def test_only_what_frees_memory_of_its_own_may_free_any(network: Generated) -> None:
    names = {key.rpartition(":")[2] for key in network.border.table.freeing}
    assert "e1000_probe" in names  # it frees its rings
    assert "e1000_get_drvinfo" not in names


def cut(kernel: Kernel, driver: str, folder: Path) -> Generated:
    """As `generate DRIVER` does without a plan."""
    whole = subject.load(kernel, driver, "field", None, subject.Known())
    sides: dict[str, Side] = planner.cut(whole, weights.places(whole), Fraction(1)).sides()
    found = survey(whole.graph, sides, kernel.name, {})
    return generate(kernel, kernel.module(driver), found, Wishes(), folder)


@pytest.mark.kernel
def test_a_struct_that_a_function_fills_is_an_object_and_no_cell_of_eight_bytes(
    kernel: Kernel, tmp_path: Path
) -> None:
    filled = call(cut(kernel, "e100", tmp_path), "mii_ethtool_get_link_ksettings")
    assert [(one.way, one.type) for one in filled.arguments] == [
        ("OBJECT", "mii_if_info"),
        ("OBJECT", "ethtool_link_ksettings"),
    ]
