"""How the program starts: what it loads, and what it says where it cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE)}


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_command_loads_no_library_that_only_pictures_need() -> None:
    done = python(
        "import ring3_split.cli, sys; print([name for name in ('matplotlib', 'jinja2') if name in "
        "sys.modules])"
    )
    assert done.stdout == "[]\n"


def test_an_older_python_is_told_which_one_is_needed() -> None:
    done = python(
        "import sys; sys.version_info = (3, 9, 2); from ring3_split.__main__ import main; "
        "sys.exit(main())"
    )
    assert (done.returncode, done.stderr) == (
        1,
        "ring3 split: Python 3.11 or later is needed, this is 3.9.2\n",
    )


def test_a_missing_package_is_named_with_what_installs_it() -> None:
    done = python(
        "import sys; sys.modules['msgspec'] = None; from ring3_split.__main__ import main; "
        "sys.exit(main())"
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "ring3 split: the Python package msgspec is missing: pip install ./split, or run it as "
        "`ring3 split`\n"
    )


def test_control_c_while_the_program_loads_prints_no_traceback(tmp_path: Path) -> None:
    # A package that takes long to load stands for a slow disk.
    (tmp_path / "msgspec.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'loading')!r}).touch()\n"
        "time.sleep(60)\n"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    program = subprocess.Popen(
        [sys.executable, "-m", "ring3_split", "show", "e1000"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "loading").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate(timeout=30)
    assert (program.returncode, said) == (-signal.SIGINT, "")


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]])
def test_help_ends_well(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ring3_split", *words],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
