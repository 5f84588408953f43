"""What the generator makes of a plan's combolocks.

8139too's rx_lock, which its poll takes, and drivers that are refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ring3_split.annotate import file
from ring3_split.annotate.survey import Survey, survey
from ring3_split.errors import Refusal
from ring3_split.generate import tables
from ring3_split.generate.border import Wishes
from ring3_split.generate.combolocks import Combolocks
from ring3_split.generate.halves import Generated, generate
from ring3_split.kernel import Kernel
from ring3_split.model import Parameter
from ring3_split.plan import Plan, load, subject

pytestmark = pytest.mark.kernel
EXAMPLES = Path(__file__).parents[1] / "examples"
POLL = "drivers/net/ethernet/realtek/8139too.c:rtl8139_poll"
LOCK = "rtl8139_private.rx_lock"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return load(EXAMPLES / "8139too.plan.toml")


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    return file.load(EXAMPLES / "8139too.annotations.toml").answers()


@pytest.fixture(scope="module")
def found(kernel: Kernel, plan: Plan, answers: dict[str, str]) -> Survey:
    whole = subject.load(kernel, "8139too", "field", None, subject.Known(None, plan.contexts))
    return survey(whole.graph, plan.sides(), kernel.name, answers)


def halves(kernel: Kernel, found: Survey, wishes: Wishes, *locks: str, folder: Path) -> Generated:
    return generate(
        kernel,
        kernel.module("8139too"),
        found,
        replace(wishes, combolocks=frozenset(locks)),
        folder,
    )


@pytest.fixture(scope="module")
def wishes(plan: Plan, answers: dict[str, str]) -> Wishes:
    return Wishes.of(plan, answers)


@pytest.fixture(scope="module")
def realtek(
    kernel: Kernel, found: Survey, wishes: Wishes, tmp_path_factory: pytest.TempPathFactory
) -> Generated:
    return halves(kernel, found, wishes, LOCK, folder=tmp_path_factory.mktemp("combolocks"))


def test_a_poll_stays_scheduled_while_the_user_half_has_its_lock(realtek: Generated) -> None:
    text = (realtek.folder / "kernel/8139too_main.c").read_text()
    body = text.partition("static int rtl8139_poll(struct napi_struct *napi, int budget)\n{")[2]
    assert body.startswith("\n\tif (split_is_held_off(split_host))\n\t\treturn budget;\n")
    assert text.count("split_is_held_off") == 1


def test_spinlocks_are_taken_by_macros_and_interrupts_left_alone_whose_handler_takes_no_combolock(
    realtek: Generated,
) -> None:
    header = (realtek.folder / "kernel/8139too_split.h").read_text()
    assert header.endswith('#include "kernel_half.h"\n#include "combolock.h"\n')


def test_only_the_locks_of_the_plan_can_be_taken(realtek: Generated) -> None:
    table = realtek.border.table
    places = realtek.border.places_of("rtl8139_private", ["rx_lock"])
    found = [
        (kind, offset)
        for kind, inside in table.inside.items()
        for name, offset in inside
        if name == "combolock"
    ]
    assert found == [("rtl8139_private", places["rx_lock"][0])]
    assert "\t.combolocks = 1,\n" in (realtek.folder / "tables.c").read_text()


def test_without_combolocks_no_line_is_generated(
    kernel: Kernel, found: Survey, wishes: Wishes, tmp_path: Path
) -> None:
    generated = halves(kernel, found, wishes, folder=tmp_path)
    assert Combolocks(generated.border).doors == {}
    for name in (
        "tables.c",
        "kernel/8139too_main.c",
        "kernel/8139too_split.h",
        "user/8139too_main.c",
    ):
        text = (tmp_path / name).read_text()
        assert "combolock" not in text
        assert "held" not in text.partition("#line")[0]
        assert "split_is_held" not in text


def test_halves_with_other_combolocks_do_not_meet(realtek: Generated) -> None:
    before = tables.layout(realtek.border)
    realtek.border.table.inside["rtl8139_private"].remove(("combolock", 580))
    try:
        assert tables.layout(realtek.border) != before
    finally:
        realtek.border.table.inside["rtl8139_private"].append(("combolock", 580))


def test_what_can_be_no_combolock_is_refused(
    kernel: Kernel, found: Survey, wishes: Wishes, tmp_path: Path
) -> None:
    for lock, why in (
        ("lock", "takes it under|under rtl8139_private.rx_lock|while it holds"),
        ("none", "no function takes it"),
    ):
        with pytest.raises(Refusal, match=f"rtl8139_private.{lock} can be none, because .*({why})"):
            halves(kernel, found, wishes, f"rtl8139_private.{lock}", folder=tmp_path)


@pytest.mark.parametrize(
    ("by", "way", "parameters", "statement"),
    [
        (
            "net_device_ops.ndo_start_xmit",
            "netif_tx_disable",
            ("struct sk_buff *", "struct net_device *"),
            "return NETDEV_TX_BUSY;",
        ),
        (
            "net_device_ops.ndo_tx_timeout",
            "netif_tx_disable",
            ("struct net_device *", "unsigned int"),
            "return;",
        ),
        ("timer_setup:1", "run later", ("struct timer_list *",), "mod_timer(p0, jiffies + 1);"),
        (
            "tasklet_setup:1",
            "tasklet_disable",
            ("struct tasklet_struct *",),
            "tasklet_schedule(p0);",
        ),
        ("request_irq:1", "disable_irq", ("int", "void *"), ""),
    ],
)
def test_what_is_held_off_is_sent_away_so_that_it_comes_again(
    realtek: Generated, by: str, way: str, parameters: tuple[str, ...], statement: str
) -> None:
    assert statement in door(realtek, by, way, parameters)


def door(generated: Generated, by: str, way: str, parameters: tuple[str, ...]) -> str:
    given = tuple(Parameter(name=f"p{n}", type=kind) for n, kind in enumerate(parameters))
    one = structs.replace(generated.border.survey.halves.graph.functions[POLL], parameters=given)
    return Combolocks(generated.border)._door(one, by, way)


@pytest.mark.parametrize(
    ("by", "way", "parameters"),
    [
        ("net_device_ops.ndo_set_rx_mode", "run later", ("struct net_device *",)),
        ("devm_request_irq:2", "disable_irq", ("int", "void *")),
        ("tasklet_init:1", "tasklet_disable", ("unsigned long",)),
    ],
)
def test_what_the_run_time_cannot_hold_off_is_refused(
    realtek: Generated, by: str, way: str, parameters: tuple[str, ...]
) -> None:
    with pytest.raises(Refusal, match=f"the run time has no {way} for {by}"):
        door(realtek, by, way, parameters)
