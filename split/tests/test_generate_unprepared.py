"""What the generator makes of drivers that nobody prepared: one file, named as the module is."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate import complete
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.summary import summary
from ring3_split.generate.units import Unit
from ring3_split.kernel import Kernel
from ring3_split.plan import planner, subject, weights
from ring3_split.plan.file import Side

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("driver", "stem"), [("8139cp", "8139cp_main"), ("snd-ens1370", "ens1370")]
)
def test_no_object_of_a_half_has_the_name_of_its_module(
    kernel: Kernel, driver: str, stem: str
) -> None:
    module = kernel.module(driver)
    assert [
        Unit(kernel, module, source).stem
        for source in module.sources
        if Path(source).stem == stem.removesuffix("_main")
    ] == [stem]


def cut(
    kernel: Kernel, driver: str, folder: Path, moved: tuple[str, ...] = (), both: str = "-"
) -> Generated:
    """As `generate DRIVER` does without a plan.

    Some functions are moved into the kernel half, some are in both.
    """
    whole = subject.load(kernel, driver, "field", None, subject.Known())
    plan = planner.cut(whole, weights.places(whole), Fraction(1))
    sides = plan.sides()
    for key in [key for key in sides if key.rpartition(":")[2] in moved]:
        sides[key] = Side.KERNEL
    for key in [key for key in sides if re.search(both, key.rpartition(":")[2])]:
        sides[key] = Side.BOTH
    found = survey(whole.graph, sides, kernel.name, {})
    return generate(kernel, kernel.module(driver), found, Wishes.of(plan, {}), folder)


@pytest.fixture(scope="module")
def card(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return cut(kernel, "8139cp", tmp_path_factory.mktemp("card"))


def test_a_pointer_to_memory_of_the_cards_that_the_user_half_sets_is_named_for_nobody_would_set_it(
    card: Generated,
) -> None:
    assert (
        "what sets it belongs into the kernel half"
        in summary(card, None).refused["cp_private.rx_ring"]
    )


def test_a_function_of_the_user_half_that_a_table_names_and_nobody_calls_is_refused_by_name(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(
        Refusal, match=r"pcnet32_wio_read_rap: the table pcnet32_wio .* place it in the kernel half"
    ):
        cut(kernel, "pcnet32", tmp_path)


def required(generated: Generated, name: str) -> str:
    (found,) = (call for call in generated.border.table.calls if call.name == name)
    return found.requires


ACCESS = "^pcnet32_d?wio_"


@pytest.fixture(scope="module")
def ports(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return cut(kernel, "pcnet32", tmp_path_factory.mktemp("ports"), both=ACCESS)


def test_a_function_that_only_a_table_names_may_be_in_both_halves(ports: Generated) -> None:
    for half in ("kernel", "user"):
        text = (ports.folder / f"{half}/pcnet32_main.c").read_text()
        assert "#if 0\nstatic u16 pcnet32_wio_read_rap" not in text


def test_the_user_half_has_only_ports_of_the_drivers_own_cards_reserved_and_let_go(
    ports: Generated,
) -> None:
    own = "split_is_own(arg0 == &ioport_resource ? IORESOURCE_IO : IORESOURCE_MEM"
    assert required(ports, "__request_region") == f"arg0 && name && ({own}, start, n))"
    assert required(ports, "__release_region") == f"arg0 && ({own}, arg1, arg2))"


def test_a_timer_that_runs_is_not_made_anew_by_the_user_half_and_needs_no_name(
    ports: Generated,
) -> None:
    text = (ports.folder / "kernel/pcnet32_main.c").read_text()
    assert (
        "return timer && func && (!timer_pending(timer) && !(flags & ~TIMER_INIT_FLAGS));" in text
    )


def test_a_parameter_that_its_prototype_does_not_name_is_called_by_its_place(
    ports: Generated,
) -> None:
    (call,) = (one for one in ports.border.table.calls if one.name == "__release_region")
    assert [one.name for one in call.declared.parameters] == ["arg0", "arg1", "arg2"]


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("dev_addr_mod", "offset <= MAX_ADDR_LEN && len <= MAX_ADDR_LEN - offset"),
        (
            "alloc_etherdev_mqs",
            "sizeof_priv <= 65536 && txqs > 0 && txqs <= 256 && rxqs > 0 && rxqs <= 256",
        ),
        ("netif_napi_add_weight", "weight > 0 && weight <= NAPI_POLL_WEIGHT"),
        ("pci_disable_device", "pci_is_enabled(dev)"),
    ],
)
def test_numbers_and_states_that_the_kernel_takes_unseen_are_looked_at_first(
    card: Generated, name: str, holds: str
) -> None:
    assert holds in required(card, name)


def test_a_device_gets_no_parent_but_the_drivers_own_device_and_that_of_a_bus_none(
    card: Generated,
) -> None:
    fields = [
        field
        for views in card.border.table.views.values()
        for kind in views.values()
        for field in kind
    ]
    parents = [field for field in fields if field.path.endswith("parent") and field.written]
    assert parents
    text = (card.folder / "kernel/8139cp_main.c").read_text()
    assert all(f"{one.requires}(const void *base, unsigned long given)" in text for one in parents)
    assert "!object->bus && value && value != object" in text


def test_memory_of_the_cards_that_a_failing_upcall_took_is_given_back_by_its_bus_address(
    ports: Generated,
) -> None:
    text = (ports.folder / "kernel/pcnet32_main.c").read_text()
    assert (
        "dma_free_coherent((void *)arguments[0], (size_t)arguments[1], (void *)result, "
        "(dma_addr_t)arguments[2]);" in text
    )


def test_the_user_half_has_only_registers_of_the_drivers_own_cards_mapped(card: Generated) -> None:
    assert required(card, "ioremap") == "(split_is_own(IORESOURCE_MEM, offset, size))"


def test_what_takes_registers_takes_a_mapping_of_the_drivers_and_no_other_object(
    card: Generated,
) -> None:
    assert (
        required(card, "read_eeprom")
        == "ioaddr && (split_is_mapped(split_host, (const void __iomem *)ioaddr))"
    )
    assert (
        required(card, "iounmap")
        == "addr && (split_is_mapped(split_host, (const void __iomem *)addr))"
    )


def test_a_pointer_of_which_nobody_says_what_it_leads_to_is_named_for_it_is_not_set(
    kernel: Kernel, tmp_path: Path
) -> None:
    # What reads it, and would tell its type, is in the kernel half.
    assert (
        "annotate"
        in summary(cut(kernel, "8139cp", tmp_path, ("cp_remove_one",)), None).refused[
            "device.driver_data"
        ]
    )


def test_a_member_of_structs_in_an_array_crosses_from_each_of_them(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = cut(kernel, "virtio_net", tmp_path)
    fields = [
        field.path
        for views in made.border.table.views.values()
        for kind in views.values()
        for field in kind
    ]
    assert any(re.fullmatch(r".*stats\[0\]\.vq_index", path) for path in fields)


def test_a_driver_with_code_in_a_module_of_its_own_is_refused_by_the_name_of_that(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(
        Refusal, match=r"am53c974 has code of its own in esp_scsi, .* take such a driver"
    ):
        cut(kernel, "am53c974", tmp_path)


def test_a_driver_whose_user_half_sets_what_does_not_cross_is_not_built(card: Generated) -> None:
    with pytest.raises(
        Refusal,
        match=r"8139cp: the user half sets what does not cross.*cp_private\.rx_ring "
        r"\(cp_alloc_rings",
    ):
        complete.check(card.border)


def test_a_driver_with_a_question_that_nobody_has_answered_is_not_built(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = cut(kernel, "e100", tmp_path)
    asked = made.border.survey.questions
    assert asked
    with pytest.raises(
        Refusal,
        match=f"e100: open questions, .*{re.escape(min(asked))}.* Next: `ring3 split annotate e100",
    ):
        complete.check(made.border)
