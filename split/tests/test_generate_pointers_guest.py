"""A probe that lies about pointers, in a guest: what the kernel half follows stays what the honest code has set."""

from __future__ import annotations

from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import generate
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
# The interface is there; the probe is about to end.
REGISTERED = "\tcards_found++;\n"
LIES = """\
\tadapter->tx_ring = NULL;
\tadapter->rx_ring = (void *)adapter->rx_ring->desc;
\thw->hw_addr = NULL;
"""
WORK = """
works() { dmesg | grep -o 'user half.s .* is refused' | sort -u; up && net send $THERE 0.5; }
"""


def test_a_card_that_is_registered_keeps_its_rings_and_registers(kernel: Kernel, tmp_path: Path, cache: Path) -> None:
    plan, answers = load(EXAMPLES / "e1000.plan.toml"), file.load(EXAMPLES / "e1000.annotations.toml").answers()
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    generated = generate(kernel, kernel.module("e1000"), found, Wishes.of(plan, answers), tmp_path / "out")
    source = tmp_path / "out/user/e1000_main.c"
    before, registered, behind = source.read_text().partition(REGISTERED)
    assert registered
    source.write_text(f"{before}{registered}{LIES}{behind}")
    work = tmp_path / "work.sh"
    work.write_text(WORK)
    request = run.Request(cache, 0.2, tmp_path / "run.log", run.Wanted(work=work))
    run.run(kernel, "e1000", build.build(kernel, generated), request, lambda _line, _step: None)
    log = (tmp_path / "run.log").read_text()
    for name in ("e1000_adapter:tx_ring", "e1000_adapter:rx_ring", "e1000_adapter:hw.hw_addr"):
        assert f"user half's {name} is refused" in log
