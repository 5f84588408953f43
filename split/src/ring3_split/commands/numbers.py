"""Numbers on the command line.

Each function raises ArgumentTypeError, which says what is wanted, for a text that is none.
"""

from __future__ import annotations

import argparse

MOST = 10_000_000


def seconds(text: str) -> float:
    """A time, 0.1 to 600 s."""
    return _between(text, 0.1, 600, "seconds")


def minutes(text: str) -> float:
    """A time, up to a day."""
    return _between(text, 0, 1440, "minutes")


def rounds(text: str) -> int:
    """How often, 1 to 100 times."""
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a number of rounds from 1 to 100")
    return int(text)


def count(text: str) -> int:
    """How many."""
    if not text.isdigit() or int(text) > MOST:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to {MOST}")
    return int(text)


def _between(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(
            f"{text} is not a number of {what} from {least:g} to {most:g}"
        )
    return value
