"""The border of a real driver, e1000 of the distribution's kernel, against what its source says."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.check import Judge
from ring3_split.annotate.report import Report, report
from ring3_split.annotate.survey import Survey
from ring3_split.commands.annotate import definitions, look
from ring3_split.distribution import open_kernel
from ring3_split.kernel import Kernel
from ring3_split.plan import planner, subject, weights

pytestmark = pytest.mark.kernel

EXAMPLE = Path(__file__).parent.parent / "examples/e1000.annotations.toml"


@pytest.fixture(scope="module")
def kernel(cache: Path) -> Kernel:
    return open_kernel("6.12", cache, None)


@pytest.fixture(scope="module")
def e1000(kernel: Kernel) -> Survey:
    """As it is asked the first time."""
    return look(kernel, "e1000", None, {})[0]


@pytest.fixture(scope="module")
def answered(kernel: Kernel) -> Survey:
    """With the answers of the example."""
    return look(kernel, "e1000", None, file.load(EXAMPLE).answers())[0]


@pytest.fixture
def counted(e1000: Survey, tmp_path: Path) -> Report:
    return report(e1000, file.load(tmp_path / "none.toml"), "")


@pytest.mark.parametrize(
    ("key", "annotation"),
    [
        ("e1000_adapter.tx_ring", "array(num_tx_queues)"),
        ("e1000_adapter.rx_ring", "array(num_rx_queues)"),
        ("e1000_tx_ring.buffer_info", "array(count)"),
        ("e1000_rx_ring.buffer_info", "array(count)"),
        ("e1000_tx_ring.desc", "dma(size)"),
        ("e1000_adapter.netdev", "single"),
        ("e1000_adapter.pdev", "single"),
        ("e1000_adapter.alloc_rx_buf", "function"),
        ("e1000_hw.hw_addr", "io"),
        ("device.driver_data", "single(struct net_device)"),
        ("net_device.netdev_ops", "operations"),
        ("work_struct.func", "function"),
    ],
)
def test_what_a_member_of_e1000_points_to_is_inferred(
    e1000: Survey, key: str, annotation: str
) -> None:
    assert str(e1000.inferred[key].annotation) == annotation


def test_an_inference_names_a_line_of_the_driver(e1000: Survey, kernel: Kernel) -> None:
    where, _, line = e1000.inferred["e1000_tx_ring.buffer_info"].evidence[0].where.rpartition(":")
    text = (kernel.root / where).read_text().splitlines()[int(line) - 1]
    assert "buffer_info" in text or "alloc" in text


def test_every_function_of_the_kernel_that_a_user_function_calls_is_known(e1000: Survey) -> None:
    assert [downcall.function for downcall in e1000.border.downcalls if downcall.way == "?"] == []


def test_every_variable_of_the_kernel_that_a_user_function_touches_is_known(e1000: Survey) -> None:
    assert [name for name, one in e1000.border.variables.items() if one.way == "?"] == []


def test_the_user_half_touches_few_members_of_the_structs_of_the_kernel(e1000: Survey) -> None:
    device, bus = e1000.border.types["net_device"], e1000.border.types["pci_dev"]
    assert len(device.members) < device.count / 10
    assert len(bus.members) < bus.count / 10
    assert [name for name, use in bus.members.items() if "w" in use.user] == []


@pytest.mark.parametrize(
    ("variable", "struct", "by_inlines"),
    [
        ("adapter", "e1000_adapter", set()),
        ("hw", "e1000_hw", set()),
        ("netdev", "net_device", {"dev", "reg_state", "state"}),
    ],
)
def test_the_members_are_those_that_stand_in_the_text(
    e1000: Survey, kernel: Kernel, variable: str, struct: str, by_inlines: set[str]
) -> None:
    spelled = set()
    for key in e1000.halves.user:
        function = e1000.halves.graph.functions[key]
        text = "\n".join(
            (kernel.root / function.file).read_text().splitlines()[function.line - 1 : function.end]
        )
        spelled |= set(
            re.findall(rf"\b{variable}->(\w+)", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        )
    touched = {name.partition(".")[0] for name in e1000.border.types[struct].members}
    assert touched - by_inlines == spelled - by_inlines


def test_upcalls_and_downcalls_are_those_that_the_plan_counts(
    kernel: Kernel, e1000: Survey
) -> None:
    whole = subject.load(kernel, "e1000", "field")
    totals = planner.cut(whole, weights.places(whole), Fraction(1)).totals
    downcalls = [downcall for downcall in e1000.border.downcalls if downcall.way == "driver"]
    assert (len(e1000.border.entries), len(downcalls)) == (totals.upcalled, totals.downcalled)


def test_the_adapter_lies_behind_the_network_device(e1000: Survey) -> None:
    assert (e1000.border.types["e1000_adapter"].behind, e1000.border.types["e1000_adapter"].by) == (
        "net_device",
        "netdev_priv",
    )


def test_a_table_of_statistics_is_read_from_whole_structs(e1000: Survey) -> None:
    (entry,) = [
        entry
        for entry in e1000.border.entries
        if entry.function.endswith(":e1000_get_ethtool_stats")
    ]
    assert entry.whole == ["e1000_adapter", "net_device"]


def test_a_person_annotates_fewer_lines_than_one_in_a_hundred(counted: Report) -> None:
    assert 0 < counted.counts.asked_percent < 1


def test_the_example_answers_every_question(answered: Survey) -> None:
    assert sorted(set(answered.questions) - set(file.load(EXAMPLE).answers())) == []


def test_the_answers_of_the_example_are_accepted(answered: Survey, kernel: Kernel) -> None:
    judge = Judge(answered, definitions(kernel, answered))
    answers = file.load(EXAMPLE).answers()
    assert {
        key: wrong for key, answer in answers.items() if (wrong := judge.complaint(key, answer))
    } == {}


def writers(found: Survey, name: str) -> list[str]:
    return [entry.function for entry in found.border.entries if name in entry.writes]


@pytest.mark.parametrize("word", ["net_device.state", "e1000_adapter.flags"])
def test_no_entry_writes_back_a_word_that_the_kernel_changes_by_atomic_operations(
    e1000: Survey, word: str
) -> None:
    assert writers(e1000, word) == []


def test_the_flags_of_e1000_are_one_word_for_both_halves(e1000: Survey) -> None:
    assert e1000.border.words["e1000_adapter.flags"].place == "shared"


def test_the_operations_of_the_device_are_there_before_it_is_registered(e1000: Survey) -> None:
    (register,) = [
        downcall for downcall in e1000.border.downcalls if downcall.function == "register_netdev"
    ]
    assert {"net_device.netdev_ops", "net_device.ethtool_ops", "e1000_adapter.tx_ring"} <= set(
        register.reads
    )


def test_the_watchdog_of_e1000_is_rearmed_by_the_kernel_half(e1000: Survey) -> None:
    (watchdog,) = [
        entry for entry in e1000.border.entries if entry.function.endswith(":e1000_watchdog")
    ]
    assert [(one.by, one.object) for one in watchdog.rearm] == [
        ("schedule_delayed_work", "e1000_adapter.watchdog_task")
    ]


def test_suspend_resume_and_shutdown_of_e1000_are_called_when_no_process_can_run(
    e1000: Survey,
) -> None:
    found = {entry.function.rpartition(":")[2] for entry in e1000.border.entries if entry.frozen}
    assert found == {"e1000_suspend", "e1000_resume", "e1000_shutdown"}


def test_what_no_check_covers_are_lengths_of_e1000(e1000: Survey) -> None:
    assert {name for name, check in e1000.border.checks.items() if check.remains} == {
        "e1000_hw.max_frame_size",
        "e1000_rx_ring.count",
        "e1000_rx_ring.size",
        "e1000_tx_buffer.length",
        "e1000_tx_ring.count",
        "e1000_tx_ring.size",
    }


def test_every_function_of_the_kernel_that_e1000_calls_has_a_prototype(e1000: Survey) -> None:
    assert [downcall.function for downcall in e1000.border.downcalls if not downcall.returns] == []


def test_a_variadic_function_says_so(e1000: Survey) -> None:
    assert next(
        downcall for downcall in e1000.border.downcalls if downcall.function == "_printk"
    ).variadic


def test_the_constraints_of_ens1370_are_kept_by_the_kernel(kernel: Kernel) -> None:
    border = look(kernel, "snd-ens1370", None, {})[0].border
    assert border.kept["snd_es1370_hw_constraints_clock"].to == ["snd_pcm_hw_constraint_ratnums:3"]
    (new,) = [downcall for downcall in border.downcalls if downcall.function == "snd_devm_card_new"]
    assert new.allocates is not None
    assert (new.allocates.struct, new.allocates.private) == ("snd_card", "snd_card.private_data")


def test_the_buffers_of_8139too_lie_inside_of_one(kernel: Kernel) -> None:
    border = look(kernel, "8139too", None, {})[0].border
    (found,) = border.interior["rtl8139_private.tx_buf"]
    assert (found.inside, found.offset) == ("field rtl8139_private.tx_bufs", "local i * 1792")
