"""What the generator makes of a network card whose adapter lies behind its net_device: e1000 with the plan of examples/."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.border import Check
from ring3_split.annotate.survey import survey
from ring3_split.generate.bounds import bounds
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.table import Bound, Call, Field
from ring3_split.kernel import Kernel
from ring3_split.model import Member
from ring3_split.plan import load, subject

EXAMPLES = Path(__file__).parents[1] / "examples"
PARAM = "drivers/net/ethernet/intel/e1000/e1000_param.c"
ETHTOOL = "drivers/net/ethernet/intel/e1000/e1000_ethtool.c"


def member(kind: str, size: int) -> Member:
    return Member(name="n", type=kind, offset=0, size=size)


def test_a_number_is_kept_in_the_range_that_was_derived_of_it() -> None:
    assert bounds(Check([], [], "range", 0, 16), member("u8", 1)) == (Bound(0, 1, 1, 0, 16, signed=False),)


def test_a_number_that_may_be_anything_has_no_bounds() -> None:
    assert bounds(Check([], [], low=0, high=255), member("u8", 1)) == ()
    assert bounds(None, member("u32", 4)) == ()


def test_a_divisor_is_never_zero() -> None:
    (found,) = bounds(Check([], ["divisor"], "nonzero"), member("int", 4))
    assert (found.nonzero, found.signed, found.low, found.high) == (True, True, -(2**31), 2**31 - 1)


@pytest.fixture(scope="module")
def network(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    plan = load(EXAMPLES / "e1000.plan.toml")
    answers = file.load(EXAMPLES / "e1000.annotations.toml").answers()
    whole = subject.load(kernel, "e1000", "field")
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    return generate(kernel, kernel.module("e1000"), found, answers, tmp_path_factory.mktemp("network"))


def view(generated: Generated, entry: str) -> dict[str, Field]:
    return {one.path: one for one in generated.border.table.views[entry]["net_device"]}


def call(generated: Generated, name: str) -> Call:
    return next(one for one in generated.border.table.calls if one.name == name)


@pytest.mark.kernel
def test_elements_are_counted_in_the_struct_that_the_pointer_lies_in(network: Generated) -> None:
    ring = view(network, f"{ETHTOOL}:e1000_get_ringparam")["e1000_adapter:tx_ring"]
    declaration, expression, _ = network.border.table.counts[ring.count]
    assert declaration == f"const struct e1000_adapter *this = base + {network.border.behind['net_device'][1]};"
    assert expression == "this->num_tx_queues"


@pytest.mark.kernel
def test_memory_of_numbers_crosses_in_its_full_length(network: Generated) -> None:
    data = network.border.table.parameters[f"{ETHTOOL}:e1000_get_ethtool_stats"][2]
    assert (data.name, data.type) == ("data", "bytes")
    assert network.border.table.counts[data.count][1] == "(stats->n_stats) * sizeof(*data)"


@pytest.mark.kernel
def test_a_buffer_that_is_called_down_with_is_as_long_as_another_argument_says(network: Generated) -> None:
    data = call(network, "e1000_read_eeprom").arguments[3]
    assert (data.way, data.size, data.counted) == ("COUNTED", 2, 2)


@pytest.mark.kernel
def test_what_the_user_half_writes_is_kept_in_the_range_of_its_own_code(network: Generated) -> None:
    (found,) = view(network, f"{PARAM}:e1000_check_options")["e1000_adapter:hw.forced_speed_duplex"].bounds
    assert (found.low, found.high) == (0, 3)


@pytest.mark.kernel
@pytest.mark.parametrize("entry", ["e1000_get_ethtool_stats", "e1000_diag_test"])
def test_the_name_of_an_interface_which_is_only_printed_does_not_come_back(network: Generated, entry: str) -> None:
    table = network.border.table
    views = [table.views[key] for key in table.views if key.endswith(f":{entry}")]
    assert not [one.path for each in views for one in each["net_device"] if one.path == "name" and one.written]


@pytest.mark.kernel
def test_of_an_interface_no_member_comes_back_that_finds_it(network: Generated) -> None:
    views = network.border.table.views.values()
    written = {one.path for each in views for one in each.get("net_device", ()) if one.written and ":" not in one.path}
    assert not written & {"name", "state", "ifindex", "reg_state"}, written
