"""What `ring3 split bench` makes of what the guest says."""

from pathlib import Path

import pytest

import conforms
from ring3_split.errors import Refusal
from ring3_split.generate import costs, delays
from ring3_split.generate.bench import INSTRUCTION_US, Report, Request, check, show, steps, told
from ring3_split.generate.measured import Cost, Sample, Took, parse
from ring3_split.generate.placements import LOADS, PLACEMENTS, PROCESSES, rows, turns


def samples(slower: float = 1.0) -> list[Sample]:
    """Two rounds; the split driver takes `slower` times as long."""

    def line(placement: str, load: str, megabytes: int) -> str:
        seconds = 2.0 * (1.0 if placement == "original" else slower)
        return f"measured {placement} {load} {megabytes * 1e6} {seconds} 1000 500 7 1010 2500 27"

    return [
        sample(line(placement, load, size))
        for size in (4, 8)
        for placement in PLACEMENTS
        for load in LOADS
    ]


def sample(line: str) -> Sample:
    found = parse(line)
    assert isinstance(found, Sample)
    return found


def test_a_line_of_the_guest_has_bytes_packets_crossings_a_second_and_the_time_not_idle() -> None:
    found = sample("measured split out 1000000 2.0 1000 500 7 1020 2500 27")
    assert (found.placement, found.load) == ("split", "out")
    assert (found.mbit_s, found.packets_s, found.idle_percent, found.crossings_s) == (
        4.0,
        1000.0,
        10.0,
        10.0,
    )
    assert found.cpu_us_per_packet == pytest.approx(1.8e6 / 2000)


@pytest.mark.parametrize(
    "line",
    [
        "measured split out",
        "measured split out 1 0 1 1 0 1 2 0",
        "measured split out x 1 1 1 0 1 2 0",
        "took split -i",
        "cost call 5 0",
    ],
)
def test_a_line_that_is_no_measurement_is_refused(line: str) -> None:
    with pytest.raises(Refusal, match="no measurement"):
        parse(line)


def test_ratios_are_to_the_original_of_the_same_round() -> None:
    table = rows(samples(slower=1.25), INSTRUCTION_US)
    split = next(row for row in table if (row.placement, row.load) == ("split", "in"))
    assert split.mbit_s_ratio.min == split.mbit_s_ratio.max == pytest.approx(0.8)
    assert [split.mbit_s.min, split.mbit_s.max] == pytest.approx([12.8, 25.6])


def test_a_round_that_is_not_whole_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows(samples()[:-1], None)


def test_the_table_has_each_load_of_each_placement() -> None:
    text = show(Report("e1000", "6.12", "instructions", 4, rows(samples(), INSTRUCTION_US)))
    in_processes = len(PROCESSES) * len(LOADS)
    assert text.count("1.000 (1.000-1.000)") == 2 * len(PLACEMENTS) * len(LOADS) - in_processes


def test_its_report_has_a_row_for_each_figure_of_each_load() -> None:
    found = told(Report("e1000", "6.12", "instructions", 4, rows(samples(), INSTRUCTION_US)))
    assert conforms.check(found) is None
    (row,) = [
        row
        for row in found["rows"]
        if (row.workload, row.placement, row.metric) == ("tcp-in", "split", "mbit_s")
    ]
    assert (row.rounds, row.unit) == (2, "Mb/s")
    assert len(found["placements"]) == len(PLACEMENTS) * len(LOADS)


def test_a_driver_that_is_no_network_cards_is_refused() -> None:
    with pytest.raises(Refusal, match="network cards alone"):
        check("snd-ens1370")


def test_what_else_the_guest_says_is_no_measurement() -> None:
    assert parse("the user half is dead") is None


def test_by_the_wall_clock_nobody_counts_instructions() -> None:
    assert all(
        row.instructions_per_packet is None and row.instructions_ratio is None
        for row in rows(samples(), None)
    )


def delayed(delay: str, megabytes: int) -> list[Sample]:
    return [
        sample(f"measured {delay} {load} {megabytes * 1e6} 2.0 1000 500 0 1010 2500 8")
        for load in delays.LOADS
    ]


def test_a_delay_is_told_beside_the_original_of_its_round() -> None:
    found = delays.rows(
        [*delayed("undelayed", 8), *delayed("delay-1000", 6), *delayed("delay-0", 8)], (0, 1000)
    )
    assert [row.delay_us for row in found if row.load == "out"] == [None, 0, 1000]
    assert [row.mbit_s_ratio.median for row in found if row.load == "paced"] == pytest.approx(
        [1, 1, 0.75]
    )
    assert found[1].crossings_s.median == 4.0


def told_costs(*told: str) -> list[Cost]:
    lines = [parse(f"cost {line}") for line in told]
    return [line for line in lines if isinstance(line, Cost)]


def test_a_crossing_is_told_in_system_calls_of_its_round() -> None:
    one = told_costs("unconfined upcall 8000 2", "unconfined getppid 1000 2")
    other = told_costs("unconfined upcall 9000 2", "unconfined getppid 3000 2")
    found = costs.crossings([*one, *other], INSTRUCTION_US)
    assert (found[0].what, found[0].multiple.min, found[0].multiple.max) == ("upcall", 3.0, 8.0)
    assert found[1].instructions is not None
    assert found[1].instructions.min == pytest.approx(500 / 16)


def test_a_confined_user_halfs_crossing_stands_below_the_unconfined_ones_and_has_its_measure() -> (
    None
):
    lines = told_costs(
        "confined call 6000 2", "unconfined call 4000 2", "unconfined getppid 1000 2"
    )
    found = costs.crossings(lines, INSTRUCTION_US)
    assert [(row.what, row.user_half, row.multiple.median) for row in found] == [
        ("call", "unconfined", 4.0),
        ("call", "confined", 6.0),
        ("getppid", "unconfined", 1.0),
    ]


def test_user_halves_take_turns_every_other_round_backwards() -> None:
    assert costs.turns(5, 2) == [
        "crossings 5 unconfined",
        "crossings 5 confined",
        "crossings 5 confined",
        "crossings 5 unconfined",
    ]


def test_a_question_that_a_driver_does_not_answer_is_not_told() -> None:
    lines = [parse(line) for line in ("took original -i 1000", "took split -i 5000")]
    (found,) = costs.times([line for line in lines if isinstance(line, Took)])
    assert (found.what, found.ratio.median, found.added_us.median) == ("-i", 5.0, 4.0)


def test_every_other_round_goes_backwards() -> None:
    assert delays.turns((0, 10), 2) == ["undelayed", "delayed 0 10", "delayed 10 0", "undelayed"]


def test_only_what_is_asked_for_is_done(tmp_path: Path) -> None:
    asked = [turn for _, turn in steps(Request(tmp_path, rounds=1, placements=False, crossings=5))]
    assert asked == ["crossings 5 unconfined", "crossings 5 confined"]
    assert [turn for _, turn in steps(Request(tmp_path, rounds=1))] == ["original", "split"]


def test_every_other_round_goes_backwards_through_all_placements() -> None:
    assert turns(2, everywhere=True) == [
        "original",
        "split",
        "native",
        "hosted",
        "hosted",
        "native",
        "split",
        "original",
    ]
    assert turns(1) == ["original", "split"]


def test_processes_have_a_throughput_and_nothing_per_packet() -> None:
    row = next(row for row in rows(samples(), INSTRUCTION_US) if row.placement == "hosted")
    assert row.mbit_s_ratio.median == 1.0
    assert (row.packets_s, row.cpu_us_per_packet, row.cpu_ratio, row.instructions_per_packet) == (
        None,
        None,
        None,
        None,
    )


def test_without_processes_their_rows_are_not_there() -> None:
    kernel = [sample for sample in samples() if sample.placement not in PROCESSES]
    assert {row.placement for row in rows(kernel, None)} == {"original", "split", "killed", "dead"}
