"""What the guest brings back.

Calls by address, where the modules lay, and what the tracer says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ring3_split.errors import Refusal


@dataclass(frozen=True)
class Sample:
    """One place of call and what it calls, by address in the guest."""

    callee: int  # the hook of the function that was entered
    back: int  # where it returns to
    epoch: int  # how many of the modules were loaded: until then, or while the next one was
    calls: int
    atomic: int  # how many of them with interrupts or preemption off, or in an interrupt


@dataclass(frozen=True)
class Counts:
    """All that was recorded."""

    samples: tuple[Sample, ...]
    places: dict[str, dict[str, int]]  # module -> section -> address
    events: int
    lost: int
    seconds: float


def read(folder: Path) -> Counts:
    """Reads the files that the steps left.

    Raises:
        Refusal: one is missing or makes no sense.
    """
    try:
        text = {
            name: (folder / name).read_text() for name in ("calls", "sections", "stats", "times")
        }
        notes = _notes(text["calls"])
        begin, end = (float(line) for line in text["times"].split())
        return Counts(
            tuple(_sample(line) for line in text["calls"].splitlines() if not line.startswith("#")),
            _places(text["sections"]),
            notes["events"],
            _lost(text["stats"], notes),
            end - begin,
        )
    except OSError as error:
        raise Refusal(
            f"the guest did not leave {Path(error.filename).name}: run again with --verbose"
        ) from None
    except (ValueError, KeyError) as error:
        raise Refusal(
            f"what the guest left in {folder} makes no sense ({error}): run again with --verbose"
        ) from None


def _sample(line: str) -> Sample:
    callee, back, epoch, calls, atomic = line.split()
    return Sample(int(callee, 16), int(back, 16), int(epoch), int(calls), int(atomic))


def _notes(text: str) -> dict[str, int]:
    return {
        words[1]: int(words[2]) for words in map(str.split, text.splitlines()) if words[:1] == ["#"]
    }


def _places(text: str) -> dict[str, dict[str, int]]:
    places: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        module, section, address = line.split()
        places.setdefault(module, {})[section] = int(address, 16)
    return places


def _lost(stats: str, notes: dict[str, int]) -> int:
    """Events overwritten or without room, and events that were read but are not in the table."""
    numbers: dict[str, int] = {}
    for line in stats.splitlines():
        name, _, value = line.partition(" ")[2].rpartition(": ")
        if value.isdigit():
            numbers[name] = numbers.get(name, 0) + int(value)
    unread = max(numbers["read events"] - notes["events"], 0)
    return (
        numbers["overrun"]
        + numbers["commit overrun"]
        + numbers["dropped events"]
        + numbers["entries"]
        + unread
    )
