from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest

from ring3_split.workers import Lost, run


def double(number: int) -> int:
    return 2 * number


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_every_task_comes_back_with_its_result() -> None:
    assert dict(run(double, list(range(20)), 2, 60)) == {n: 2 * n for n in range(20)}


def test_a_task_that_hangs_is_lost_and_the_next_is_done() -> None:
    outcomes = dict(run(sleep, [600.0, 0.0], 1, 2.0))
    assert outcomes == {600.0: Lost("it took too long"), 0.0: 0.0}


def test_who_stops_asking_does_not_wait_for_the_rest() -> None:
    start = time.monotonic()
    assert [task for task, _ in islice(run(sleep, [0.0, 600.0], 2, 600.0), 1)] == [0.0]
    assert time.monotonic() - start < 60


def killed_at(deadly: int, number: int) -> int:
    if number == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_a_process_that_dies_costs_its_task_alone(start: Literal["spawn", "fork"]) -> None:
    outcomes = dict(run(partial(killed_at, 3), range(9), 2, start=start))
    assert outcomes == {
        n: Lost("its process was ended by signal 9") if n == 3 else n for n in range(9)
    }


def test_what_a_task_raises_is_its_result() -> None:
    ((_, error),) = run(partial(divmod, 1), [0], 1)
    assert isinstance(error, ZeroDivisionError)


def test_a_fork_works_on_what_no_other_process_could_import() -> None:
    assert sorted(run(lambda number: number * number, range(7), 3, start="fork")) == [
        (n, n * n) for n in range(7)
    ]


KILLED = """
import os, signal
from ring3_split.workers import run
for _ in run(lambda task: task, [0, 1, 2], 2, start="fork"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forks_end_when_who_started_them_is_killed() -> None:
    environment = {"PYTHONPATH": ":".join(sys.path)}
    # The forks have its standard output, too, which ends when the last of them has.
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_no_task_is_no_work() -> None:
    assert list(run(double, [], None, 60)) == []


# Work that no pipe holds at once: a kernel with all its modules.
LARGE = "partial(bytes.find, bytes(1 << 20))"


@pytest.mark.parametrize("work", ["abs", LARGE])
def test_a_script_that_each_process_would_run_again_is_told_so_and_ends(
    tmp_path: Path, work: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\nfrom ring3_split.workers import run\n"
        f"print(list(run({work}, [-1] * 1000, 2, 600)))\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Refusal: a process ended before it could begin" in done.stderr.splitlines()[-1]
    assert "__name__ == '__main__'" in done.stderr.splitlines()[-1]
