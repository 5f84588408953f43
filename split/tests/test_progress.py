from __future__ import annotations

import pytest

from ring3_split import progress
from ring3_split.progress import Progress


def test_away_from_a_terminal_a_line_is_printed_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    with Progress("reading", 3) as shown:
        for unit in ("a.c", "b.c", "c.c"):
            shown.did(unit)
    assert capsys.readouterr().err == "reading: 1 of 3 units, about 0 s left\n"


def test_what_is_done_at_once_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading", 1) as shown:
        shown.did("a.c")
    assert capsys.readouterr() == ("", "")
