"""Runs a scenario in ring3's lab."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ring3_split.errors import Refusal
from ring3_split.files import refused
from ring3_split.profile.devices import HERE
from ring3_split.stamps import digest

STEP = "== "
# ends the line by which the lab says it: what was said before does not count
AGAIN = "; the guest is run again, from the start"
FLAGS = ("-static", "-O2", "-s")


def program() -> str:
    """The ring3 program: the one that started us, the one on PATH, or the one built in this tree.

    Raises:
        Refusal: there is none.
    """
    named = os.environ.get("RING3")
    if named:
        return named
    found = shutil.which("ring3")
    tree = HERE.parents[3] / "target"
    built = [path for path in (tree / "release/ring3", tree / "debug/ring3") if path.is_file()]
    if not found and not built:
        raise Refusal(
            "the program ring3, whose lab boots the guest, is not on PATH: build it with cargo "
            "build --release, or set RING3"
        )
    return found or str(built[0])


def plot(report: dict[str, Any], picture: Path) -> None:
    """Has ring3 draw a report.

    Raises:
        Refusal: it cannot be drawn, or not written.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(msgspec.json.encode(report))
        file.flush()
        command = [program(), "plot", file.name, "--out", str(picture)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{picture} is not drawn: {done.stderr.strip()}")


def compiled(names: tuple[str, ...], folder: Path) -> tuple[Path, ...]:
    """The programs of `guest/` that a run needs, built for the guest or found in the cache.

    Raises:
        Refusal: no compiler, or no static C library.
    """
    return tuple(compiled_file(HERE / "guest" / f"{name}.c", folder) for name in names)


def compiled_file(source: Path, folder: Path, *headers: Path) -> Path:
    """A program for the guest; `headers` are folders of headers of ours.

    Raises:
        Refusal: no compiler, or no static C library.
    """
    texts = [path.read_text() for one in headers for path in sorted(one.glob("*.h"))]
    file = folder / digest(source.read_text(), *texts, *FLAGS) / source.stem
    if file.exists():
        return file
    gcc = shutil.which("gcc")
    if not gcc:
        raise Refusal(
            "gcc is missing, which builds what runs in the guest: apt-get install gcc libc6-dev"
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        done = subprocess.run(
            [gcc, *FLAGS, *(f"-I{one}" for one in headers), "-o", str(new), str(source)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise Refusal(
                f"{source.name} does not build (apt-get install gcc libc6-dev): "
                f"{done.stderr.strip().splitlines()[-1]}"
            )
        new.rename(file)
    except OSError as error:
        raise refused(error, file) from None
    return file


def run(
    scenario: Path, cache: Path, out: Path, log: Path, show: Callable[[str, bool], None]
) -> None:
    """Boots the guest with what is in `cache`, runs the steps and leaves their files in `out`.

    `show` gets every line, and whether it names a step.

    Raises:
        Refusal: the lab or a step failed; its output is in `log`.
    """
    command = [program(), "lab", "run", str(scenario), "--out", str(out)]
    environment = os.environ | {"RING3_CACHE": str(cache)}
    step, last = "the boot", [""]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            log.open("w") as copy,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            ) as lab,
        ):
            try:
                for line in lab.stdout or ():
                    copy.write(line)
                    name = line[len(STEP) :].strip() if line.startswith(STEP) else ""
                    step, last = (name, [""]) if name else (step, [*last[-2:], line.strip()])
                    show(name or line.rstrip(), bool(name))
                code = lab.wait()
            except BaseException:
                # The lab ends its guest when it is asked to.
                lab.terminate()
                lab.wait(timeout=30)
                raise
    except OSError as error:
        raise (
            refused(error, log)
            if error.filename == str(log)
            else Refusal(f"{command[0]} does not start: {error.strerror}")
        ) from None
    if code:
        said = "; ".join(line for line in last if line and not line.startswith(("FAILED", "--")))
        raise Refusal(
            f"the guest failed at '{step}' (exit code {code}): {said or 'nothing was said'}; all "
            f"output is in {log}"
        )
