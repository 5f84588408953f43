"""How a user half starts.

Its words, its memory, and what it gives up where it has no right to give up more.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ring3_split.generate.empty import link_program

NOBODY = 65534
SMALL = 64 << 10


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("half") / "split-empty"
    link_program(file)
    return file


def start(program: Path, *words: str, pinned: int = SMALL) -> subprocess.CompletedProcess[str]:
    """It runs as nobody, who may pin so many bytes.

    Its device is one that knows none of its commands.
    """
    descriptor = os.open(program, os.O_RDONLY)
    # The shell sets the limit: Python code between fork and exec (`preexec_fn`) may deadlock,
    # because pytest's workers have a second thread, and the parent would wait for it without end.
    limited = ["sh", "-c", f'ulimit -l {pinned >> 10} && exec "$@"', "sh"]
    try:
        return subprocess.run(
            [*limited, f"/proc/self/fd/{descriptor}", "1", "--device", "0", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            pass_fds=(descriptor,),
            user=NOBODY if os.getuid() == 0 else None,
        )
    finally:
        os.close(descriptor)


def test_a_user_half_that_may_not_pin_its_memory_says_what_to_do_and_goes_on(program: Path) -> None:
    done = start(program, "--unconfined")
    assert (
        "RLIMIT_MEMLOCK is 64 KiB, and 65536 are needed: start it as root, raise the limit"
        in done.stderr
    )
    assert "attaching: Inappropriate ioctl for device" in done.stderr


def test_one_that_is_not_to_be_pinned_says_nothing_of_it(program: Path) -> None:
    assert "pinned" not in start(program, "--unconfined", "--unpinned").stderr


def test_one_that_is_nobodys_confines_itself_and_still_reaches_its_device(program: Path) -> None:
    done = start(program, "--unpinned")
    assert "cannot be confined" not in done.stderr
    assert (done.returncode, "attaching: Inappropriate ioctl for device" in done.stderr) == (
        1,
        True,
    )


def test_words_that_nobody_knows_are_answered_with_those_that_there_are(program: Path) -> None:
    for words in (["--pinned"], ["--user", "0"], ["--user", "1:x"], ["--device", "-1"], ["5"]):
        done = start(program, *words)
        assert (done.returncode, "--unconfined" in done.stderr) == (2, True)
