from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

from ring3_split import distribution, source_options
from ring3_split.driver import Driver
from ring3_split.errors import Refusal
from ring3_split.kernel import Kernel
from small_tree import plant, put


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    source_options.add(parser)
    return parser.parse_args(words)


def test_a_kernel_that_is_not_in_the_cache_is_refused_with_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RING3_CACHE", str(tmp_path))
    with pytest.raises(Refusal, match=r"run lab/setup\.sh source 6\.12"):
        source_options.kernel(options())


@pytest.mark.kernel
def test_another_folder_for_facts_leaves_clang_and_source_where_they_are(
    cache: Path, kernel: Kernel, tmp_path: Path
) -> None:
    # What the kernel builds is known there, too: make takes many seconds to say it.
    assert kernel.catalogue.targets
    there = tmp_path / kernel.folder.relative_to(cache)
    there.mkdir(parents=True)
    for known in kernel.folder.glob("modules-*.json"):
        shutil.copy(known, there)
    kernel = source_options.kernel(options("--cache", str(tmp_path)))
    assert kernel.folder.is_relative_to(tmp_path)
    assert kernel.root.is_relative_to(cache)


def test_missing_headers_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "sources/6.12/release", "6.12.1-amd64\n")
    with pytest.raises(
        Refusal,
        match=r"not whole: .*auto\.conf is missing; run lab/setup\.sh --update source 6\.12",
    ):
        distribution.open_kernel("6.12", tmp_path)


def test_a_configuration_without_a_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="--config goes with --tree"):
        source_options.kernel(options("--config", str(tmp_path)))


@pytest.mark.parametrize("number", ["0", "many", "-1"])
def test_a_number_of_jobs_that_is_none_is_wrong_usage(number: str) -> None:
    with pytest.raises(SystemExit):
        options(f"--jobs={number}")


@pytest.mark.kernel
def test_the_distributions_e1000_has_four_units_that_compile(e1000: Driver) -> None:
    (facts,) = e1000.modules
    assert len(facts.module.sources) == len(facts.units) == 4
    assert facts.failures == ()


def test_folders_that_make_cannot_evaluate_are_said(
    clang: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = plant(tmp_path / "linux")
    put(planted / "sound/Makefile", "include nowhere.mk\n")
    source_options.kernel(
        options("--tree", str(planted), "--clang", str(clang), "--cache", str(tmp_path / "cache"))
    )
    assert (
        "note: make cannot evaluate all of sound, drivers of it may be missing: sound/Makefile:1: "
        "nowhere.mk: No such file" in capsys.readouterr().err
    )
