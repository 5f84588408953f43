"""Threads of a user half that wait for upcalls, in a guest: how many of them an upcall wakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomlkit

from ring3_split.generate import empty
from ring3_split.generate.build import runtime_module
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.headers import version

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
UPCALLS = 1000
STEP = f"""
slept() {{
    cat /proc/$half/task/*/status |
        awk '/^voluntary_ctxt_switches/ {{ n += $2 }} END {{ print n }}'
}}
insmod /lib/ring3/ring3_split.ko && insmod /lib/ring3/split_empty.ko || exit 1
split-empty 30 --unconfined & half=$!
echo 2 >/sys/module/split_empty/parameters/upcall || exit 1
before=$(slept)
echo {UPCALLS} >/sys/module/split_empty/parameters/upcall || exit 1
echo "its $(ls /proc/$half/task | wc -l) threads have slept $(($(slept) - before)) times"
rmmod split_empty && wait && rmmod ring3_split
"""


@pytest.fixture(scope="module")
def said(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("woken")
    runtime = runtime_module(kernel)
    halves = empty.build(kernel, runtime)
    scenario = {
        "about": "the threads of the empty driver's user half are counted when they sleep",
        "kernel": version(kernel),
        "iommu": "none",
        "vcpus": 1,
        "time_limit": 120,
        "programs": [str(halves.program)],
        "files": {f"/lib/ring3/{file.name}": str(file) for file in (runtime, halves.module)},
        "step": [{"name": "upcalls", "run": STEP}],
    }
    (folder / "scenario.toml").write_text(tomlkit.dumps(scenario))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "out",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def test_an_upcall_wakes_one_thread_though_several_wait(said: str) -> None:
    found = re.search(r"its (\d+) threads have slept (\d+) times", said)
    assert found
    threads, slept = map(int, found.groups())
    assert threads > 1
    assert UPCALLS <= slept < 1.5 * UPCALLS
