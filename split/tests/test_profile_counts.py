"""What the guest brings back is read as it is, and nothing that was lost goes unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split.errors import Refusal
from ring3_split.profile import counts

CALLS = """\
ffffffffc025f074 ffffffffc0260864 1 163643 161221
ffffffffc026e204 ffffffff81b0c416 0 3 0
# events 163646
# gaps 0
# full 0
"""
SECTIONS = (
    "e1000 .text 0xffffffffc025f000\ne1000 .init.text 0xffffffffc028e000\nmii .text "
    "0xffffffffc0250000\n"
)
STATS = """\
cpu0 entries: 0
cpu0 overrun: 0
cpu0 commit overrun: 0
cpu0 bytes: 0
cpu0 oldest event ts:    34.157707
cpu0 dropped events: 0
cpu0 read events: 22256
cpu1 entries: 0
cpu1 overrun: {overrun}
cpu1 commit overrun: 0
cpu1 dropped events: 2
cpu1 read events: {read}
"""


def left(folder: Path, *, overrun: int = 0, read: int = 141390, **files: str) -> Path:
    texts = {
        "calls": CALLS,
        "sections": SECTIONS,
        "stats": STATS.format(overrun=overrun, read=read),
        "times": "3.50\n16.25\n",
    }
    for name, text in (texts | files).items():
        (folder / name).write_text(text)
    return folder


def test_calls_are_read_with_their_context(tmp_path: Path) -> None:
    first = counts.read(left(tmp_path)).samples[0]
    assert first == counts.Sample(0xFFFFFFFFC025F074, 0xFFFFFFFFC0260864, 1, 163643, 161221)


def test_every_module_has_its_own_sections(tmp_path: Path) -> None:
    places = counts.read(left(tmp_path)).places
    assert places["e1000"][".init.text"] == 0xFFFFFFFFC028E000
    assert places["mii"] == {".text": 0xFFFFFFFFC0250000}


def test_the_run_lasted_from_the_begin_of_tracing_to_its_end(tmp_path: Path) -> None:
    assert counts.read(left(tmp_path)).seconds == 12.75


def test_events_that_were_overwritten_or_dropped_are_lost(tmp_path: Path) -> None:
    assert counts.read(left(tmp_path, overrun=5)).lost == 5 + 2


def test_an_event_that_was_read_and_not_counted_is_lost(tmp_path: Path) -> None:
    assert counts.read(left(tmp_path, read=141390 + 10)).lost == 10 + 2


def test_a_file_that_the_guest_did_not_leave_is_named(tmp_path: Path) -> None:
    (left(tmp_path) / "stats").unlink()
    with pytest.raises(Refusal, match="did not leave stats"):
        counts.read(tmp_path)


def test_nonsense_from_the_guest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="makes no sense"):
        counts.read(left(tmp_path, calls="sh: calls: not found\n"))
