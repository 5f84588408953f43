"""Probes that fail by themselves at each kernel call, in a guest that poisons freed memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import generate
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
WORK = """
works() {
    up && split_kill >/dev/null || return
    usual=$OPTIONS
    # Nobody is waited for while a card is let go without a user half.
    echo 1 >/sys/module/ring3_split/parameters/grace_ms
    for call in $(seq 1 400); do
        let_go
        before=$(wc -l </tmp/user-half.log)
        OPTIONS="$usual --fail $call"
        split_restart >/dev/null || return
        bound 2>/dev/null && ended=bound || ended=refused
        split_kill >/dev/null
        # Since it has attached.
        what=$(tail -n +$((before + 1)) /tmp/user-half.log |
            grep -o ": the call of .* fails, as was wanted")
        [ -n "$what" ] || break
        echo "call $call$what: $ended"
    done
    let_go
    OPTIONS=$usual
    split_restart >/dev/null && bound && up && net send $THERE 0.5 && echo "the card works"
    kernel_is_well
    return 1
}
let_go() { echo "$CARD" >"/sys/bus/pci/drivers/$DRIVER/unbind" 2>/dev/null; }
"""


@pytest.fixture(scope="module")
def log(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("probes")
    plan, answers = (
        load(EXAMPLES / "e1000.plan.toml"),
        file.load(EXAMPLES / "e1000.annotations.toml").answers(),
    )
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    halves = generate(
        kernel, kernel.module("e1000"), found, Wishes.of(plan, answers), folder / "out"
    )
    (folder / "work.sh").write_text(WORK)
    wanted = run.Wanted(work=folder / "work.sh", poisoned=True)
    with pytest.raises(Refusal, match="it works by its user half"):
        run.run(
            kernel,
            "e1000",
            build.build(kernel, halves),
            run.Request(cache, 0.2, folder / "run.log", wanted),
            lambda _line, _step: None,
        )
    return (folder / "run.log").read_text()


def test_a_probe_may_fail_at_each_of_its_calls(log: str) -> None:
    failed = re.findall(r"^.*call \d+: .*the call of (\w+) fails", log, re.MULTILINE)
    assert {"alloc_etherdev_mqs", "register_netdev"} <= set(failed)
    assert len(failed) > 30
    assert "the kernel is well" in log


def test_the_next_probe_has_a_card_that_works(log: str) -> None:
    assert "the card works" in log
