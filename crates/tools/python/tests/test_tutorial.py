"""docs/tutorial-python.md as its reader goes through it: each change, each command, its output."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CRATE = Path(__file__).resolve().parents[1]
PAGE = CRATE.parents[2] / "docs/tutorial-python.md"
# What needs a PCI function behind an IOMMU. tests/documents checks the words of `ring3 bind`.
HARDWARE = "sudo ring3 bind "


class Block(NamedTuple):
    """A block of code, and the paragraph before it."""

    paragraph: str
    code: str


def steps() -> list[str]:
    _, *found = PAGE.read_text().split("\n## Step ")
    return found


def blocks(step: str) -> Iterator[Block]:
    for text, code in re.findall(r"((?:^(?! {4}).*\n)+)((?:(?: {4}.*)?\n)+)", step, re.MULTILINE):
        if code.strip():
            paragraph = text.strip().rpartition("\n\n")[2]
            lines = [line[4:] for line in code.rstrip().split("\n")]
            yield Block(" ".join(paragraph.split()), "\n".join(lines) + "\n")


def replaced(program: str, old: str, new: str) -> str:
    """The program with one line, or several, changed; the place must be clear."""
    assert f"\n{program}".count(f"\n{old}") == 1, f"one place in edu.py has {old!r}"
    return f"\n{program}".replace(f"\n{old}", f"\n{new}")[1:]


def changed(program: str, how: str, line: str, code: str) -> str:
    """The program after "Add above `line`", "Add below `line`" or "Replace `line` by"."""
    found = [each + "\n" for each in program.split("\n") if each.strip() == line]
    assert len(found) == 1, f"one line of edu.py is {line!r}"
    whole = found[0]
    if how == "Add below":
        return replaced(program, whole, whole + code)
    if how == "Add above":
        # Two empty lines behind a function.
        between = "" if code.startswith("import ") else "\n\n"
        return replaced(program, whole, code + between + whole)
    return replaced(program, whole, code)


def run(folder: Path, program: str, command: str) -> tuple[int, str]:
    """Runs a command of the page: its exit code, and its output with its errors behind it."""
    (folder / "edu.py").write_text(program)
    name, *words = command.split()
    assert name == "python", command
    environment = {name: value for name, value in os.environ.items() if name != "RING3_LOG"}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def ruff(folder: Path, *words: str) -> None:
    program = Path(sys.executable).with_name("ruff")
    settings = ["--quiet", "--no-cache", "--config", str(CRATE / "pyproject.toml")]
    subprocess.run([program, *words, *settings, "edu.py"], check=True, cwd=folder)


def test_each_step_of_the_tutorial_is_formatted_and_prints_what_the_page_says(
    tmp_path: Path,
) -> None:
    program, command, lines, runs = "", "", "", 0
    for step in steps():
        title = step.partition("\n")[0]
        for paragraph, code in blocks(step):
            place = f"step {title}: {paragraph}\n{code}"
            change = re.search(r"(Add below|Add above|Replace) `(.*)`(?::| by)$", paragraph)
            if paragraph.endswith("a new file `edu.py`:"):
                program = code
            elif change:
                program = changed(program, change[1], change[2], code)
            elif paragraph == "Replace these lines":
                lines = code
            elif paragraph == "by":
                program = replaced(program, lines, code)
            elif code.startswith(HARDWARE):
                continue
            elif code.startswith("python edu.py "):
                assert not command, f"no output stands behind {command}"
                command = code
            else:
                assert paragraph.endswith("prints") and command, f"not tested: {place}"
                wanted = 1 if "exit code 1" in paragraph else 0
                assert run(tmp_path, program, command) == (wanted, code), f"{command}{place}"
                ruff(tmp_path, "format", "--check")
                command, runs = "", runs + 1
        assert not command, f"no output stands behind {command}"
    assert (len(steps()), runs) == (6, 13)
    ruff(tmp_path, "check")
