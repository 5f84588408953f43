"""Numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from ring3_split.commands import numbers


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (numbers.seconds, "0.1", 0.1),
        (numbers.seconds, "600", 600.0),
        (numbers.minutes, "0", 0.0),
        (numbers.minutes, "1440", 1440.0),
        (numbers.rounds, "100", 100),
        (numbers.count, "0", 0),
        (numbers.count, "10000000", 10_000_000),
    ],
)
def test_the_ends_of_a_range_are_in_it(
    read: Callable[[str], float], text: str, value: float
) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "wanted"),
    [
        (numbers.seconds, "0", "seconds from 0.1 to 600"),
        (numbers.seconds, "nan", "seconds from 0.1 to 600"),
        (numbers.seconds, "long", "seconds from 0.1 to 600"),
        (numbers.minutes, "-1", "minutes from 0 to 1440"),
        (numbers.minutes, "", "minutes from 0 to 1440"),
        (numbers.rounds, "0", "rounds from 1 to 100"),
        (numbers.count, "10000001", "from 0 to 10000000"),
        (numbers.count, "1.5", "from 0 to 10000000"),
    ],
)
def test_what_is_no_such_number_is_refused_with_what_is_wanted(
    read: Callable[[str], float], text: str, wanted: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=wanted):
        read(text)
