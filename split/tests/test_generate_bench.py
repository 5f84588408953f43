"""What `ring3 split bench` makes of what the guest says."""

import pytest

from ring3_split.errors import Refusal
from ring3_split.generate.bench import LOADS, PLACEMENTS, Report, Sample, check, parse, rows, show


def samples(slower: float = 1.0) -> list[Sample]:
    """Two rounds; the split driver takes `slower` times as long."""

    def line(placement: str, load: str, megabytes: int) -> str:
        seconds = 2.0 * (1.0 if placement == "original" else slower)
        return f"measured {placement} {load} {megabytes * 1e6} {seconds} 1000 500 1010 2500"

    return [parse(line(placement, load, size)) for size in (4, 8) for placement in PLACEMENTS for load in LOADS]


def test_a_line_of_the_guest_is_bytes_and_packets_a_second_and_instructions_of_the_time_that_was_not_idle() -> None:
    found = parse("measured split out 1000000 2.0 1000 500 1020 2500")
    assert (found.placement, found.load) == ("split", "out")
    assert (found.mbit_s, found.packets_s, found.idle_percent) == (4.0, 1000.0, 10.0)
    assert found.instructions_per_packet == pytest.approx(1.8e9 / 16 / 2000)


@pytest.mark.parametrize("line", ["measured split out", "measured split out 1 0 1 1 1 2", "measured split out x 1 1 1 1 2"])
def test_a_line_that_is_no_measurement_is_refused(line: str) -> None:
    with pytest.raises(Refusal, match="no measurement"):
        parse(line)


def test_ratios_are_to_the_original_of_the_same_round() -> None:
    table = rows(samples(slower=1.25))
    split = next(row for row in table if (row.placement, row.load) == ("split", "in"))
    assert split.mbit_s_ratio.min == split.mbit_s_ratio.max == pytest.approx(0.8)
    assert [split.mbit_s.min, split.mbit_s.max] == pytest.approx([12.8, 25.6])


def test_a_round_that_is_not_whole_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows(samples()[:-1])


def test_the_table_has_each_load_of_each_placement() -> None:
    text = show(Report("e1000", "6.12", 4, rows(samples())))
    assert text.count("1.000 (1.000-1.000)") == 2 * len(PLACEMENTS) * len(LOADS)


def test_a_driver_that_is_no_network_cards_is_refused() -> None:
    with pytest.raises(Refusal, match="network cards alone"):
        check("snd-ens1370")
